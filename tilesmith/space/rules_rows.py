"""The rule for GPUs that computes row operators, such as softmax, in a single launch, or in a few
where blocks share rows that are few and long.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.ir.function import Function, find_block, find_loop
from tilesmith.ir.nodes import Block, For, Iter, walk
from tilesmith.ir.notes import HoldRow, ReduceAcross
from tilesmith.schedule.iterators import SplitIterator
from tilesmith.schedule.kinds import Annotate, Bind, Unroll
from tilesmith.schedule.location import ComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.reduction import Rfactor
from tilesmith.schedule.sample import SampleChoice
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State
from tilesmith.space.row_analysis import (
    has_aligned_rows,
    is_one_row,
    is_row_reduction,
    leading_axes,
    long_extents,
    reduced_nbytes,
)
from tilesmith.space.rules_gpu import one_loop, over_threads, with_inlined

THREADS = (32, 64, 128, 256, 512, 1024)
WIDTHS = (16, 8, 4, 2, 1)  # elements that a thread moves at once
_PIECE = 4096  # elements of a long row that the threads of a block take together


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
        if not outer and inner and b.name not in {r.name for r in reductions}:
            # A single row: its loops are in one of a single step, where the reductions are, too.
            whole = Split(inner[0], (1, None))
            state, outer, inner = state.then(whole), [whole.parts[0]], [whole.parts[1], *inner[1:]]
        terms = min(analysis.points(r)[1] for r in reductions)
        steps, several = self._several(state, b, outer, terms)
        counts = self._counts(state, reductions, 0 if several else state.task.target.warp_size)
        state = state.then(SampleChoice(threads, counts), SampleChoice(at_once, self.at_once))
        columns = [at_once, threads]
        own = b.name in {r.name for r in reductions}
        ended = [] if own or len(b.spatial) == count else [b.spatial[count:]]
        passes = [*(r.reducing for r in reductions), *ended]
        one_row = all(is_one_row(func, r, r.reducing) for r in reductions)
        one_row = one_row and all(is_one_row(func, b, iters) for iters in ended)
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
        return tuple(w for w in fits if all(has_aligned_rows(func, r, w) for r in reductions))

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
        # A guard for the last block costs less than blocks of too few threads.
        rows = exact if len(exact) > 2 and 8 * exact[-1] >= rows[-1] else rows
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
                axes = leading_axes(p, c)
                if axes is None or (
                    found and long_extents(p) != long_extents(next(iter(found.values())))
                ):
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
