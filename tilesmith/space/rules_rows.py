"""Rules for GPUs that go beyond Ansor's: row operators in a single launch, reductions split over
blocks, and element-wise blocks whose number of threads is a decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilesmith.base.errors import ScheduleError
from tilesmith.ir.dependence import find_block
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, walk
from tilesmith.schedule.automatic import AutoUnroll
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.kinds import Annotate, Bind
from tilesmith.schedule.location import ComputeAt
from tilesmith.schedule.loops import Fuse, Split
from tilesmith.schedule.reduction import Rfactor
from tilesmith.schedule.sample import SampleChoice
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.state import Derived, State

THREADS = (32, 64, 128, 256, 512, 1024)


def is_row_reduction(func: Function, b: Block, least: int) -> bool:
    """Whether the block reduces long contiguous rows whose elements are not reused."""
    if b.combiner is None or not b.init or analysis.has_data_reuse(func, b):
        return False
    if analysis.points(b)[1] < least and all(i.extent.const is not None for i in b.reducing):
        return False
    reducing = {i.name for i in b.reducing}
    loads = [x for x in b.loads if x.index and any(reducing & p.names for p in x.index)]
    return bool(loads) and all(x.index[-1].names & reducing for x in loads)


@dataclass(frozen=True)
class FuseRows:
    """A row operator such as softmax: each block of threads holds a row. It carries out the
    reductions along the row, each across all threads, and then the element-wise block.
    """

    threads: tuple[int, ...] = THREADS
    blocks: tuple[int, ...] = (32, 66, 132, 264, 528)  # a few long rows are split over so many
    longest: int = 8192

    def __call__(self, state: State) -> Derived | None:
        name = state.block.name
        state = _inlined(state, name)
        func, b = state.func, analysis.block(state.func, name)
        least = state.task.target.warp_size
        rows = self._rows(func, b, least)
        if rows is None:
            return None
        reductions, count = rows
        states = [self._fused(state, b, reductions, count)]
        few = analysis.points(reductions[0])[0] < state.task.target.num_multiprocessors
        long = analysis.points(reductions[0])[1] >= self.longest
        if few and long and len(reductions) == 1 and not reductions[0].name.endswith(".rf"):
            states.append(self._fused(self._split(state, reductions[0]), b, reductions, count))
        done = tuple(s for s in states if s is not None)
        return Derived(done, final=True, preferred=len(done) - 1) if done else None

    def _split(self, state: State, b: Block) -> State:
        """Splits the rows over blocks; a second launch joins their parts."""
        steps, loop = _one_loop([f"{b.name}.{i.name}" for i in b.reducing])
        column = f"#{b.name}.blocks"
        split = Split(loop, (column, None))
        sample = SampleChoice(column, self.blocks)
        return state.then(*steps, sample, split, Rfactor(split.parts[0]))

    def _fused(self, state: State, b: Block, reductions: list[Block], count: int) -> State | None:
        column = f"#{b.name}.threads"
        widths = tuple(n for n in self.threads if n <= state.task.target.max_threads)
        state = state.then(SampleChoice(column, widths))
        own = b.name in {r.name for r in reductions}
        loops = [f"{b.name}.{i.name}" for i in b.spatial]
        outer, inner = loops[:count], loops[count:]
        try:
            for r in reversed(reductions):
                if outer and r.name != b.name:
                    state = state.then(ComputeAt(r.name, outer[-1]))
                state = state.then(*_across(state, r, column))
            if not own and inner:
                steps, loop = _one_loop(inner)
                split = Split(loop, (None, column))
                state = state.then(*steps, split, Bind(split.parts[1], "threadIdx.x"))
            state = state.then(*(Bind(loop, "blockIdx.x") for loop in outer))
        except ScheduleError:
            return None
        return state.then(done={b.name, *(r.name for r in reductions)})

    def _rows(self, func: Function, b: Block, least: int) -> tuple[list[Block], int] | None:
        """The reductions that end in the block, in program order, and the number of leading axes
        that number the rows.
        """
        if b.combiner is not None and not is_row_reduction(func, b, least):
            return None
        found: dict[str, Block] = {b.name: b} if b.combiner is not None else {}
        count = len(b.spatial)
        left = [b]
        while left:
            c = left.pop()
            for p in analysis.producers(func, c):
                if p.name in found:
                    continue
                if not is_row_reduction(func, p, least) or analysis.is_output(func, p):
                    return None
                axes = len(p.spatial)
                if analysis.common_outer_axes(func, p, c) != axes or axes > count:
                    return None
                if found and axes != min(len(r.spatial) for r in found.values()):
                    return None
                found[p.name] = p
                left.append(p)
        if not found:
            return None
        count = min(len(r.spatial) for r in found.values())
        inner = [r for r in found.values() if r.name != b.name]
        names = {c.name for r in inner for c in analysis.consumers(func, r)}
        if not names <= {b.name, *found}:
            return None  # a result is used elsewhere
        order = [o.name for _, o in walk(func.body)]
        return sorted(found.values(), key=lambda r: order.index(r.name)), count


def _inlined(state: State, name: str) -> State:
    """The state with element-wise blocks between the node and the reductions it uses inlined."""
    left, seen = [name], {name}
    while left:
        b = analysis.block(state.func, left.pop())
        for p in analysis.producers(state.func, b):
            if p.name in seen:
                continue
            seen.add(p.name)
            if p.combiner is not None or analysis.is_output(state.func, p):
                left.append(p.name)
                continue
            try:
                state = state.then(Inline(p.name))
            except ScheduleError:
                continue
            left.append(b.name)  # it now reads what the inlined block read
    return state


def _one_loop(loops: list[str]) -> tuple[list[Step], str]:
    """The steps that make one loop of several, and its name."""
    if len(loops) == 1:
        return [], loops[0]
    fuse = Fuse(tuple(loops))
    return [fuse], fuse.fused


def _across(state: State, b: Block, column: str) -> list[Step]:
    """Spreads a reduction over `column` threads."""
    path, now = find_block(state.func, b.name)
    steps, loop = _one_loop([f.name for f in path if f.name in now.reducing_loops])
    split = Split(loop, (None, column))
    return [*steps, split, Annotate(split.parts[1], "reduce_across", "threadIdx.x")]


@dataclass(frozen=True)
class SplitSums:
    """Splits the reduction of a block with data reuse over blocks, if its results alone are too few
    to keep the GPU busy. A second launch adds the parts up, and does what follows element by
    element. Each number of parts is a sketch.
    """

    parts: tuple[int, ...] = (2, 4, 8, 16)
    results: int = 1024  # per multiprocessor; with more, nothing is split
    least: int = 64  # terms per part

    def __call__(self, state: State) -> Derived | None:
        func, b = state.func, state.block
        if b.combiner is None or not b.init or b.name.endswith((".rf", ".local")):
            return None
        if not analysis.has_data_reuse(func, b) or not b.reducing:
            return None
        space, reduce = analysis.points(b)
        if space > self.results * state.task.target.num_multiprocessors:
            return None
        long = max(b.reducing, key=lambda i: i.extent.const or 0)
        derived = []
        for n in self.parts:
            if (long.extent.const or 1) % n or reduce // n < self.least:
                continue
            loop = f"{b.name}.{long.name}"
            split = Split(loop, (n, None), exact=True)
            try:
                after = state.then(split, Rfactor(split.parts[0]))
            except ScheduleError:
                continue
            derived.append(self._finished(after, b.name))
        return Derived(tuple(derived)) if derived else None

    def _finished(self, state: State, name: str) -> State:
        """The sum of the parts, computed where its element-wise consumer uses it."""
        b = analysis.block(state.func, name)
        consumer = analysis.fusible_consumer(state.func, b)
        if consumer is not None:
            path, _ = find_block(state.func, consumer.name)
            try:
                return state.then(ComputeAt(name, path[-1].name), done=[name, consumer.name])
            except ScheduleError:
                pass
        return state.then(done=[name])


@dataclass(frozen=True)
class AnnotateForGpu:
    """Binds the loops that no rule has bound: all spatial loops of a block are numbered together,
    and how many of them make a block of threads is a decision. So is the unroll depth.
    """

    unroll: tuple[int, ...] = (0, 16, 64, 512, 1024)
    threads: tuple[int, ...] = (64, 128, 256, 512)

    def __call__(self, state: State) -> Derived | None:
        return None

    def finish(self, state: State) -> State:
        for path, b in list(walk(state.func.body)):
            if any(f.kind != "serial" or f.owner != b.name for f in path):
                continue
            across = any(f.note("reduce_across") is not None for f in path)
            spatial = [f.name for f in path if f.name not in b.reducing_loops]
            if spatial and not across:
                state = state.then(*self._bind(state, b, spatial))
        for _, b in list(walk(state.func.body)):
            if b.reducing and b.intrinsic is None:
                column = f"#{b.name}.unroll"
                state = state.then(SampleChoice(column, self.unroll), AutoUnroll(b.name, column))
        return state

    def _bind(self, state: State, b: Block, loops: list[str]) -> list[Step]:
        path = [f.name for f in find_block(state.func, b.name)[0]]
        steps: list[Step] = []
        if path[: len(loops)] == loops:
            steps, loop = _one_loop(loops)
            loops = [loop]
        loop = loops[-1]
        points = prod(analysis.points(b)[:1])
        widths = tuple(n for n in self.threads if n <= max(self.threads[0], points))
        column = f"#{b.name}.threads"
        split = Split(loop, (None, column))
        outer = [Bind(x, "blockIdx.x") for x in (*loops[:-1], split.parts[0])]
        sample = SampleChoice(column, widths)
        return [*steps, sample, split, *outer, Bind(split.parts[1], "threadIdx.x")]
