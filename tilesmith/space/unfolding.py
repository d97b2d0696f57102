"""The rule that makes a product of matrices of a sum over windows, such as a convolution, and tiles
it around a matrix instruction: implicit GEMM, because the matrix of windows (im2col) is never in
memory as a whole.

A tile of rows is a box of the image. The copy engine (TMA) brings it, moved by each place of the
window, with zeros where it reaches beyond the image. So channels lie last: where they do not, a
launch of its own moves them there.
"""

from __future__ import annotations

from dataclasses import field, replace
from itertools import product
from math import gcd, prod

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DType
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import ONE
from tilesmith.expr.nodes import Load
from tilesmith.ir.function import Function, readers, writers
from tilesmith.ir.intrinsics import ROWS, factor_of, factors_of, run_of
from tilesmith.ir.nodes import Block, Buffer
from tilesmith.schedule.cache import CacheRead
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.kinds import Bind
from tilesmith.schedule.layout import Pad, TransformLayout
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.step import Step
from tilesmith.schedule.unfold import MergeTiles, Sizes, Unfold
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State
from tilesmith.space.elements_gpu import TileElementsForGpu
from tilesmith.space.rules import merge_axes
from tilesmith.space.rules_gpu import with_plain_operands
from tilesmith.space.split_sums import SplitSums
from tilesmith.space.tensor_cores import TileByTensorCores
from tilesmith.space.tensor_tiles import only_moved, source_of, usable_units

_LEAST_WORK = 0.4  # of what is computed, padding counted
_RUNS = 24  # channels, from which on some more hardly count
_GROUPS = 4  # of threads, each of which computes a tile
_MORE_TILES = 33 / 32  # than the least
_ALIGNED_NBYTES = 16  # the copy engine knows no other rows
# Channels and places of an image that a block of threads moves, so that what it reads and what it
# writes is contiguous.
_CHANNELS, _PLACES, _THREADS = 32, 16, 512
_ELEMENTS = TileElementsForGpu()


@dataclass(frozen=True)
class TileUnfolded:
    """Sketches for a sum over several axes, or with several axes of rows. The sum may be split over
    blocks, where its results are few.
    """

    tile: TileByTensorCores
    split: SplitSums = field(
        default_factory=lambda: SplitSums((2, 3, 4, 6, 8, 9, 12, 16), results=4096)
    )

    def __call__(self, state: State) -> Derived | None:
        if not _is_wanted(state) or (factor := self._factor(state)) is None:
            return None
        while (merged := merge_axes(state)) is not None:
            (state,) = merged.states
        try:
            state = _with_even_channels(with_plain_operands(state))
            if (windows := _sum_of(state)) is None:
                return None
            name = state.block.name
            state = _unfolded(_channels_last(state, name, windows), name, windows)
        except ScheduleError:
            return None
        parts = replace(self.split, multiple=run_of(factor))(state)
        states = [state, *(parts.states if parts is not None else ())]
        derived = [d for s in states if (d := self.tile(s)) is not None]
        found = tuple(s for d in derived for s in d.states)
        return Derived(found) if found else None

    def _factor(self, state: State) -> DType | None:
        """The type of the operands, if there are instructions for it; of two types of 8 bits, that
        of one.
        """
        types = {state.func.all_buffers[x.buffer].dtype for x in state.block.loads}
        units = usable_units(state, self.tile.intrinsics)
        return next((factor_of(u) for u in units if factors_of(u) == types), None)


@dataclass(frozen=True)
class _Sum:
    """A sum over windows: its image and weights, and tiles of the axes of rows and of terms."""

    image: Load
    weights: Load
    column: str  # the axis of columns
    depth: str  # the axis of channels
    rows: Sizes
    terms: Sizes


def _is_wanted(state: State) -> bool:
    b = state.block
    if b.combiner is None or not b.init or b.tile or state.levels_of(b.name):
        return False
    if b.where or b.domain or len(b.writes) != 1 or b.name.endswith((".rf", ".rows")):
        return False
    return len(b.reducing) > 1 and len(list(b.loads)) == 2


