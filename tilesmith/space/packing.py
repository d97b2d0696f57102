"""Packing of a tiled block's operands: which ones are worth a layout of their own, and the layout
in which the tile reads them sequentially.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilesmith.expr.intervals import bounds
from tilesmith.expr.ints import Int, of
from tilesmith.ir.lookup import readers
from tilesmith.ir.nodes import Block
from tilesmith.ir.parse import parse_int
from tilesmith.schedule.cache import digits
from tilesmith.schedule.layout import TransformLayout
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.state import State

_USES = 64  # of each element, from which on a copy of what is read element by element may pay
_LINE = 64  # bytes of a cache line
_OUTSIDE, _SUMMED, _HELD, _VECTOR = range(4)


@dataclass(frozen=True)
class Unit:
    """An operand of a hardware instruction: its axes, and how it lies in memory over the positions
    d0, d1, ... along them. `shape` is that of the whole operand if the block leaves an end of it to
    others.
    """

    axes: tuple[str, ...] = ()
    digits: tuple[Int, ...] = ()
    shape: tuple[Int, ...] = ()


NO_UNIT = Unit()


def copied(state: State, axis: str | None) -> list[str]:
    """Inputs worth a packed copy: the vectorised axis indexes them and their elements are reused.
    Constant inputs are packed ahead of time instead.
    """
    b = state.block
    spatial = {i.name for i in b.spatial if i.extent.const != 1}
    inputs = {p.name for p in state.func.inputs if p.scope != "constant"}
    buffers = []
    for name, indices in _reads(b).items():
        used = {n for index in indices for p in index for n in p.names}
        if name in inputs and axis in used and spatial - used:
            buffers.append(name)
    return buffers


def gathered(state: State, axis: str | None) -> list[str]:
    """Inputs that are read element by element, from short pieces: the vectorised axis does not
    index them, and their last dimension is a reduced axis shorter than a cache line, such as the
    width of a filter. A packed copy, in which the elements of a tile lie together, may pay if each
    is used for at least a few vectors.

    Where vectors are multiplied by a lane of a register, longer pieces are packed too, if single
    axes index them: one load then brings the factors of several rows.
    """
    b = state.block
    by_lane = state.task.target.machine.rates.lane_factors
    inputs = {p.name: p for p in state.func.inputs if p.scope != "constant"}
    extents = {i.name: analysis.length(i) for i in b.iters}
    reduced = {i.name for i in b.reducing}
    buffers = []
    for name, indices in _reads(b).items():
        used = {n for index in indices for p in index for n in p.names}
        uses = prod(extents[i.name] for i in b.spatial if i.name not in used)
        if name in inputs and used and axis not in used and len(indices) == 1 and uses >= _USES:
            last = indices[0][-1].name
            if last not in reduced or extents[last] == 1:
                continue
            short = extents[last] * inputs[name].dtype.nbytes < _LINE
            plain = inputs[name].dtype.is_float and _single_axes(indices[0], extents)
            if short or (by_lane and plain):
                buffers.append(name)
    return buffers


def _single_axes(index: tuple[Int, ...], extents: dict[str, int]) -> bool:
    """Whether each dimension is one axis, apart from axes of extent 1: such as the windows of a
    convolution with a 1x1 filter.
    """
    ones: dict[str, Int] = {n: of(0) for n, extent in extents.items() if extent == 1}
    return all(p.name for q in index if (p := q.substitute(ones)).names)


def is_across(b: Block, buffer: str, axis: str | None) -> bool:
    """Whether the vectorised axis indexes a dimension other than the last. Vectors would then be
    loaded element by element; a packed copy does that once.
    """
    return any(
        p.coefficient(axis).const == 1
        for index in _reads(b)[buffer]
        for p in index[:-1]
        if axis is not None and axis in p.names
    )


def spread(state: State, axis: str | None) -> list[Step]:
    """Steps that part an intermediate buffer by the stride of its windows, so that vectors along
    `axis` are loaded from neighbouring elements. It is written in that order for nothing.

        pad[2*w + r]    ->    [d0 % 2, d0 // 2], read at [r % 2, w + r // 2]
    """
    b, steps = state.block, list[Step]()
    for buffer in state.func.buffers:
        places = _reads(b).get(buffer.name, [])
        if len(places) != 1 or not places[0] or buffer.layout is not None or axis is None:
            continue
        stride = places[0][-1].coefficient(axis).const
        only = [r.name for r in readers(state.func, buffer.name)] == [b.name]
        if (
            stride is not None
            and stride > 1
            and only
            and not any(axis in p.names for p in places[0][:-1])
        ):
            *outer, last = (f"d{k}" for k in range(len(buffer.shape)))
            layout = (*outer, f"{last} % {stride}", f"{last} // {stride}")
            steps.append(TransformLayout(buffer.name, layout))
    return steps


def prepared(state: State) -> list[str]:
    """Constant inputs that only this block reads: they are packed ahead of time."""
    return [
        p.name
        for p in state.func.inputs
        if p.scope == "constant"
        and p.layout is None
        and [r.name for r in readers(state.func, p.name)] == [state.block.name]
    ]


def packing(
    b: Block, buffer: str, axis: str | None, inner: dict[str, str], unit: Unit = NO_UNIT
) -> list[Step]:
    """The step that changes an operand's layout to the order of the block's tile; none if it has
    that order already. `inner` are the sizes of the innermost tile by axis; `unit` is what a
    hardware instruction takes, which comes last.
    """
    layout = layout_of(b, buffer, axis, inner, unit)
    return [TransformLayout(buffer, layout)] if layout else []


def layout_of(
    b: Block, buffer: str, axis: str | None, inner: dict[str, str], unit: Unit = NO_UNIT
) -> tuple[str, ...]:
    """The order of the loops: first the dimensions outside of the reduction, then the reduced ones,
    and last the register tile, with the vector's dimension innermost. A dimension that several
    axes index, as in a window, is not tiled.

        B[k, j], vectors along j, 32 of them in a tile    ->    [j // 32, k, j % 32]
    """
    places = _reads(b)[buffer]
    if len(places) == 1:
        places = [_without_ones(b, places[0], unit.shape)]
    vector = {k for index in places for k, p in enumerate(index) if axis in p.names}
    if len(places) > 1 or len(vector) > 1:  # no single order suits all loads
        return ()
    order = {i.name: k for k, i in enumerate(b.iters)} | {axis: len(b.iters)}
    spatial = {i.name for i in b.spatial}
    inside: dict[str, Int] = {}
    pieces: list[tuple[int, int, str]] = []  # (kind, position of the loop, expression), to sort
    for k, p in enumerate(places[0]):
        for name, text in _coordinates(b, p, f"d{k}"):
            at = min((order[n] for n in ({name} if name else p.names) if n in order), default=0)
            last = name == axis or (name is None and k in vector)
            if name in unit.axes:
                inside[f"d{unit.axes.index(name)}"] = parse_int(text)
            elif name in inner:
                pieces.append((_OUTSIDE, at, f"{text} // {inner[name]}"))
                pieces.append((_VECTOR if last else _HELD, at, f"{text} % {inner[name]}"))
            else:
                kind = _OUTSIDE if name in spatial else _SUMMED
                pieces.append((_VECTOR if last else kind, at, text))
    last_of_all = (str(p.substitute(inside)) for p in unit.digits)
    layout = (*(text for _, _, text in sorted(pieces)), *last_of_all)
    return () if layout == tuple(f"d{k}" for k in range(len(layout))) else layout


def _without_ones(b: Block, index: tuple[Int, ...], shape: tuple[Int, ...]) -> tuple[Int, ...]:
    """An index without axes of extent 1 beside another axis: such as those of a 1x1 filter. One
    stays where the dimension goes on behind what the block reads.
    """
    ones: dict[str, Int] = {i.name: of(0) for i in b.iters if i.extent.const == 1}
    extents = {i.name: i.extent for i in b.iters}
    whole = [not shape or bounds(p, extents)[1] + 1 == shape[d] for d, p in enumerate(index)]
    return tuple(
        p.substitute(ones) if p.names - ones.keys() and all_read else p
        for p, all_read in zip(index, whole, strict=True)
    )


def _coordinates(b: Block, p: Int, text: str) -> list[tuple[str | None, str]]:
    """The axes that a dimension consists of, and the position along each; None for a mixture. If an
    axis was divided, the dimension consists of all its parts.
    """
    if p.name is not None:
        return [(p.name, text)]
    extents = {i.name: i.extent for i in b.iters}
    out: list[tuple[str | None, str]] = []
    first, *inner = digits(p, extents) or (None,)
    for n in reversed(inner):
        out.insert(0, (n, f"({text} % {extents[str(n)]})"))
        text = f"({text} // {extents[str(n)]})"
    return [(first, text), *out]


def _reads(b: Block) -> dict[str, list[tuple[Int, ...]]]:
    """The distinct indices at which each buffer is read."""
    by_buffer: dict[str, dict[tuple[Int, ...], None]] = {}
    for load in b.loads:
        by_buffer.setdefault(load.buffer, {})[load.index] = None
    return {name: list(indices) for name, indices in by_buffer.items()}
