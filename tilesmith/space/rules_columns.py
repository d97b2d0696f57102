"""A rule for GPUs: reductions of which a kept axis is contiguous in memory, such as column sums and
softmax over an axis that is not the last. Neighbouring threads take neighbouring columns.
"""

from __future__ import annotations

from itertools import pairwise

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.ir.function import Function, find_block
from tilesmith.ir.nodes import Block, walk
from tilesmith.ir.notes import HoldRow, ReduceAcross
from tilesmith.schedule.iterators import MergeIterators
from tilesmith.schedule.kinds import Annotate, Bind, Unroll
from tilesmith.schedule.location import ComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.reduction import Rfactor
from tilesmith.schedule.sample import SampleChoice
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State
from tilesmith.space.row_analysis import (
    contiguous_axes,
    is_memory_bound,
    reduced_nbytes,
    weighted_axes,
)
from tilesmith.space.rules_gpu import one_loop, with_inlined
from tilesmith.space.rules_rows import in_vectors

_PIECE = 512  # elements that follow one another in memory, at least, of each block's part


def merge_neighbours(state: State) -> Derived | None:
    """Merges axes that index neighbouring dimensions wherever they occur, if the program's
    reductions are bound by memory. Rows and columns are then as long as they can be.
    """
    func = state.func
    if state.steps or not any(b.combiner is not None for _, b in walk(func.body)):
        return None
    if not all(b.combiner is None or is_memory_bound(func, b) for _, b in walk(func.body)):
        return None
    merged = _merged(state)
    return None if merged is state else Derived((merged,), final=True)


def _merged(state: State) -> State:
    for _, b in walk(state.func.body):
        for i, j in pairwise(b.iters):
            if i.kind == j.kind and min(analysis.length(i), analysis.length(j)) > 1:
                after = state.attempt(MergeIterators(b.name, (i.name, j.name)))
                if after is not None:
                    return _merged(after)
    return state


@dataclass(frozen=True)
class _Columns:
    """Reductions in program order that end in a block; the iterators of that block which number
    the columns, and the one of them along which memory is contiguous.
    """

    reductions: tuple[Block, ...]
    kept: tuple[str, ...]
    across: str
    along: dict[str, str]  # the contiguous iterator of each reduction


