"""Rules for GPUs that go beyond Ansor's: row operators in a single launch, reductions split over
blocks (split-K), and element-wise blocks whose number of threads is a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.intervals import linear, row_major
from tilesmith.expr.ints import Int, of
from tilesmith.expr.nodes import Binary, Expr, Load, children
from tilesmith.expr.walk import preorder
from tilesmith.ir.dependence import has_atomic_updates
from tilesmith.ir.function import Function, find_block, find_loop
from tilesmith.ir.intrinsics import MMA_SIZE, RUN
from tilesmith.ir.nodes import Block, For, Iter, walk
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
from tilesmith.space.elements_gpu import SpreadElements, TileElementsForGpu
from tilesmith.space.rules_gpu import one_loop, over_threads, with_inlined, with_plain_operands

THREADS = (32, 64, 128, 256, 512, 1024)
WIDTHS = (16, 8, 4, 2, 1)  # elements that a thread moves at once
_ELEMENTS, _TILES = SpreadElements(), TileElementsForGpu()
_LONG_PIECE = 256  # elements of a row that is cut, from which on it is no window
_PIECE = 4096  # elements of a long row that the threads of a block take together


def is_row_reduction(func: Function, b: Block, least: int) -> bool:
    """Whether the block reduces long contiguous rows whose elements are not reused. Others may be,
    such as a bias that is added to every row.
    """
    if not is_memory_bound(func, b):
        return False
    if analysis.points(b)[1] < least and all(i.extent.const is not None for i in b.reducing):
        return False
    reducing = {i.name for i in b.reducing}
    last = _last_indices(func, b)
    return bool(last) and all(p.names & reducing for p in last)


def is_memory_bound(func: Function, b: Block) -> bool:
    """Whether the block is a reduction of elements that are not reused, but for those that each row
    or column shares.
    """
    if b.combiner is None or not b.init or b.intrinsic is not None or b.scatters:
        return False
    if analysis.window_axes(b) and not b.name.endswith(".rf") and not _has_groups(b):
        return False
    return not analysis.has_data_reuse(func, b) or (_has_rows(b) and not _is_product(b))


def _has_groups(b: Block) -> bool:
    """Whether it reduces groups that lie apart along one axis, and the whole of others."""
    spatial = {i.name for i in b.spatial}
    indices = [p for x in b.loads for p in x.index]
    moved = {n for p in indices if p.names & spatial for n in p.names}
    whole = [i for i in b.reducing if i.extent.const != 1 and i.name not in moved]
    moving = [i for i in b.reducing if i.extent.const != 1 and i.name in moved]
    if analysis.has_windows_apart(b) and _is_long_row(b):
        return True
    return not moving or (bool(whole) and analysis.has_windows_apart(b))


def _is_long_row(b: Block) -> bool:
    """Whether it reduces pieces of one row that are many times as long as a window."""
    return len(b.reducing) == 1 and analysis.length(b.reducing[0]) >= _LONG_PIECE


def contiguous_axes(func: Function, b: Block) -> set[str]:
    """The iterators along which the operands of a reduction are contiguous; "" stands for an index
    that is no iterator.
    """
    return {p.name or "" for p in _last_indices(func, b)}


def in_vectors(state: State, name: str) -> State:
    """The state with an element-wise block spread over threads that move 16 bytes or less each."""
    path, b = find_block(state.func, name)
    *outer, last = (f.name for f in path)
    most = max(1, 16 // state.func.all_buffers[b.writes[0].buffer].dtype.nbytes)
    widths = tuple(w for w in WIDTHS if w <= most and analysis.length(path[-1]) % w == 0)
    if len(widths) < 2:
        return over_threads(state, name, [*outer, last], (), THREADS)
    column = f"#{name}.width"
    wide = Split(last, (None, column))
    state = state.then(SampleChoice(column, widths), wide)
    return over_threads(state, name, [*outer, wide.parts[0]], wide.parts[1:], THREADS)


def reduced_nbytes(func: Function, b: Block) -> int:
    """The bytes of an element of what is reduced, at most."""
    reducing = {i.name for i in b.reducing}
    loads = (x for x in b.loads if any(reducing & p.names for p in x.index))
    return max((func.all_buffers[x.buffer].dtype.nbytes for x in loads), default=4)


def _last_indices(func: Function, b: Block) -> list[Int]:
    """Of each operand that is reduced, the index of the last dimension with several elements."""
    reducing = {i.name for i in b.reducing}
    last = []
    for x in b.loads:
        if any(reducing & p.names for p in x.index):
            pairs = zip(x.index, func.all_buffers[x.buffer].shape, strict=True)
            long = [p for p, n in pairs if n.const != 1]
            last.append(long[-1] if long else x.index[-1])
    return last


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
    """A row operator such as softmax: each block of threads holds a row, or several. It carries out
    the reductions along the row, each across all threads of the row, and then the element-wise
    block. Blocks share rows that are few and long: then each reduction has launches of its own.
    """

    threads: tuple[int, ...] = (1, 2, 4, 8, 16, *THREADS)
    # Blocks that share a few long rows: numbers that divide lengths, and per multiprocessor.
    blocks: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048)
    blocks_each: tuple[float, ...] = (0.5, 1, 2, 4)
    few: int = 2  # rows per multiprocessor, up to which blocks may share them
    longest: int = 8192
    waste: float = 1.02  # threads of whole warps, to elements of a row
    terms: int = 256  # of a thread, up to which fewer threads than a warp may take a row
    widths: tuple[int, ...] = WIDTHS
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # of a block, where there are many
    held: tuple[int, ...] = (0, 64)  # elements of a row that a thread keeps in registers
    at_once: tuple[int, ...] = (1, 2, 4, 8)  # pieces whose loads are written out together

    def __call__(self, state: State) -> Derived | None:
        name = state.block.name
        state = _divided(with_inlined(state, name), name)
        b = analysis.block(state.func, name)
        rows = self._rows(state, b)
        if rows is None:
            return None
        reductions, count = rows
        states = [self._fused(state, b, reductions, count)]
        number, terms = analysis.points(reductions[0])
        few = number <= self.few * state.task.target.num_multiprocessors
        if few and terms >= self.longest and not any(".rf" in r.name for r in reductions):
            if len(reductions) == 1 and analysis.points(b)[0] == number:
                states.append(self._fused(self._split(state, reductions[0]), b, reductions, count))
            else:
                states.append(self._apart(state, b, reductions))
        done = tuple(s for s in states if s is not None)
        return Derived(done, final=True, preferred=len(done) - 1) if done else None

    def _apart(self, state: State, b: Block, reductions: list[Block]) -> State | None:
        """Each reduction split over blocks, and what follows in a launch of its own."""
        for r in reductions:
            after = self._fused(self._split(state, r), r, [r], len(r.spatial))
            if after is None:
                return None
            state = after
        return in_vectors(state, b.name)

    def _split(self, state: State, b: Block) -> State:
        """Splits the rows over blocks; a second launch joins their parts. Each block takes every
        n-th piece, so that the guard of a number that does not divide is the same for a piece.
        """
        *outer, last = [f"{b.name}.{i.name}" for i in b.reducing]
        steps: list[Step] = []
        if prod(analysis.length(i) for i in b.reducing[:-1]) < min(self.blocks):
            pieces = Split(last, (None, _PIECE))
            steps, outer = [pieces], [*outer, pieces.parts[0]]
        fused, loop = one_loop(outer)
        column = f"#{b.name}.blocks"
        split = Split(loop, (None, column))
        each = (int(n * state.task.target.num_multiprocessors) for n in self.blocks_each)
        sample = SampleChoice(column, tuple(sorted({*self.blocks, *each} - {0})))
        turned = Reorder((split.parts[1], split.parts[0]))
        return state.then(*steps, *fused, sample, split, turned, Rfactor(split.parts[1]))

    def _fused(self, state: State, b: Block, reductions: list[Block], count: int) -> State | None:
        func = state.func
        b, *reductions = (analysis.block(func, x.name) for x in (b, *reductions))
        if prod(max(1, analysis.length(i)) for i in b.spatial[count:]) == 1:
            count = len(b.spatial)
        threads, at_once = f"#{b.name}.threads", f"#{b.name}.at_once"
        loops = [f"{b.name}.{i.name}" for i in b.spatial]
        outer, inner = loops[:count], loops[count:]
        terms = min(analysis.points(r)[1] for r in reductions)
        steps, several = self._several(state, b, outer, terms)
        counts = self._counts(state, reductions, 0 if several else state.task.target.warp_size)
        state = state.then(SampleChoice(threads, counts), SampleChoice(at_once, self.at_once))
        columns = [at_once, threads]
        own = b.name in {r.name for r in reductions}
        ended = [] if own or len(b.spatial) == count else [b.spatial[count:]]
        passes = [*(r.reducing for r in reductions), *ended]
        one_row = all(_is_one_row(func, r, r.reducing) for r in reductions)
        one_row = one_row and all(_is_one_row(func, b, iters) for iters in ended)
        widths = self._widths(func, reductions, passes, one_row)
        if len(widths) > 1:
            columns.append(f"#{b.name}.width")
            state = state.then(SampleChoice(f"#{b.name}.width", widths))
        try:
            if several is not None:
                state = state.then(*steps)
                outer = [*outer[:-1], *several]
            for r in reversed(reductions):
                if outer and r.name != b.name:
                    state = state.then(ComputeAt(r.name, outer[-1]))
                state = state.then(*_across(state, r, columns, one_row))
            if not own and inner:
                steps, parts = _spread(
                    [find_loop(state.func, n)[1] for n in inner], columns, one_row
                )
                bind = Bind(parts[0], "threadIdx.x")
                state = state.then(*steps, bind, *map(Unroll, parts[1:]))
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

    def _counts(self, state: State, reductions: list[Block], least: int) -> tuple[int, ...]:
        """Numbers of threads of a row, from about `least` on."""
        target = state.task.target
        most = max(analysis.points(r)[1] for r in reductions)
        if any(i.extent.const is None for r in reductions for i in r.reducing):
            return tuple(n for n in self.threads if target.warp_size <= n <= target.max_threads)
        least = max(least, min(target.warp_size, most // self.terms))
        counts = {n for n in self.threads if least <= n < max(2 * most, least + 1)}
        # Whole warps that have about as many elements as the row has.
        warp = max(1, target.warp_size)
        for pieces in range(2, 17):
            n = -(-most // (pieces * warp)) * warp
            if warp < n and n * pieces <= self.waste * most:
                counts.add(n)
        return tuple(sorted(n for n in counts if n <= target.max_threads))

    def _widths(
        self, func: Function, reductions: list[Block], passes: list[tuple[Iter, ...]], one_row: bool
    ) -> tuple[int, ...]:
        """Those that divide the rows, up to 16 bytes of what is read."""
        rows = [[max(1, analysis.length(i)) for i in iters] for iters in passes if iters]
        lengths = [prod(row) if one_row else row[-1] for row in rows]
        most = max(1, 16 // max(reduced_nbytes(func, r) for r in reductions))
        fits = (w for w in self.widths if w <= most and all(n % w == 0 for n in lengths))
        return tuple(w for w in fits if all(_is_aligned(func, r, w) for r in reductions))

    def _several(
        self, state: State, b: Block, outer: list[str], terms: int
    ) -> tuple[list[Step], tuple[str, ...] | None]:
        """Splits the last loop over rows, if there are so many that a block of threads may take
        several, or if they are so short that they share a warp: of blocks as small as a warp, too
        few run at once.
        """
        if not outer or ".rf" in b.name:
            return [], None
        extent = b.spatial[len(outer) - 1].extent.number
        count = prod(i.extent.number for i in b.spatial[: len(outer)])
        target = state.task.target
        most = count // (2 * max(1, target.num_multiprocessors))
        most = min(max(most, 2 * target.warp_size // max(1, terms)), 2 * extent)
        rows = tuple(n for n in self.rows if n <= most)
        exact = tuple(n for n in rows if extent % n == 0)
        rows = exact if len(exact) > 2 else rows
        if len(rows) < 2:
            return [], None
        column = f"#{b.name}.rows"
        split = Split(outer[-1], (None, column), exact=rows == exact)
        return [SampleChoice(column, rows), split], split.parts

    def _rows(self, state: State, b: Block) -> tuple[list[Block], int] | None:
        """The reductions that end in the block, in program order, and the number of leading axes
        that number the rows. What is done is read as inputs are.
        """
        func = state.func
        if b.combiner is not None and not is_row_reduction(func, b, 2):
            return None
        found: dict[str, Block] = {b.name: b} if b.combiner is not None else {}
        counts = {len(b.spatial)} if b.combiner is not None else set()
        left = [b]
        while left:
            c = left.pop()
            for p in analysis.producers(func, c):
                if p.name in found or p.name in state.done:
                    continue
                if not is_row_reduction(func, p, 2) or analysis.is_output(func, p):
                    return None
                axes = _leading_axes(p, c)
                if axes is None or (found and _long(p) != _long(next(iter(found.values())))):
                    return None
                counts |= {axes} if c is b and b.combiner is None else set()
                found[p.name] = p
                left.append(p)
        if not found or len(counts) != 1:
            return None
        inner = [r for r in found.values() if r.name != b.name]
        names = {c.name for r in inner for c in analysis.consumers(func, r)}
        if not names <= {b.name, *found}:
            return None  # a result is used elsewhere
        order = [o.name for _, o in walk(func.body)]
        return sorted(found.values(), key=lambda r: order.index(r.name)), counts.pop()


def _long(b: Block) -> list[Int]:
    """The extents of its axes, without those of one element."""
    return [i.extent for i in b.spatial if i.extent.const != 1]


def _leading_axes(p: Block, c: Block) -> int | None:
    """How many leading iterators of a consumer number the results of a producer, whatever it reads
    at dimensions of one element; None if others do.
    """
    most = 0
    for w in p.writes:
        long = [k for k, q in enumerate(w.index) for i in p.spatial
                if i.name == q.name and i.extent.const != 1]  # fmt: skip
        for x in c.loads:
            if x.buffer != w.buffer:
                continue
            at, own = 0, list(c.spatial)
            for k in long:
                while at < len(own) and own[at].extent.const == 1:
                    at += 1
                if at == len(own) or x.index[k].name != own[at].name:
                    return None
                (i,) = (i for i in p.spatial if i.name == w.index[k].name)
                if i.extent != own[at].extent:
                    return None
                at += 1
            if len(long) != len(_long(p)):
                return None
            most = max(most, at)
    return most


def _is_one_row(func: Function, b: Block, iters: tuple[Iter, ...]) -> bool:
    """Whether what the block reads along these iterators, or writes, lies in one piece."""
    iters = tuple(i for i in iters if i.extent.const != 1)
    names = {i.name for i in iters}
    every = [(x.buffer, x.index) for x in b.loads] if b.reducing else []
    every += [(w.buffer, w.index) for w in b.writes] if not b.reducing else []
    for buffer, index in every:
        if not any(p.names & names for p in index):
            continue
        memory = func.all_buffers[buffer]
        address = linear(index, row_major(memory.shape))
        step = of(1)
        for i in reversed(iters):
            if address.coefficient(i.name) != step or memory.layout is not None:
                return False
            step = step * i.extent
    return True


def _is_aligned(func: Function, b: Block, width: int) -> bool:
    """Whether the rows that a reduction reads begin and end at multiples of so many elements."""
    reducing = {i.name for i in b.reducing}
    for x in b.loads:
        if any(reducing & p.names for p in x.index):
            address = linear(x.index, row_major(func.all_buffers[x.buffer].shape))
            begins = (c for m, c in address.terms.items() if not reducing & Int({m: c}).names)
            if any(c % width for c in begins):
                return False
    # The end of the last row cuts no vector.
    ends = (p.terms.get((), 0) + 1 for p in b.domain if b.reducing[-1].name in p.names)
    return all(n % width == 0 for n in ends)


def _divided(state: State, name: str) -> State:
    """The state with an iterator split by whose quotient a block reads what rows have, as channels
    read what their group has.
    """
    b = analysis.block(state.func, name)
    divided = analysis.division(b) if b.combiner is None and not b.reducing else None
    after = None if divided is None else state.attempt(SplitIterator(name, *divided))
    return state if after is None else after


def _across(state: State, b: Block, columns: Sequence[str], one_row: bool) -> list[Step]:
    """Spreads a reduction over threads."""
    path, now = find_block(state.func, b.name)
    loops = [f for f in path if f.name in now.reducing_loops]
    steps, parts = _spread(loops, columns, one_row)
    across = Annotate(parts[0], ReduceAcross("threadIdx.x"))
    return [*steps, across, *map(Unroll, parts[1:])]


def _spread(
    loops: Sequence[For], columns: Sequence[str], one_row: bool
) -> tuple[list[Step], list[str]]:
    """Steps that spread loops over threads, and the loops over threads and inside of these.
    `columns` are the numbers of pieces at once, of threads, and of elements that a thread moves at
    once. Of several loops that lie apart, the last is spread, if it is long.
    """
    loops = [f for f in loops if f.extent.const != 1] or loops[-1:]
    names = [f.name for f in loops]
    if not one_row and analysis.length(loops[-1]) >= _PIECE // 4:
        names = names[-1:]
    steps: list[Step] = []
    wide: list[str] = []
    if len(names) > 1 and len(columns) > 2 and not one_row:
        cut = Split(names[-1], (None, columns[2]))
        steps, names, wide = [cut], [*names[:-1], cut.parts[0]], [cut.parts[1]]
        columns = columns[:2]
    fused, loop = one_loop(names)
    split = Split(loop, (None, *columns))
    first, pieces, threads, *elements = split.parts
    inner = [pieces, *elements, *wide]
    return [*steps, *fused, split, Reorder((first, threads, *inner))], [threads, *inner]


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
_STEP = 16  # terms of a tile in shared memory; parts that are multiples have such tiles


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
    results: int = 4096  # per multiprocessor; with more, nothing is split
    most: int = 16384  # of all parts
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
        with suppress(ScheduleError):
            state = with_plain_operands(state)
        b, derived = state.block, []
        for n in self.parts:
            if reduce // n < self.least:
                continue
            if n > 2 and space * n > self.most * state.task.target.num_multiprocessors:
                continue
            room = state if extent % (n * self.multiple) == 0 else None
            if self.multiple == 1:
                halves = all(func.all_buffers[x.buffer].dtype.bits == 16 for x in b.loads)
                # Steps of wgmma, or else of mma, which takes thin products anyway.
                steps = (RUN, 2 * MMA_SIZE, MMA_SIZE) if halves else (_STEP, 1)
                sizes = [n * size for size in steps]
                padded = (with_parts(state, long.name, m) for m in sizes)
                room = next((p for p in padded if p is not None), room)
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
    and how many of them make a block of threads is a decision. So is the unroll depth. Threads of
    element-wise blocks have several vectors each.
    """

    unroll: tuple[int, ...] = (0, 16, 64, 512, 1024, 2048)
    threads: tuple[int, ...] = (64, 128, 256, 512)
    elements: SpreadElements = _ELEMENTS
    tiles: TileElementsForGpu = _TILES
    many: int = 1 << 16  # elements, from which on a block may pass them through shared memory

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
                turned = self._turned(state, b)
                state = turned or state.then(*self._bind(state, b, spatial))
        for path, b in list(walk(state.func.body)):
            at = [k for k, f in enumerate(path) if f.note(ReduceAcross) is not None]
            if at and not any(f.kind == "serial" for f in path[at[-1] + 1 :]):
                continue  # what a thread has at once is decided
            held = state.func.all_buffers[b.writes[0].buffer].scope == "fragment"
            if b.reducing and b.intrinsic is None and not held:
                column = f"#{b.name}.unroll"
                state = state.then(SampleChoice(column, self.unroll), AutoUnroll(b.name, column))
        return state

    def _turned(self, state: State, b: Block) -> State | None:
        """The state with an element-wise block tiled that reads in another order than it writes."""
        if b.reducing or b.intrinsic is not None or not all(map(analysis.length, b.spatial)):
            return None
        return self.tiles.turned(state, b.name) if analysis.points(b)[0] >= self.many else None

    def _bind(self, state: State, b: Block, loops: list[str]) -> list[Step]:
        path = [f.name for f in find_block(state.func, b.name)[0]]
        steps: list[Step] = []
        own = [i.bind.name for i in b.spatial]
        if path == loops == own and b.intrinsic is None and all(map(analysis.length, b.spatial)):
            return self.elements.steps(state, b, loops)
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
