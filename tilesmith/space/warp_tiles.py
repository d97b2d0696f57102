"""The rule that tiles a block around a matrix instruction of one warp.

Warps of a block compute tiles side by side, each of several instructions, from operands in shared
memory that all threads copy. Iterators that the instruction does not divide are padded with zeros
on the way to shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilesmith.base.errors import ScheduleError
from tilesmith.ir.lookup import find_block
from tilesmith.ir.nodes import Intrinsic
from tilesmith.ir.notes import FetchWidth, PipelineStages
from tilesmith.schedule.cache import StorageAlign
from tilesmith.schedule.iterators import SplitIterator, open_domain
from tilesmith.schedule.kinds import Annotate, Bind, Unroll, Vectorize
from tilesmith.schedule.location import ReverseComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.schedule.step import Step
from tilesmith.schedule.unit import Tensorize
from tilesmith.space import analysis
from tilesmith.space.fragments import (
    read_shared,
    result_loops,
    share_of_work,
    with_plain_operands,
    with_room,
)
from tilesmith.space.instruction_match import Match, matches
from tilesmith.space.state import Derived, State

# Rows of shared memory are padded to 16 bytes more than a multiple of 32: eight of them then lie in
# different banks.
_MULTIPLE, _OFFSET = 16, 8
_WIDTH = 8  # elements of 16 bits that a thread copies at once, where they are contiguous
_LEAST_WORK = 0.3  # of what is computed, padding counted


@dataclass(frozen=True)
class TileByWarps:
    """Sketches in which one of the `intrinsics` computes a block: one for each that fits."""

    intrinsics: tuple[Intrinsic, ...]
    stages: tuple[int, ...] = (1, 2)
    most_depth: int = 4  # instructions of one step of the sum

    def __call__(self, state: State) -> Derived | None:
        b = state.block
        if open_domain(b) or b.tile or not b.reducing or state.levels_of(b.name):
            return None
        if state.func.all_buffers[b.writes[0].buffer].scope != "global":
            return None
        try:
            state = with_plain_operands(state)
        except ScheduleError:
            return None
        b = state.block
        derived: list[State] = []
        for unit in self.intrinsics:
            for match in matches(state.func, b, unit):
                if not _fits(state, match):
                    continue
                try:
                    derived += self._derive(state, match)
                except ScheduleError:
                    continue
                break
        return Derived(tuple(derived)) if derived else None

    def _derive(self, state: State, match: Match) -> Iterator[State]:
        state, name, last = with_room(state, match.sizes)
        (m, rows), (n, columns), (k, depth) = match.axes
        state = state.then(
            SplitIterator(name, m, rows), SplitIterator(name, n, columns),
            SplitIterator(name, k, depth),
        )  # fmt: skip
        outer, inner = ([f"{name}.{x}_{part}" for x in (m, n, k)] for part in ("outer", "inner"))
        b = find_block(state.func, name)[1]
        own = {*outer, *inner}
        rest = [i for i in b.iters if (i.bind.name or "") not in own]
        # What both operands move along, as a batch, leaves nothing to share.
        batch = analysis.shared_axes(b)
        tiled = [i.bind.name or "" for i in rest if i.kind == "S" and i.name not in batch]
        single = [i.bind.name or "" for i in rest if i.kind == "S" and i.name in batch]
        reducing = [i.bind.name or "" for i in rest if i.kind == "R"]
        samples = [SampleTile(x, 3) for x in (outer[0], *tiled, outer[1])]
        depths = SampleTile(outer[2], 2, max_innermost=self.most_depth)
        parts = [Split(s.loop, s.columns, exact=True) for s in samples]
        by_depth = Split(outer[2], depths.columns, exact=True)
        blocks = (*single, *(x.parts[0] for x in parts))
        virtual, warps = (tuple(x.parts[d] for x in parts) for d in (1, 2))
        steps = (*reducing, by_depth.parts[0])
        order = (*blocks, *virtual, *warps, *steps, by_depth.parts[1], *inner)
        state = state.then(*samples, depths, *parts, by_depth, Reorder(order))
        state = state.then(ReverseComputeAt(last, warps[-1]), done=[name, last])
        for axis, loops in (("blockIdx.x", blocks), ("vthread", virtual), ("threadIdx.x", warps)):
            state = state.then(*(Bind(x, axis) for x in loops))
        state = state.then(*_own_elements(state, name, last, (m, n)), Unroll(by_depth.parts[1]))
        state = _with_operands(state, name, steps[-1])
        column = f"#{name}.pipeline"
        yield state.then(
            SampleChoice(column, self.stages), Annotate(steps[-1], PipelineStages(column)),
            Tensorize(inner[0], match.intrinsic),
        )  # fmt: skip


def _fits(state: State, match: Match) -> bool:
    b = state.block
    if b.writes[0].index[-1].name != match.axes[1][0]:
        return False
    buffers = [x.buffer for x in b.loads]
    work = share_of_work(state, match.sizes)
    return work >= _LEAST_WORK and len(set(buffers)) == len(buffers)


def _own_elements(state: State, name: str, block: str, axes: tuple[str, str]) -> list[Step]:
    """Gives each thread the elements that it holds, as the instruction's fragment says."""
    others, rows, columns = result_loops(state.func, name, block, axes)
    by_row = Split(rows, (2, 8), exact=True)
    by_column = Split(columns, (2, 4, 2), exact=True)
    lanes = (by_row.parts[1], by_column.parts[1])
    inside = (by_row.parts[0], by_column.parts[0], by_column.parts[2])
    return [
        by_row,
        by_column,
        Reorder((*others, *lanes, *inside)),
        *(Bind(x, "threadIdx.x") for x in lanes),
        Vectorize(by_column.parts[2]),
    ]


def _with_operands(state: State, name: str, at: str) -> State:
    """Copies operands to shared memory in each step; those that are padded there."""
    for load in find_block(state.func, name)[1].loads:
        state, copy = read_shared(state, name, load.buffer, at)
        outer = next(f for f in find_block(state.func, copy)[0] if f.owner == copy)
        state = state.then(Annotate(outer.name, FetchWidth(_WIDTH)))
        if len(load.index) > 1:
            state = state.then(StorageAlign(copy, len(load.index) - 2, _MULTIPLE, _OFFSET))
    return state