@dataclass(frozen=True)
class FuseColumns:
    """Each thread takes a few neighbouring columns; threads with other numbers of the axis y take
    other rows of the same columns and join what they have. Where columns are too few to keep the
    GPU busy, blocks take parts of the rows, which a second launch joins.
    """

    threads: tuple[int, ...] = (8, 16, 32, 64, 128, 256)  # along the contiguous axis
    narrow: int = 256  # axes up to this length may have as many threads as elements
    teams: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # threads of a column
    several: tuple[int, ...] = (1, 2, 4, 8)  # of the other kept axes
    widths: tuple[int, ...] = (1, 2, 4, 8, 16)
    rows: tuple[int, ...] = (1, 2, 4, 8, 16)  # of a thread at once
    held: tuple[int, ...] = (0, 32)
    parts: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    results: int = 1024  # for each multiprocessor; with more, rows are not split over blocks
    least: int = 32  # terms of a part
    few: int = 64  # columns for each multiprocessor, up to which several reductions may be apart

    def __call__(self, state: State) -> Derived | None:
        name = state.block.name
        state = with_inlined(state, name)
        columns = self._columns(state, analysis.block(state.func, name))
        if columns is None:
            return None
        states = [self._fused(state, name, columns)]
        b, first = analysis.block(state.func, name), columns.reductions[0]
        if len(columns.reductions) == 1 and analysis.points(b)[0] == analysis.points(first)[0]:
            if (split := self._split(state, first, columns.along[first.name])) is not None:
                states.append(self._fused(split, name, columns))
        elif analysis.points(first)[0] <= self.few * state.task.target.num_multiprocessors:
            states.append(self._apart(state, name, columns))
        done = tuple(s for s in states if s is not None)
        # Sums with weights are products as well; parts of theirs are not.
        plain = all(is_memory_bound(state.func, r) for r in columns.reductions)
        final = plain or name.endswith(".rf")
        return Derived(done, final=final, preferred=len(done) - 1) if done else None

    def _apart(self, state: State, name: str, columns: _Columns) -> State | None:
        """Each reduction split over blocks, and what follows in a launch of its own."""
        for r in columns.reductions:
            along = columns.along[r.name]
            split = self._split(state, r, along)
            kept = tuple(i.name for i in r.spatial)
            own = _Columns((r,), kept, along, {r.name: along})
            after = None if split is None else self._fused(split, r.name, own)
            if after is None:
                return None
            state = after
        return in_vectors(state, name)

    def _columns(self, state: State, b: Block) -> _Columns | None:
        func = state.func
        found: dict[str, tuple[Block, dict[str, str]]] = {}  # and its axes among those of `b`
        if b.combiner is not None:
            found[b.name] = b, {i.name: i.name for i in b.spatial}
        left = [(b, {i.name: i.name for i in b.spatial})]
        while left:
            c, names = left.pop()
            for p in analysis.producers(func, c):
                if p.name in found or p.name in state.done:
                    continue
                axes = _axes_in(func, p, c)
                if p.combiner is None or axes is None or not {*axes.values()} <= names.keys():
                    return None
                if analysis.is_output(func, p):
                    return None
                found[p.name] = p, {n: names[a] for n, a in axes.items()}
                left.append((p, found[p.name][1]))
        if not found:
            return None
        along: dict[str, str] = {}
        for p, _ in found.values():
            plain = is_memory_bound(func, p)
            own = contiguous_axes(func, p) if plain else weighted_axes(func, p)
            if len(own) != 1 or not own <= {i.name for i in p.spatial}:
                return None
            (along[p.name],) = own
        kept = {frozenset(axes.values()) for _, axes in found.values()}
        across = {axes.get(along[p.name]) for p, axes in found.values()}
        users = {
            c.name
            for p, _ in found.values()
            if p.name != b.name
            for c in analysis.consumers(func, p)
        }
        if len(kept) != 1 or len(across) != 1 or not users <= {b.name, *found}:
            return None
        (names_kept,), (column,) = kept, across
        if column is None:
            return None
        ordered = tuple(i.name for i in b.spatial if i.name in names_kept)
        order = [o.name for _, o in walk(func.body)]
        reductions = sorted((p for p, _ in found.values()), key=lambda p: order.index(p.name))
        return _Columns(tuple(reductions), ordered, column, along)

    def _split(self, state: State, r: Block, along: str) -> State | None:
        """Splits the rows over blocks; a second launch joins their parts."""
        kept, terms = analysis.points(r)
        processors = state.task.target.num_multiprocessors
        if r.name.endswith(".rf") or kept > self.results * processors:
            return None
        numbers = tuple(n for n in self.parts if terms // n >= self.least)
        if not numbers or not r.init:
            return None
        (column,) = (max(1, analysis.length(i)) for i in r.spatial if i.name == along)
        steps, loop = _one_reducing_loop(r)
        piece = 1
        while piece * column < _PIECE and piece < self.least:
            piece *= 2
        if piece > 1:
            pieces = Split(loop, (None, piece))
            steps, loop = [*steps, pieces], pieces.parts[0]
        name = f"#{r.name}.parts"
        split = Split(loop, (None, name))
        turned = Reorder((split.parts[1], split.parts[0]))
        factor = Rfactor(split.parts[1])
        return state.attempt(*steps, SampleChoice(name, numbers), split, turned, factor)

    def _fused(self, state: State, name: str, columns: _Columns) -> State | None:
        try:
            return self._bound(state, name, columns)
        except ScheduleError:
            return None

    def _bound(self, state: State, name: str, columns: _Columns) -> State:
        func = state.func
        b = analysis.block(func, name)
        reductions = [analysis.block(func, r.name) for r in columns.reductions]
        own = any(r.name == name for r in reductions)
        extents = {i.name: max(1, analysis.length(i)) for i in b.spatial}
        across, loops = columns.across, {i.name: f"{name}.{i.name}" for i in b.spatial}
        kept = {n for n, size in extents.items() if own or n in columns.kept or size == 1}
        outer = [n for n in extents if n in kept and n != across]
        rest = [n for n in extents if n not in kept]
        threads, width, team = f"#{name}.threads", f"#{name}.width", f"#{name}.team"
        turn = Split(loops[across], (None, threads, width))
        steps: list[Step] = [
            SampleChoice(threads, self._threads(state, extents[across])),
            SampleChoice(width, self._widths(func, reductions, extents[across])),
            SampleChoice(team, self._teams(reductions)),
            turn,
        ]
        blocks, several = [loops[n] for n in outer], list[str]()
        if outer and (numbers := self._several(state, b, outer, extents[across])):
            longest = max(outer, key=lambda n: extents[n])
            column = f"#{name}.several"
            cut = Split(loops[longest], (None, column))
            steps += [SampleChoice(column, numbers), cut]
            blocks[outer.index(longest)], several = cut.parts[0], [cut.parts[1]]
        blocks.append(turn.parts[0])
        inner: list[str] = []
        if rest:
            fused, loop = one_loop([loops[n] for n in rest])
            cut = Split(loop, (None, team))
            steps += [*fused, cut]
            inner = [*cut.parts]
        if own:
            own_steps, inner = self._rows(b, team, name)
            steps += own_steps
        state = state.then(*steps)
        state = state.then(Reorder((*blocks, *several, turn.parts[1], *inner, turn.parts[2])))
        state = state.then(Unroll(turn.parts[2]))
        for r in reversed(reductions):
            if r.name != name:
                state = self._moved(state, r, turn.parts[1], columns.along[r.name], team)
        if rest and not own:
            held = f"#{name}.held"
            note = Annotate(turn.parts[1], HoldRow(held))
            state = state.then(Bind(inner[1], "threadIdx.y"), SampleChoice(held, self.held), note)
        if own:
            state = state.then(Annotate(inner[1], ReduceAcross("threadIdx.y")), Unroll(inner[2]))
        bound: list[Step] = [Bind(x, "blockIdx.x") for x in blocks]
        bound += [Bind(x, "threadIdx.z") for x in several]
        state = state.then(*bound, Bind(turn.parts[1], "threadIdx.x"))
        return state.then(done={name, *(r.name for r in reductions)})

    def _rows(self, r: Block, team: str, name: str) -> tuple[list[Step], list[str]]:
        """Steps that split the rows of a reduction, and its loops: turns, threads, rows at once.
        Neighbouring threads take neighbouring rows.
        """
        fused, loop = _one_reducing_loop(r)
        column = f"#{r.name}.at_once"
        split = Split(loop, (None, column, team))
        steps = [*fused, SampleChoice(column, self.rows), split]
        return steps, [split.parts[0], split.parts[2], split.parts[1]]

    def _moved(self, state: State, r: Block, loop: str, along: str, team: str) -> State:
        """Computes a reduction for the columns of each thread."""
        state = state.then(ComputeAt(r.name, loop))
        path, now = find_block(state.func, r.name)
        own = [f.name for f in path if f.owner == r.name]
        results = [x for x in own if x not in now.reducing_loops]
        last = [x for x in results if x in now.binding[along].names]
        steps, inner = self._rows(now, team, r.name)
        state = state.then(*steps, Reorder((*(x for x in results if x not in last), *inner, *last)))
        across = Annotate(inner[1], ReduceAcross("threadIdx.y"))
        return state.then(across, Unroll(inner[2]), *map(Unroll, last))

    def _threads(self, state: State, extent: int) -> tuple[int, ...]:
        most = state.task.target.max_threads
        counts = {n for n in self.threads if n < 2 * extent and n <= most} or {1}
        counts |= {
            extent // w for w in (1, 2, 4, 8) if extent % w == 0 and extent // w <= self.narrow
        }
        return tuple(sorted(counts))

    def _widths(self, func: Function, reductions: list[Block], extent: int) -> tuple[int, ...]:
        """Those that divide rows, up to 16 bytes."""
        nbytes = max(reduced_nbytes(func, r) for r in reductions)
        return tuple(w for w in self.widths if extent % w == 0 and w * nbytes <= 16) or (1,)

    def _teams(self, reductions: list[Block]) -> tuple[int, ...]:
        terms = max(analysis.points(r)[1] for r in reductions)
        if any(i.extent.const is None for r in reductions for i in r.reducing):
            terms = max(self.teams)  # parts, whose number is open
        return tuple(n for n in self.teams if n < 2 * terms)

    def _several(self, state: State, b: Block, outer: list[str], extent: int) -> tuple[int, ...]:
        longest = max(analysis.length(i) for i in b.spatial if i.name in outer)
        numbers = tuple(n for n in self.several if n <= longest)
        return numbers if len(numbers) > 1 and extent <= max(self.threads) else ()


def _one_reducing_loop(r: Block) -> tuple[list[Step], str]:
    """The steps that make one loop of all over which the block reduces, and its name. Loops of one
    iteration, which may stand between the others, are left out.
    """
    ones = [i.bind.name or "" for i in r.reducing if i.extent.const == 1]
    long = [i.bind.name or "" for i in r.reducing if i.extent.const != 1] or ones[-1:]
    fused, loop = one_loop(long)
    turned = [Reorder((*ones, *long))] if ones and len(long) > 1 else []
    return [*turned, *fused], loop


def _axes_in(func: Function, p: Block, c: Block) -> dict[str, str] | None:
    """The iterator of `c` by which it reads each axis of a producer; None if it reads otherwise.
    Axes of one element are left out.
    """
    own = {i.name: i.extent for i in c.iters if i.extent.const != 1}
    axes: dict[str, str] = {}
    for w in p.writes:
        for x in c.loads:
            if x.buffer != w.buffer:
                continue
            for at, q in zip(w.index, x.index, strict=True):
                i = next((i for i in p.spatial if i.name == at.name), None)
                if i is None:
                    return None
                if i.extent.const == 1:
                    continue
                if q.name is None or own.get(q.name) != i.extent:
                    return None
                if axes.setdefault(i.name, q.name) != q.name:
                    return None
    every = {i.name for i in p.spatial if i.extent.const != 1}
    return axes if axes.keys() == every and len({*axes.values()}) == len(axes) else None
