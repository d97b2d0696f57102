"""A rule for reductions along the axis in which operands lie, where each element of a large operand
has few uses: a matrix times a vector, a dense layer of few rows, the largest element of each row.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import product, var
from tilesmith.expr.nodes import Load
from tilesmith.ir.function import Function, find_block
from tilesmith.ir.nodes import Block, Iter
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.kinds import Unroll, Vectorize
from tilesmith.schedule.layout import TransformLayout
from tilesmith.schedule.location import ReverseComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.reduction import Rfactor
from tilesmith.schedule.sample import SampleTile
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State


def inline_views(state: State) -> Derived | None:
    """Inlines operands of a product that are inputs with axes in another order: the product then
    reads them as they lie, or packs them.
    """
    func, b = state.func, state.block
    if b.combiner is None or len(b.reducing) != 1 or state.levels_of(b.name):
        return None
    if any(p.name is None for x in b.loads for p in x.index):
        return None
    inputs = {p.name for p in func.inputs}
    after = state
    for view in analysis.producers(func, b):
        if len(analysis.consumers(func, view)) == 1 and _permutes_input(view, inputs):
            after = after.attempt(Inline(view.name)) or after
    return None if after is state else Derived((after,), final=True)


def _permutes_input(b: Block, inputs: set[str]) -> bool:
    if b.combiner is not None or len(b.writes) != 1 or b.domain:
        return False
    value, own = b.writes[0].value, [i.name for i in b.spatial]
    if not isinstance(value, Load) or value.buffer not in inputs:
        return False
    names = [p.name for p in value.index if p.const != 0]
    written = [p.name for p in b.writes[0].index]
    return written == own and sorted(n or "" for n in names) == sorted(own)


@dataclass(frozen=True)
class TileDots:
    """Each lane of a vector along the summed axis has a sum of its own (rfactor), and the lanes are
    added in the end. So the large operand is read once, in order, without a packed copy. Axes that
    use its elements again are unrolled inside.

        for i, k                     ->    for i.0:
          C[i] += A[i, k] * x[k]             for k.0, i.1 (unrolled), k.1 (vectorized)
                                               C.rf[i, k.1] += A[i, k] * x[k]
                                             for i, k.1
                                               C[i] += C.rf[i, k.1]
    """

    lanes: int
    registers: int = 4  # that the vector of a row takes at most
    rows: int = 4  # of the large operand at once, at most

    def __call__(self, state: State) -> Derived | None:
        func, b = state.func, state.block
        if b.combiner is None or not b.init or state.levels_of(b.name):
            return None
        # Sums of rows have vectors anyway; but a few long ones are in too few registers, and what
        # keeps several values, as argmax does, is in none.
        last = analysis.fusible_consumer(func, b) or b
        alone = analysis.is_output(func, last) and not analysis.producers(func, b)
        if not (analysis.has_data_reuse(func, b) or len(b.writes) > 1 or alone):
            return None
        if b.name.endswith((".rf", ".local")):
            return None
        axis = next((i.name for i in b.reducing if self._is_summed(func, b, i)), None)
        if axis is None:
            return None
        moved = [x for x in b.loads if any(axis in p.names for p in x.index)]
        large = min(moved, key=lambda x: analysis.uses(b, x))
        after = self._tiled(state, axis, large)
        return None if after is None else Derived((after,))

    def _is_summed(self, func: Function, b: Block, i: Iter) -> bool:
        """Whether it is long, and all operands that it moves lie along it."""
        moved = [x for x in b.loads if any(i.name in p.names for p in x.index)]
        long = analysis.length(i) >= 4 * self.lanes
        return long and bool(moved) and all(_lies_along(func, x, i.name) for x in moved)

    def _tiled(self, state: State, axis: str, large: Load) -> State | None:
        b = state.block
        sample = SampleTile(
            f"{b.name}.{axis}", 2, "vector", self.registers * self.lanes, self.lanes
        )
        split = Split(sample.loop, sample.columns, exact=sample.exact)
        after = state.attempt(sample, split, Rfactor(split.parts[1]))
        if after is None:
            return None
        partial, suffix = f"{b.name}.rf", split.parts[1][len(b.name) :]
        _, rf = find_block(after.func, partial)
        lane = f"{partial}{suffix}"
        try:
            after = after.then(*_lanes_last(rf, lane))
            return self._ordered(after, b, rf, lane, large)
        except ScheduleError:
            return None

    def _ordered(self, state: State, b: Block, rf: Block, lane: str, large: Load) -> State:
        own = {n for p in large.index for n in p.names}
        spatial = [i for i in b.spatial if i.extent.const != 1] or list(b.spatial[-1:])
        outer = [f"{rf.name}.{i.name}" for i in spatial if i.name in own]
        inner = [f"{rf.name}.{i.name}" for i in spatial if i.name not in own]
        ones = [f"{rf.name}.{i.name}" for i in b.spatial if i not in spatial]
        sums = [i.bind.name or "" for i in rf.reducing]
        steps: list[Step] = []
        home = (*ones, *outer)[-1:]
        if outer:
            sample = SampleTile(outer[-1], 2, "any", self._most_rows(state, b, large))
            split = Split(sample.loop, sample.columns, exact=sample.exact)
            steps += [sample, split]
            outer, inner = [*outer[:-1], split.parts[0]], [*inner, split.parts[1]]
            home = (split.parts[0],)
        levels = [[*ones, *outer], sums, [*inner, lane]]
        steps.append(Reorder(tuple(x for level in levels for x in level)))
        steps += [*map(Unroll, inner), Vectorize(lane)]
        state = state.then(*steps, done=[b.name, rf.name]).with_tile(rf.name, levels)
        if not home:
            return state
        consumer = analysis.fusible_consumer(state.func, find_block(state.func, b.name)[1])
        state = state.then(ReverseComputeAt(b.name, home[0]))
        if consumer is None:
            return state
        fused = state.attempt(ReverseComputeAt(consumer.name, home[0]), done=[consumer.name])
        return state if fused is None else fused

    def _most_rows(self, state: State, b: Block, large: Load) -> int:
        """From memory, one row after the other comes faster than several at a time."""
        buffer = state.func.all_buffers[large.buffer]
        nbytes = product(buffer.shape).number * buffer.dtype.nbytes
        once = analysis.uses(b, large) == 1
        return 1 if once and nbytes > state.task.target.l2_nbytes else self.rows


def _lies_along(func: Function, load: Load, axis: str) -> bool:
    """Whether an operand is contiguous along an axis; dimensions of one element do not count."""
    shape = func.all_buffers[load.buffer].shape
    index = [p for p, n in zip(load.index, shape, strict=True) if n.const != 1]
    if not index or index[-1].coefficient(axis).const != 1:
        return False
    rest = (*index[:-1], index[-1] - var(axis))
    return not any(axis in p.names for p in rest)


def _lanes_last(rf: Block, lane: str) -> Iterator[Step]:
    """Partial results lie as vectors are."""
    lanes = {i.name for i in rf.iters if i.bind.name == lane}
    for w in rf.writes:
        order = sorted(range(len(w.index)), key=lambda d: bool(w.index[d].names & lanes))
        yield TransformLayout(w.buffer, tuple(f"d{d}" for d in order))
