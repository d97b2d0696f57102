"""The rule that tiles a block around a matrix instruction of one warp.

Warps of a block compute tiles side by side, each of several instructions, from operands in shared
memory that all threads copy. Iterators that the instruction does not divide are padded with zeros
on the way to shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilesmith.base.errors import ScheduleError
from tilesmith.ir.dependence import find_block
from tilesmith.ir.nodes import Intrinsic
from tilesmith.schedule.cache import CacheRead, CacheWrite, SetScope, StorageAlign
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.iterators import SplitIterator
from tilesmith.schedule.kinds import Annotate, Bind, Unroll, Vectorize
from tilesmith.schedule.layout import Pad
from tilesmith.schedule.location import ComputeAt, ReverseComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.schedule.step import Step
from tilesmith.schedule.unit import Tensorize
from tilesmith.space import analysis
from tilesmith.space.instruction_match import Match, matches
from tilesmith.space.state import Derived, State
from tilesmith.space.tensor_cores import result_loops

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
        if b.domain or b.tile or not b.reducing or state.levels_of(b.name):
            return None
        if state.func.all_buffers[b.writes[0].buffer].scope != "global":
            return None
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
        state, name, last = _with_room(state, match)
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
            SampleChoice(column, self.stages), Annotate(steps[-1], "pipeline", column),
            Tensorize(inner[0], match.intrinsic),
        )  # fmt: skip


def _fits(state: State, match: Match) -> bool:
    b = state.block
    work = 1.0
    for i in b.iters:
        n, size = i.extent.const or 1, match.sizes.get(i.name, 1)
        work *= n / (-(-n // size) * size)
    if b.writes[0].index[-1].name != match.axes[1][0]:
        return False
    buffers = [x.buffer for x in b.loads]
    return work >= _LEAST_WORK and len(set(buffers)) == len(buffers)


def _with_room(state: State, match: Match) -> tuple[State, str, str]:
    """The state with extents that the instruction divides and results in fragments; the names of
    the block and of the one that stores its results.
    """
    func, b = state.func, state.block
    consumer = analysis.fusible_consumer(func, b)
    name, padding = b.name, match.padding(b)
    if padding:
        state = state.then(Pad(name, padding))
        if consumer is not None:  # what reads the result crops it
            state = state.then(Inline(name))
        last, name = (name if consumer is None else consumer.name), f"{name}.pad"
    elif consumer is None:
        if not analysis.is_output(func, b):
            raise ScheduleError(f"{name} has several readers")
        state = state.then(CacheWrite(name, "fragment"))
        return state, f"{name}.fragment", name
    else:
        last = consumer.name
    made = find_block(state.func, name)[1].writes[0].buffer
    return state.then(SetScope(made, "fragment")), name, last


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
    params = {p.name for p in state.func.params}
    for load in find_block(state.func, name)[1].loads:
        copy = load.buffer
        if copy not in params and copy.endswith(".pad"):
            state = state.then(ComputeAt(copy, at), SetScope(copy, "shared"), done=[copy])
        else:
            read = CacheRead(name, load.buffer, "shared")
            copy = read.copy
            state = state.then(read, ComputeAt(copy, at), done=[copy])
        outer = next(f for f in find_block(state.func, copy)[0] if f.owner == copy)
        state = state.then(Annotate(outer.name, "fetch_width", _WIDTH))
        if len(load.index) > 1:
            state = state.then(StorageAlign(copy, len(load.index) - 2, _MULTIPLE, _OFFSET))
    return state
