"""A rule for CPUs: column sums, whose operands are contiguous along an axis of the output."""

from __future__ import annotations

from contextlib import suppress

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.ir.function import find_block
from tilesmith.ir.nodes import Block
from tilesmith.schedule.iterators import MergeIterators
from tilesmith.schedule.kinds import Unroll, Vectorize
from tilesmith.schedule.layout import TransformLayout
from tilesmith.schedule.location import ReverseComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.reduction import Rfactor
from tilesmith.schedule.sample import SampleTile
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State


@dataclass(frozen=True)
class TileColumnSums:
    """Vectorises along the contiguous axis, with one sum per lane, and adds up to `max_unroll` rows
    before the sums are stored. A vector along the reducing axis would be gathered from as many
    cache lines as it has lanes.

        for j, k                       ->    for j.0, k.0, j.1, k.1 (unrolled), j.2 (vectorized)
          S[j] += A[k, j]
    """

    lanes: int
    max_innermost: int
    max_unroll: int = 8
    # Lanes of rows that are taken, though they do not fill a vector: the sums of one still take an
    # instruction for all of them.
    shortest: int = 4

    def __call__(self, state: State) -> Derived | None:
        if not self._applies(state):
            return None
        state = self._with_long_rows(state)
        b = state.block
        axis = self.vector_axis(state, b)
        if axis is None:
            return None
        try:
            after = self._tile(state, b, axis)
        except ScheduleError:
            return None
        consumer = analysis.fusible_consumer(state.func, b)
        if consumer is not None:
            fuse = ReverseComputeAt(consumer.name, f"{b.name}.{axis}.0")
            with suppress(ScheduleError):  # if refused, it stays after all sums
                after = after.then(fuse, done=[consumer.name])
        apart = self._apart(state, b, axis)
        return Derived((after,) if apart is None else (after, apart), final=True)

    def _apart(self, state: State, b: Block, axis: str) -> State | None:
        """With sums of their own for several rows (rfactor), where a row is so short that each of
        its additions would wait for the one before.

        for k                              for k.0, k.1 (unrolled), j (vectorized)
          S[j] += A[k, j]           ->       S.rf[j, k.1] += A[k, j]
                                           for k.1, j
                                             S[j] += S.rf[j, k.1]
        """
        length = next(analysis.length(i) for i in b.spatial if i.name == axis)
        if length > 2 * self.lanes or len(b.writes) != 1:
            return None
        row = f"{b.name}.{b.reducing[-1].name}"
        deep = SampleTile(row, 2, "any", self.max_unroll)
        down = Split(row, deep.columns, exact=deep.exact)
        after = state.attempt(deep, down, Rfactor(down.parts[1]))
        if after is None:
            return None
        name = f"{b.name}.rf"
        rf = find_block(after.func, name)[1]
        apart = f"{name}{down.parts[1][len(b.name) :]}"
        others = [f"{name}.{i.name}" for i in b.spatial if i.name != axis]
        sums, lanes = [i.bind.name or "" for i in rf.reducing], f"{name}.{axis}"
        levels = [others, sums, [apart, lanes]]
        (write,) = rf.writes
        dims = sorted(range(len(write.index)), key=lambda d: write.index[d].name == axis)
        steps: list[Step] = [
            TransformLayout(write.buffer, tuple(f"d{d}" for d in dims)),
            Reorder(tuple(x for level in levels for x in level)), Unroll(apart), Vectorize(lanes),
        ]  # fmt: skip
        if others:
            steps.append(ReverseComputeAt(b.name, others[-1]))
        done = after.attempt(*steps, done=[b.name, name])
        if done is None:
            return None
        done = done.with_tile(name, levels)
        consumer = analysis.fusible_consumer(done.func, find_block(done.func, b.name)[1])
        if consumer is None or not others:
            return done
        fuse = ReverseComputeAt(consumer.name, others[-1])
        return done.attempt(fuse, done=[consumer.name]) or done

    def _applies(self, state: State) -> bool:
        b = state.block
        if b.combiner is None or not b.reducing or state.levels_of(b.name):
            return False
        return bool(b.init) and not analysis.has_data_reuse(state.func, b)

    def _with_long_rows(self, state: State) -> State:
        """The state in which the last axes are one, until it fills several vectors; or one, where
        a block that has them apart follows in the same loops.
        """
        followed = analysis.fusible_consumer(state.func, state.block) is not None
        least = self.lanes if followed else self.max_innermost
        while len(axes := state.block.spatial) > 1:
            before, last = axes[-2:]
            short = analysis.length(last) < least
            step = MergeIterators(state.block.name, (before.name, last.name))
            merged = state.attempt(step) if short and analysis.length(last) else None
            if merged is None:
                return state
            state = merged
        return state

    def vector_axis(self, state: State, b: Block) -> str | None:
        """The axis along which the output and all operands that it moves are contiguous."""
        extents = {i.name: i.extent.const for i in b.spatial}
        least = min(self.lanes, self.shortest)
        for axis in analysis.contiguous_axes(state.func, b):
            n = extents[axis]
            if n is not None and n >= least and analysis.is_contiguous(b, axis):
                return axis
        return None

    def _tile(self, state: State, b: Block, axis: str) -> State:
        others = [f"{b.name}.{i.name}" for i in b.spatial if i.name != axis]
        *outside, row = [f"{b.name}.{i.name}" for i in b.reducing]
        wide = SampleTile(f"{b.name}.{axis}", 3, "vector", self.max_innermost, self.lanes)
        deep = SampleTile(row, 2, "any", self.max_unroll)
        across = Split(wide.loop, wide.columns, exact=wide.exact)
        down = Split(row, deep.columns, exact=deep.exact)
        j0, j1, j2 = across.parts
        k0, k1 = down.parts
        levels = [[*others, j0], [*outside, k0], [j1], [k1], [j2]]
        order = tuple(loop for level in levels for loop in level)
        steps: list[Step] = [wide, across, deep, down, Reorder(order), Unroll(k1), Vectorize(j2)]
        return state.then(*steps, done=[b.name]).with_tile(b.name, levels)