def _with_even_channels(state: State) -> State:
    """The state with channels for whole vectors, where others are many: the launch that moves the
    image adds zeros behind them.
    """
    func, b = state.func, state.block
    left, right = ({p.name for p in x.index} for x in b.loads)
    both = [i for i in b.reducing if i.name in left & right and i.extent.const is not None]
    depth = max(both, key=lambda i: i.extent.number, default=None)
    if depth is None or depth.extent.number < _RUNS:
        return state
    vector = _vector(func.all_buffers[next(iter(b.loads)).buffer])
    if depth.extent.number % vector == 0:
        return state
    return state.then(Pad(b.name, ((depth.name, vector),)), Inline(b.name))


def _sum_of(state: State) -> _Sum | None:
    """The block as a sum over windows; of two ways to read it the one that moves less."""
    func, b = state.func, state.block
    for x in b.loads:
        buffer = func.all_buffers[x.buffer]
        if buffer.layout is not None:
            return None
    if any(i.extent.const is None for i in b.iters):
        return None
    loads = tuple(b.loads)
    factor = func.all_buffers[loads[0].buffer]
    pairs = (_read_as(b, factor, *pair) for pair in (loads, loads[::-1]))
    found = [p for p in pairs if p is not None]
    last = b.writes[0].index[-1].name
    return min(found, key=lambda x: (len(_to_move(func, x)), x.column != last), default=None)


def _vector(b: Buffer) -> int:
    """Elements of 16 bytes."""
    return _ALIGNED_NBYTES // b.dtype.nbytes


def _read_as(b: Block, factor: Buffer, image: Load, weights: Load) -> _Sum | None:
    """`factor` is one of the operands."""
    names, others = ({n for p in x.index for n in p.names} for x in (image, weights))
    rows = [i for i in b.spatial if i.name in names - others]
    columns = [i.name for i in b.spatial if i.name in others - names and i.extent.const != 1]
    both = {p.name for p in image.index} & {p.name for p in weights.index}
    depths = [i for i in b.reducing if i.name in both]
    if not rows or len(columns) != 1 or not depths:
        return None
    depth = max(depths, key=lambda i: i.extent.number)
    tile = _tile([max(1, i.extent.number) for i in rows])
    terms = [(i.name, run_of(factor.dtype) if i is depth else 1) for i in b.reducing]
    terms.sort(key=lambda t: t[0] == depth.name)
    sizes = tuple((i.name, n) for i, n in zip(rows, tile, strict=True))
    if depth.extent.number % _vector(factor) or _share(b, dict((*sizes, *terms))) < _LEAST_WORK:
        return None
    return _Sum(image, weights, columns[0], depth.name, sizes, tuple(terms))


