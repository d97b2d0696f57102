"""Rules for element-wise blocks on GPUs, which read and write each element once: additions, casts,
pads, concatenations, gathers, transposes. Threads move vectors of up to 16 bytes, and what is read
along another axis than it is written along passes through shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from itertools import pairwise

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.intervals import linear, row_major
from tilesmith.expr.ints import Int, opaque_atoms
from tilesmith.expr.nodes import Load
from tilesmith.ir.function import Function, find_block
from tilesmith.ir.nodes import Block
from tilesmith.ir.notes import FetchWidth
from tilesmith.schedule.cache import CacheRead, StorageAlign
from tilesmith.schedule.iterators import MergeIterators
from tilesmith.schedule.kinds import Annotate, Bind, Unroll, Vectorize
from tilesmith.schedule.location import ComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleChoice
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State
from tilesmith.space.rules_gpu import one_loop, with_inlined

Choices = tuple[int, ...]

_VECTOR_NBYTES = 16
_WIDEST = 16  # elements of a vector
_BANKS_NBYTES = 128  # of shared memory, in a row of all banks
_BANK_NBYTES = 4
_SECTOR = 32  # bytes that memory moves at once


def vector_widths(func: Function, b: Block) -> tuple[int, ...]:
    """Elements that a thread may move at once: up to 16 bytes of the narrowest operand, unless that
    are more than two vectors of the result.
    """
    own = func.all_buffers[b.writes[0].buffer].dtype.nbytes
    least = min((func.all_buffers[x.buffer].dtype.nbytes for x in b.loads), default=own)
    most = min(_WIDEST, _VECTOR_NBYTES // min(least, own), 2 * _VECTOR_NBYTES // own)
    return tuple(1 << k for k in range(most.bit_length()))


@dataclass(frozen=True)
class SpreadElements:
    """Numbers all elements of a block, and has each thread compute a few vectors of them. Vectors
    of neighbouring threads are neighbours; the next vectors of a thread follow behind those of all
    threads of its block. They run across the ends of rows that do not hold whole vectors. (Where
    rows do, code generation finds that a vector needs one division only.)

        for i, j             ->      for i+j.0 (blockIdx.x), i+j.2 (threadIdx.x), i+j.1 (unroll)
          Y[i, j] = X[i, j]            for i+j.3 (vectorize)
    """

    threads: Choices = (64, 128, 192, 256, 384, 512, 768, 1024)
    vectors: Choices = (1, 2, 4, 8)  # of a thread
    few: int = 1 << 17  # elements, from which on blocks have more than the fewest threads

    def steps(self, state: State, b: Block, loops: list[str]) -> list[Step]:
        """The steps that spread the loops of a block, which are all its own."""
        widths = vector_widths(state.func, b)
        points = analysis.points(b)[0]
        numbers = self.threads if points < self.few else self.threads[1:]
        most = min(state.task.target.max_threads, max(numbers[0], points))
        counts = tuple(n for n in numbers if n <= most) or self.threads[:1]
        each = tuple(n for n in self.vectors if n == 1 or n * counts[0] <= points)
        threads, vectors, width = (f"#{b.name}.{x}" for x in ("threads", "vectors", "width"))
        steps: list[Step] = [SampleChoice(threads, counts), SampleChoice(vectors, each)]
        fused, loop = one_loop(loops)
        split = Split(loop, (None, vectors, threads, width))
        steps += [SampleChoice(width, widths), *fused, split]
        outer, turn, thread, lane = split.parts
        return [
            *steps, Reorder((outer, thread, turn, lane)), Bind(outer, "blockIdx.x"),
            Bind(thread, "threadIdx.x"), Unroll(turn), Vectorize(lane),
        ]  # fmt: skip


@dataclass(frozen=True)
class _Axis:
    """How an iterator takes part in a tile: as a whole, or by a piece whose size is a decision; as
    one of the axes along which results are written, or only along which operands are read.
    """

    name: str
    whole: bool
    written: bool


@dataclass
class _Nest:
    """The loops of a tile, from the outermost to the innermost ones, and the steps that make
    them.
    """

    steps: list[Step] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    lanes: list[str] = field(default_factory=list)

    def split(self, loop: str, first: list[str], *parts: tuple[list[str], str, Choices]) -> None:
        """Splits a loop: what is left over is one of the loops `first`."""
        if not parts:
            first.append(loop)
            return
        columns = [f"#{loop}.{word}" for _, word, _ in parts]
        split = Split(loop, (None, *columns))
        self.steps += [SampleChoice(c, x) for c, (_, _, x) in zip(columns, parts, strict=True)]
        self.steps.append(split)
        for into, name in zip((first, *(into for into, _, _ in parts)), split.parts, strict=True):
            into.append(name)

    def bound(self) -> list[Step]:
        order = (*self.blocks, *self.threads, *self.turns, *self.lanes)
        return [
            *self.steps,
            *([Reorder(order)] if len(order) > 1 else []),
            *(Bind(x, "blockIdx.x") for x in self.blocks),
            *(Bind(x, "threadIdx.x") for x in self.threads),
            *(Unroll(x) for x in self.turns),
        ]


@dataclass(frozen=True)
class TileElementsForGpu:
    """Tiles of results for blocks of threads, with loops of their own for each axis, so that there
    is no division for each element. An operand that lies along another axis than the result does is
    copied to shared memory first: both the loads and the stores of neighbouring threads are then of
    neighbouring elements.

        for i, j                ->   for i.0, j.0 (blockIdx.x)
          Y[i, j] = X[j, i]            for i.2, j.1 (threadIdx.x)
                                         X.shared[...] = X[...]    of the whole tile, by all threads
                                         for i.1 (unroll), j.2 (vectorize)
                                           Y[i, j] = X.shared[j, i]

    What is computed before element by element is inlined, and axes that are one row of elements in
    all operands are merged. The block without tiles is a sketch, too.
    """

    along: Choices = (8, 16, 32, 64, 128, 256)  # threads along the axis that results lie along
    across: Choices = (1, 2, 4, 8, 16, 32)  # and along another one
    turns: Choices = (1, 2, 4, 8)  # rows of a thread
    run: int = 32  # neighbouring elements that a tile has at least
    short: int = 16  # an axis of so many is never cut

    def __call__(self, state: State) -> Derived | None:
        name = state.block.name
        if state.block.combiner is not None or not analysis.is_output(state.func, state.block):
            return None
        state = with_inlined(state, name)
        b = analysis.block(state.func, name)
        if b.reducing or len(b.writes) != 1 or analysis.producers(state.func, b):
            return None
        if not all(map(analysis.length, b.spatial)):  # an open size, or nothing to compute
            return None
        state = _merged(state, name)
        tiled = self._tiled(state, analysis.block(state.func, name))
        plain = state.then(done=[name])
        states = (plain,) if tiled is None else (tiled, plain)
        return Derived(states, final=True)

    def turned(self, state: State, name: str) -> State | None:
        """The state with tiles of a block for which an operand passes through shared memory; None
        if every operand lies as the result does.
        """
        func, b = state.func, analysis.block(state.func, name)
        if b.combiner is not None or b.scatters or len(b.writes) != 1:
            return None
        written = _run_of(func, b, b.writes[0].buffer, b.writes[0].index)
        if not written or not any(_lies_across(func, b, x, written[0]) for x in b.loads):
            return None
        return self._tiled(state, b)

    def _tiled(self, state: State, b: Block) -> State | None:
        func, (w,) = state.func, b.writes
        written = _run_of(func, b, w.buffer, w.index)
        axes = [i for i in b.spatial if i.extent.const != 1]
        if len(axes) < 2 or not written:
            return None
        crossed = next((x for x in b.loads if _lies_across(func, b, x, written[0])), None)
        out = self._axes(b, written, written=True)
        if crossed is not None:
            read = self._axes(b, _run_of(func, b, crossed.buffer, crossed.index), written=False)
        else:
            read = []
        if crossed is None or all(a.whole for a in (*out, *read)):  # several rows, or small tiles
            taken = {a.name for a in (*out, *read)}
            rest = [i.name for i in reversed(axes) if i.name not in taken]
            read += [_Axis(n, whole=False, written=False) for n in rest[:1]]
        # What results lie along comes last, also where a layout says what that is.
        first = [i for i in b.spatial if i.name not in written]
        by_name = {i.name: i for i in b.spatial}
        order = (*first, *(by_name[n] for n in reversed(written)))
        nest = self._nest(func, replace(b, iters=order), out, read, crossed is not None)
        if not nest.blocks:
            return None
        try:
            state = state.then(*nest.bound(), done=[b.name])
            if crossed is not None:
                state = _through_shared(state, b, crossed, nest.threads[-1], out[0].name)
            return state.then(*map(Vectorize, nest.lanes))
        except ScheduleError:
            return None

    def _nest(
        self, func: Function, b: Block, out: list[_Axis], read: list[_Axis], crossed: bool
    ) -> _Nest:
        tile = {a.name: a for a in read}
        for a in out:  # what either side takes as a whole
            whole = a.whole or (a.name in tile and tile[a.name].whole)
            tile[a.name] = replace(a, whole=whole)
        nest = _Nest()
        alone = all(a.written for a in tile.values())
        for i in b.spatial:
            loop, axis, extent = f"{b.name}.{i.name}", tile.get(i.name), analysis.length(i)
            if axis is None:
                nest.split(loop, nest.blocks)
                continue
            turns = (nest.turns, "turns", _up_to(self.turns, extent))
            if not axis.written:
                threads = (nest.threads, "threads", _up_to(self.across, extent))
                if axis.whole:
                    nest.split(loop, nest.turns, threads)
                else:
                    nest.split(loop, nest.blocks, turns, threads)
                continue
            widths = tuple(w for w in vector_widths(func, b) if extent % w == 0)
            lanes = (nest.lanes, "width", widths)
            wide = [lanes] if axis.name == out[0].name and len(widths) > 1 else []
            if axis.whole:
                nest.split(loop, nest.threads, *wide)
            else:
                # Tiles that pass through shared memory have rows of a sector at least.
                nbytes = func.all_buffers[b.writes[0].buffer].dtype.nbytes if crossed else _SECTOR
                along = tuple(n for n in self.along if n * nbytes >= _SECTOR)
                threads = (nest.threads, "threads", _up_to(along, extent))
                nest.split(loop, nest.blocks, *([turns] if alone else []), threads, *wide)
        return nest

    def _axes(self, b: Block, names: Sequence[str], *, written: bool) -> list[_Axis]:
        """The axes of a run of neighbours: short ones as a whole, and a piece of the next one."""
        out: list[_Axis] = []
        count = 1
        for name in names:
            extent = _length(b, name)
            count *= extent
            out.append(_Axis(name, count < self.run or extent <= self.short, written))
            if count >= self.run:
                break
        return out


def _merged(state: State, name: str) -> State:
    """Merges axes that are one row of elements in all operands: an index has fewer divisions, and a
    row more vectors.
    """
    while True:
        pairs = pairwise(analysis.block(state.func, name).spatial)
        merges = (MergeIterators(name, (i.name, j.name)) for i, j in pairs)
        after = next((s for m in merges if (s := state.attempt(m)) is not None), None)
        if after is None:
            return state
        state = after


def _up_to(numbers: tuple[int, ...], extent: int) -> tuple[int, ...]:
    """Those that an extent of so many elements needs, and the smallest one."""
    return tuple(n for k, n in enumerate(numbers) if k == 0 or numbers[k - 1] < extent)


def _length(b: Block, name: str) -> int:
    return analysis.length(next(i for i in b.spatial if i.name == name))


def _address(func: Function, buffer: str, index: tuple[Int, ...]) -> Int | None:
    b = func.all_buffers[buffer]
    if b.layout is not None:
        index = tuple(p.substitute({f"d{k}": q for k, q in enumerate(index)}) for p in b.layout)
    return linear(index, row_major(b.physical_shape))


def _run_of(func: Function, b: Block, buffer: str, index: tuple[Int, ...]) -> list[str]:
    """The iterators along which the elements of an access follow one another, the fastest first:
    each of them steps over the whole of those before it.
    """
    address = _address(func, buffer, index)
    if address is None:
        return []
    divided = {n for a in opaque_atoms(address) for n in a.names()}
    steps = {
        address.coefficient(i.name).const: i
        for i in b.spatial
        if i.extent.const != 1 and i.name not in divided
    }
    out: list[str] = []
    run = 1
    while (i := steps.get(run)) is not None:
        out.append(i.name)
        run *= analysis.length(i)
    return out


def _lies_across(func: Function, b: Block, x: Load, last: str) -> bool:
    """Whether the operand is contiguous along another axis than `last`, which moves in strides."""
    run, address = _run_of(func, b, x.buffer, x.index), _address(func, x.buffer, x.index)
    if not run or address is None or run[0] == last:
        return False
    return bool(address.coefficient(last).const)


def _through_shared(state: State, b: Block, x: Load, at: str, last: str) -> State:
    """Copies the part of an operand that a block of threads needs to shared memory. Rows are padded
    so that threads which read a column do not meet at a bank.
    """
    read = CacheRead(b.name, x.buffer, "shared")
    state = state.then(read, done=[read.copy]).then(ComputeAt(read.copy, at))
    nbytes = state.func.all_buffers[read.copy].dtype.nbytes
    dim = next(d for d, p in enumerate(x.index) if last in p.names)
    path, _ = find_block(state.func, read.copy)
    outer = next((f for f in path if f.owner == read.copy), None)
    if outer is not None:
        column = f"#{read.copy}.width"
        widths = tuple(w for w in (1, 2, 4, 8, 16) if w * nbytes <= _VECTOR_NBYTES)
        state = state.then(SampleChoice(column, widths), Annotate(outer.name, FetchWidth(column)))
    pad = max(1, _BANK_NBYTES // nbytes)
    return state.then(StorageAlign(read.copy, dim, max(2, _BANKS_NBYTES // nbytes), pad))
