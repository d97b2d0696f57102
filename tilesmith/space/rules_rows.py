"""Rules for GPUs that go beyond Ansor's: row operators in a single launch, reductions split over
blocks (split-K), and element-wise blocks whose number of threads is a decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.nodes import Binary, Expr, Load, children
from tilesmith.expr.walk import preorder
from tilesmith.ir.dependence import has_atomic_updates
from tilesmith.ir.function import Function, find_block
from tilesmith.ir.intrinsics import RUN
from tilesmith.ir.nodes import Block, walk
from tilesmith.ir.notes import HoldRow, ReduceAcross
from tilesmith.schedule.cache import CacheWrite, SetScope
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.iterators import SplitIterator
from tilesmith.schedule.kinds import Annotate, AutoUnroll, Bind, Unroll
from tilesmith.schedule.layout import Pad
from tilesmith.schedule.location import ComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.reduction import Rfactor
from tilesmith.schedule.sample import SampleChoice
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State
from tilesmith.space.rules_gpu import one_loop

THREADS = (32, 64, 128, 256, 512, 1024)
_PIECE = 4096  # elements of a long row that the threads of a block take together


def is_row_reduction(func: Function, b: Block, least: int) -> bool:
    """Whether the block reduces long contiguous rows whose elements are not reused. Others may be,
    such as a bias that is added to every row.
    """
    if b.combiner is None or not b.init:
        return False
    if analysis.has_data_reuse(func, b) and (not _has_rows(b) or _is_product(b)):
        return False
    if analysis.points(b)[1] < least and all(i.extent.const is not None for i in b.reducing):
        return False
    reducing = {i.name for i in b.reducing}
    loads = [x for x in b.loads if x.index and any(reducing & p.names for p in x.index)]
    return bool(loads) and all(x.index[-1].names & reducing for x in loads)


def _has_rows(b: Block) -> bool:
    """Whether an operand has an element for each iteration."""
    axes = {i.name for i in b.iters if i.extent.const != 1}
    return any(axes <= {n for p in x.index for n in p.names} for x in b.loads)


def _is_product(b: Block) -> bool:
    """Whether it sums products of different operands."""
    reducing = {i.name for i in b.reducing}

    def moved(e: Expr) -> set[str]:
        loads = (x for x in preorder(e, children) if isinstance(x, Load))
        return {x.buffer for x in loads if any(p.names & reducing for p in x.index)}

    every = (e for w in b.writes for e in preorder(w.value, children))
    pairs = [(moved(e.a), moved(e.b)) for e in every if isinstance(e, Binary) and e.op == "mul"]
    return any(left and right and left != right for left, right in pairs)


@dataclass(frozen=True)
class FuseRows:
    """A row operator such as softmax: each block of threads holds a row. It carries out the
    reductions along the row, each across all threads, and then the element-wise block.
    """

    threads: tuple[int, ...] = THREADS
    # Blocks that share a few long rows: numbers that divide lengths, and per multiprocessor.
    blocks: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048)
    blocks_each: tuple[float, ...] = (0.5, 1, 2, 4)
    longest: int = 8192
    widths: tuple[int, ...] = (4, 2, 1)  # elements that a thread moves at once
    rows: tuple[int, ...] = (1, 2, 4, 8, 16)  # of a block of threads, where there are many
    held: tuple[int, ...] = (0, 64)  # elements of a row that a thread keeps in registers

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
        """Splits the rows over blocks; a second launch joins their parts. Each block takes every
        n-th piece, so that the guard of a number that does not divide is the same for a piece.
        """
        *outer, last = [f"{b.name}.{i.name}" for i in b.reducing]
        steps: list[Step] = []
        if not outer:
            pieces = Split(last, (None, _PIECE))
            steps, outer = [pieces], [pieces.parts[0]]
        fused, loop = one_loop(outer)
        column = f"#{b.name}.blocks"
        split = Split(loop, (None, column))
        each = (int(n * state.task.target.num_multiprocessors) for n in self.blocks_each)
        sample = SampleChoice(column, tuple(sorted({*self.blocks, *each} - {0})))
        turned = Reorder((split.parts[1], split.parts[0]))
        return state.then(*steps, *fused, sample, split, turned, Rfactor(split.parts[1]))

    def _fused(self, state: State, b: Block, reductions: list[Block], count: int) -> State | None:
        threads = f"#{b.name}.threads"
        counts = tuple(n for n in self.threads if n <= state.task.target.max_threads)
        state = state.then(SampleChoice(threads, counts))
        columns: tuple[str | None, ...] = (None, threads)
        lengths = [max(1, analysis.length(x.iters[-1])) for x in (b, *reductions) if x.iters]
        widths = tuple(w for w in self.widths if all(n % w == 0 for n in lengths))
        if len(widths) > 1:
            columns = (*columns, f"#{b.name}.width")
            state = state.then(SampleChoice(f"#{b.name}.width", widths))
        own = b.name in {r.name for r in reductions}
        loops = [f"{b.name}.{i.name}" for i in b.spatial]
        outer, inner = loops[:count], loops[count:]
        steps, several = self._several(state, b, outer)
        try:
            if several is not None:
                state = state.then(*steps)
                outer = [*outer[:-1], *several]
            for r in reversed(reductions):
                if outer and r.name != b.name:
                    state = state.then(ComputeAt(r.name, outer[-1]))
                state = state.then(*_across(state, r, columns))
            if not own and inner:
                steps, loop = one_loop(inner)
                split = Split(loop, columns)
                bind = Bind(split.parts[1], "threadIdx.x")
                state = state.then(*steps, split, bind, *map(Unroll, split.parts[2:]))
                if outer:
                    column = f"#{b.name}.held"
                    note = Annotate(outer[-1], HoldRow(column))
                    state = state.then(SampleChoice(column, self.held), note)
            blocks = outer if several is None else outer[:-1]
            state = state.then(*(Bind(loop, "blockIdx.x") for loop in blocks))
            if several is not None:
                state = state.then(Bind(several[1], "threadIdx.y"))
        except ScheduleError:
            return None
        return state.then(done={b.name, *(r.name for r in reductions)})

    def _several(
        self, state: State, b: Block, outer: list[str]
    ) -> tuple[list[Step], tuple[str, ...] | None]:
        """Splits the last loop over rows, if there are so many that a block of threads may take
        several: of blocks as small as a warp, too few run at once.
        """
        if not outer or ".rf" in b.name:
            return [], None
        extent = b.spatial[len(outer) - 1].extent.number
        count = prod(i.extent.number for i in b.spatial[: len(outer)])
        most = count // (2 * max(1, state.task.target.num_multiprocessors))
        rows = tuple(n for n in self.rows if extent % n == 0 and n <= most)
        if len(rows) < 2:
            return [], None
        column = f"#{b.name}.rows"
        split = Split(outer[-1], (None, column), exact=True)
        return [SampleChoice(column, rows), split], split.parts

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
            if (inlined := state.attempt(Inline(p.name))) is not None:
                state = inlined
                left.append(b.name)  # it now reads what the inlined block read
    return state


def _across(state: State, b: Block, columns: tuple[str | None, ...]) -> list[Step]:
    """Spreads a reduction over threads: `columns` are the numbers of turns, of threads, and of
    elements that a thread takes at once. Of several loops the last is spread, if it is long.
    """
    path, now = find_block(state.func, b.name)
    loops = [f for f in path if f.name in now.reducing_loops]
    if analysis.length(loops[-1]) >= _PIECE // 4:
        loops = loops[-1:]
    steps, loop = one_loop([f.name for f in loops])
    split = Split(loop, columns)
    across = Annotate(split.parts[1], ReduceAcross("threadIdx.x"))
    return [*steps, split, across, *map(Unroll, split.parts[2:])]


def split_interleaved(state: State) -> Derived | None:
    """Splits the iterators by which an element-wise block interleaves the parts of a sum, such as
    the phases of a transposed convolution. It then permutes axes, so that the threads which sum can
    write the result themselves.
    """
    func, b = state.func, state.block
    parts = analysis.producers(func, b)
    divided = analysis.division(b) if b.combiner is None else None
    if divided is None or len(parts) != 1 or not analysis.has_data_reuse(func, parts[0]):
        return None
    split = state.attempt(SplitIterator(b.name, *divided))
    return None if split is None else Derived((split,), final=True)


_FEW_ZEROS = 8  # one of so many terms


def with_parts(state: State, axis: str, multiple: int) -> State | None:
    """The state in which a summed axis is a multiple, by zeros; None if that takes too many, or
    they would change the sum, or windows move along it.
    """
    func, b = state.func, state.block
    if any(axis in p.names and p.name != axis for x in b.loads for p in x.index):
        return None
    extent = next(i.extent.number for i in b.iters if i.name == axis)
    zeros = -extent % multiple
    if not zeros:
        return state
    if zeros * _FEW_ZEROS > extent:
        return None
    crop = [Inline(b.name)] if analysis.consumers(func, b) else []
    return state.attempt(Pad(b.name, ((axis, multiple),)), *crop)


@dataclass(frozen=True)
class SplitSums:
    """Splits the reduction of a block with data reuse over blocks, if its results alone are too few
    to keep the GPU busy. A second launch adds the parts up, and does what follows element by
    element. Each number of parts is a sketch. Zeros are appended where parts would not divide, or
    leave matrix instructions without whole steps.
    """

    parts: tuple[int, ...] = (2, 4, 8, 16)
    results: int = 2048  # per multiprocessor; with more, nothing is split
    most: int = 4096  # of all parts
    least: int = 64  # terms per part
    multiple: int = 1  # of which each part is
    # Of the launch that adds the parts up: neighbouring results of a thread, threads of a block.
    widths: tuple[int, ...] = (1, 2, 4)
    threads: tuple[int, ...] = (64, 128, 256, 512)

    def __call__(self, state: State) -> Derived | None:
        func, b = state.func, state.block
        if b.combiner is None or not b.init or b.name.endswith((".rf", ".local")):
            return None
        if not analysis.has_data_reuse(func, b) or not b.reducing:
            return None
        space, reduce = analysis.points(b)
        if space > self.results * state.task.target.num_multiprocessors:
            return None
        long = max(b.reducing, key=analysis.length)
        if not (extent := analysis.length(long)):
            return None
        derived = []
        for n in self.parts:
            if reduce // n < self.least:
                continue
            if n > 2 and space * n > self.most * state.task.target.num_multiprocessors:
                continue
            room = state if extent % (n * self.multiple) == 0 else None
            if self.multiple == 1:
                halves = all(func.all_buffers[x.buffer].dtype.bits == 16 for x in b.loads)
                room = with_parts(state, long.name, n * (RUN if halves else 1)) or room
            if room is None:
                continue
            name = b.name if room is state else f"{b.name}.pad"
            split = Split(f"{name}.{long.name}", (n, None), exact=True)
            if (after := room.attempt(split, Rfactor(split.parts[0]))) is not None:
                derived.append(self._finished(after, name))
        return Derived(tuple(derived)) if derived else None

    def _finished(self, state: State, name: str) -> State:
        """The sum of the parts, in registers: computed where its element-wise consumer uses it, or
        else a copy of it.
        """
        b = analysis.block(state.func, name)
        consumer = analysis.fusible_consumer(state.func, b, permuted=True)
        try:
            if consumer is None:
                kept = CacheWrite(name, "local")
                return self._joined(state.then(kept), kept.copy, name)
            local = SetScope(b.writes[0].buffer, "local")
            return self._joined(state, name, consumer.name, local)
        except ScheduleError:
            return state.then(done=[name])

    def _joined(self, state: State, name: str, user: str, *kept: Step) -> State:
        """Threads that add up the parts of a few neighbouring results each and use them."""
        path, b = find_block(state.func, user)
        *outer, last = (f.name for f in path)
        extent = max(1, analysis.length(b.iters[-1]))
        threads, column = f"#{user}.threads", f"#{user}.width"
        wide = Split(last, (None, column), exact=True)
        widths = tuple(w for w in self.widths if extent % w == 0)
        fused, loop = one_loop([*outer, wide.parts[0]])
        counts = tuple(n for n in self.threads if n <= state.task.target.max_threads)
        split = Split(loop, (None, threads))
        state = state.then(
            SampleChoice(column, widths), wide, *fused, SampleChoice(threads, counts), split,
            ComputeAt(name, split.parts[1]), *kept, Unroll(wide.parts[1]),
            Bind(split.parts[0], "blockIdx.x"), Bind(split.parts[1], "threadIdx.x"),
        )  # fmt: skip
        path, b = find_block(state.func, name)
        own = [f.name for f in path if f.owner == name]
        terms = [x for x in own if x in b.reducing_loops]
        results = [x for x in own if x not in b.reducing_loops]
        return state.then(Reorder((*terms, *results)), Unroll(results[-1]), done=[name, user])


@dataclass(frozen=True)
class AnnotateForGpu:
    """Binds the loops that no rule has bound: all spatial loops of a block are numbered together,
    and how many of them make a block of threads is a decision. So is the unroll depth.
    """

    unroll: tuple[int, ...] = (0, 16, 64, 512, 1024, 2048)
    threads: tuple[int, ...] = (64, 128, 256, 512)

    def __call__(self, state: State) -> Derived | None:
        return None

    def finish(self, state: State) -> State:
        for path, b in list(walk(state.func.body)):
            if any(f.kind != "serial" or f.owner != b.name for f in path):
                continue
            across = any(f.note(ReduceAcross) is not None for f in path)
            spatial = [f.name for f in path if f.name not in b.reducing_loops]
            if has_atomic_updates(b):
                spatial = [f.name for f in path]
            elif (b.scatters or b.is_running) and spatial and len(spatial) < len(path):
                # in order, by one thread
                rest = (f.name for f in path if f.name not in spatial)
                state = state.then(Reorder((*spatial, *rest)))
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
            steps, loop = one_loop(loops)
            loops = [loop]
        loop = loops[-1]
        points = prod(analysis.points(b)[: 2 if has_atomic_updates(b) else 1])
        widths = tuple(n for n in self.threads if n <= max(self.threads[0], points))
        column = f"#{b.name}.threads"
        split = Split(loop, (None, column))
        outer = [Bind(x, "blockIdx.x") for x in (*loops[:-1], split.parts[0])]
        sample = SampleChoice(column, widths)
        return [*steps, sample, split, *outer, Bind(split.parts[1], "threadIdx.x")]