def _tile(extents: list[int]) -> tuple[int, ...]:
    """Powers of two whose product is the instruction's number of rows, with little padding: of
    those, one that gives groups of threads equally many tiles, or else the least.
    """
    powers = [1 << k for k in range(ROWS.bit_length())]
    every = [t for t in product(powers, repeat=len(extents)) if prod(t) == ROWS]

    def counts(tile: tuple[int, ...]) -> list[int]:
        return [-(-n // s) for n, s in zip(extents, tile, strict=True)]

    least = min(prod(counts(t)) for t in every)
    few = (t for t in every if prod(counts(t)) <= least * _MORE_TILES)
    return min(few, key=lambda t: (-gcd(prod(counts(t)), _GROUPS), prod(counts(t)), t))


def _share(b: Block, sizes: dict[str, int]) -> float:
    extents = {i.name: max(1, i.extent.number) for i in b.iters if i.name in sizes}
    return prod(n / (-(-n // sizes[name]) * sizes[name]) for name, n in extents.items())


def _to_move(func: Function, x: _Sum) -> list[Load]:
    """The operands that the copy engine cannot read as they are."""
    image, weights = (_last(func, y) for y in (x.image, x.weights))
    out = [] if image == x.depth else [x.image]
    # Along the channels, tiles have any number of columns; along the columns, runs of them: of
    # elements of 16 bits, which instructions read in either order.
    wide = func.all_buffers[x.weights.buffer].dtype.bits != 16
    taken = {x.depth} if wide or _are_padded_less(func, x) else {x.depth, x.column}
    return out if weights in taken else [*out, x.weights]


def _are_padded_less(func: Function, x: _Sum) -> bool:
    """Whether weights that the caller can move have columns that fill no runs."""
    buffer = func.all_buffers[x.weights.buffer]
    n = next(n.number for p, n in zip(x.weights.index, buffer.shape, strict=True)
             if p.name == x.column)  # fmt: skip
    return (
        buffer.scope == "constant"
        and len(readers(func, buffer.name)) == 1
        and n % run_of(buffer.dtype) != 0
    )


def _last(func: Function, x: Load) -> str | None:
    """The iterator of the last dimension, if its rows are aligned, where the operand lies: what
    only moves elements, as padding does, is no launch yet and is read where it comes from.
    """
    while (made := source_of(func, x.buffer)) is not None:
        block, load = made
        places = {p.name: q for p, q in zip(block.writes[0].index, x.index, strict=True) if p.name}
        x = replace(load, index=tuple(p.substitute(places) for p in load.index))
    buffer = func.all_buffers[x.buffer]
    aligned = buffer.shape[-1].number % _vector(buffer) == 0
    last = [n for n in x.index[-1].names if x.index[-1].coefficient(n) == ONE]
    return last[0] if aligned and len(last) == 1 == len(x.index[-1].names) else None


def _channels_last(state: State, name: str, x: _Sum) -> State:
    """The state with operands that the copy engine can read. Constants are moved by the caller."""
    for load in _to_move(state.func, x):
        buffer = state.func.all_buffers[load.buffer]
        (d,) = (d for d, p in enumerate(load.index) if p.name == x.depth)
        order = [*(e for e in range(len(load.index)) if e != d), d]
        layout = tuple(f"d{e}" for e in order)
        if buffer.scope == "constant" and len(readers(state.func, buffer.name)) == 1:
            state = state.then(TransformLayout(buffer.name, layout))
            continue
        read = CacheRead(name, buffer.name, "global")
        state = state.then(read)
        if order != sorted(order):
            state = state.then(TransformLayout(read.copy, layout))
        if writers(state.func, buffer.name):
            state = state.then(Inline(buffer.name))
        state = only_moved(state, read.copy)
        turned = _ELEMENTS.turned(state, read.copy) if order == sorted(order) else None
        state = turned or state.then(*_moved(buffer, read.copy, order), done=[read.copy])
    return state


def _moved(buffer: Buffer, copy: str, order: list[int]) -> list[Step]:
    """Blocks of threads that each copy some channels of some places."""
    left = _THREADS
    splits: list[Split] = []
    for k, e in enumerate(reversed(order)):
        most = (_CHANNELS, _PLACES)[k] if k < 2 else left
        factor = max(1, min(buffer.shape[e].number, most, left))
        splits.insert(0, Split(f"{copy}.ax{e}", (None, factor)))
        left //= factor
    blocks, threads = (tuple(x.parts[k] for x in splits) for k in (0, 1))
    return [
        *splits,
        Reorder((*blocks, *threads)),
        *(Bind(x, "blockIdx.x") for x in blocks),
        *(Bind(x, "threadIdx.x") for x in threads),
    ]


def _unfolded(state: State, name: str, x: _Sum) -> State:
    """The state with a product of matrices. What stores its result runs in order of the rows."""
    b = analysis.block(state.func, name)
    consumer = analysis.fusible_consumer(state.func, b)
    state = state.then(Unfold(name, x.rows, x.terms))
    last, sizes = name, x.rows
    if consumer is not None:
        own = ([i.name for i in o.spatial] for o in (b, consumer))
        axes = dict(zip(*own, strict=True))
        last, sizes = consumer.name, tuple((axes[n], size) for n, size in x.rows)
        state = state.then(Inline(name))
    # The matrices are left to the copies that read them.
    made = [n for n in state.func.all_buffers if n.endswith(".rows") and n != f"{name}.rows"]
    return state.then(MergeTiles(last, sizes), done=[last, *made])
