"""The rule for column sums: reductions whose operands are contiguous along an axis of the output.
Examples are the sum over the first axis of a row-major matrix, and pooling with channels last.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from tilesmith.base.errors import ScheduleError
from tilesmith.ir.nodes import Block
from tilesmith.schedule.kinds import Unroll, Vectorize
from tilesmith.schedule.location import ReverseComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleTile
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.state import Derived, State


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

    def __call__(self, state: State) -> Derived | None:
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
        return Derived((after,), final=True)

    def vector_axis(self, state: State, b: Block) -> str | None:
        """The axis along which the output and all operands that it moves are contiguous."""
        if b.combiner is None or not b.reducing or state.levels_of(b.name):
            return None
        if not b.init or analysis.has_data_reuse(state.func, b):
            return None
        extents = {i.name: i.extent.const for i in b.spatial}
        for axis in analysis.contiguous_axes(state.func, b):
            n = extents[axis]
            if n is not None and n >= self.lanes and analysis.is_contiguous(b, axis):
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
