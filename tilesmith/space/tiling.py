"""Multi-level tiling by a structure such as SSRSRS: each letter is a level of spatial (S) or
reducing (R) loops, outermost first. A loop is split into as many parts as there are levels of its
kind; the last levels are the register tile. And the packing of a tiled block's operands, as BLIS
does it: which ones are worth a layout of their own, and the layout in which the tile reads them
sequentially.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.base.given import checks_given
from tilesmith.expr.intervals import Unknown, bounds
from tilesmith.expr.ints import Int, of, parse_int
from tilesmith.ir.function import readers
from tilesmith.ir.nodes import Block, Iter
from tilesmith.ir.notes import Cluster, Note, ReduceAcross
from tilesmith.schedule.cache import digits
from tilesmith.schedule.kinds import Annotate, Unroll, Vectorize
from tilesmith.schedule.layout import TransformLayout
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleTile
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.derive import State
from tilesmith.space.domains import tile_table


@checks_given(error=ScheduleError)
@dataclass(frozen=True)
class Tiling:
    """How a block with data reuse is tiled.

    `policy` and `max_innermost` bound the factors (see SampleTile). `unroll_reduce` bounds the
    innermost part of a reducing loop if the structure has three levels of them, or two just around
    the innermost tile.
    """

    structure: str = "SSRSRS"
    policy: str = "divisors"
    max_innermost: int = 64
    unroll_reduce: int = 8
    lanes: int = 1
    registers: bool = False  # the innermost tile is unrolled, so that it stays in registers
    whole: int = 0  # batch axes of at most this extent are not tiled
    ones: bool = False  # nor are axes of extent 1
    groups: bool = False  # nor are those that number the groups of a dimension of the result

    def __post_init__(self) -> None:
        if not self.structure or set(self.structure) - {"S", "R"}:
            raise ValueError(
                f"a tile structure is made of S and R, such as SSRSRS, not {self.structure!r}"
            )

    @property
    def num_spatial(self) -> int:
        return self.structure.count("S")

    @property
    def num_reduce(self) -> int:
        return self.structure.count("R")

    @property
    def unrolls_sums(self) -> bool:
        return self.num_reduce >= 3 or self.structure.endswith("RRS")

    def innermost(self, b: Block, vector_axis: str | None = None) -> dict[str, str]:
        """The sizes of the innermost tile by tiled spatial axis."""
        whole = self._whole(b, vector_axis)
        last = self.num_spatial - 1
        return {i.name: f"#{b.name}.{i.name}.{last}" for i in b.spatial if i.name not in whole}

    def _whole(self, b: Block, vector_axis: str | None) -> frozenset[str]:
        """Axes that are not tiled: their loops are in the outermost level."""
        short = {i.name for i in b.spatial if 0 < analysis.length(i) <= self.whole}
        short &= analysis.batch_axes(b)
        if self.ones:
            short |= {i.name for i in b.spatial if i.extent.const == 1}
        if self.groups:  # tiles of several groups would have holes
            parted = [p for w in b.writes for p in w.index if len(p.names) > 1]
            short |= {i.name for i in b.spatial for p in parted
                      if i.name in p.names and p.coefficient(i.name).const != 1}  # fmt: skip
        return frozenset(short - {vector_axis})

    def apply(
        self, state: State, vector_axis: str | None = None, turned: bool = False, *rules: SubRule
    ) -> State:
        """Tiles the current block with vectors along an axis, then applies sub-rules."""
        tiles = self.tiles(state.block, vector_axis, turned)
        if vector_axis is not None:
            tiles = tiles.vectors(vector_axis)
        for rule in rules:
            tiles = rule(tiles)
        return tiles.apply(state)

    def tiles(self, b: Block, inner: str | None = None, turned: bool = False) -> Tiles:
        """The tiles of a block. The axis `inner` is innermost in every level. With `turned` it is
        outermost in all but the last two spatial levels (which decide what stays in the caches),
        but still inside of axes that index all operands, such as a batch.
        """
        whole = self._whole(b, inner)
        spatial = outward = sorted(
            (i.name for i in b.spatial), key=lambda a: (a == inner, a not in whole)
        )
        if turned and inner is not None:
            batch = analysis.shared_axes(b)
            outward = sorted(spatial, key=lambda a: 1 if a == inner else 0 if a in batch else 2)
        levels: list[list[Part]] = []
        s = r = 0
        for letter in self.structure:
            if letter == "S":
                axes = outward if s < self.num_spatial - 2 else spatial
                levels.append(
                    [(a, None if a in whole else s) for a in axes if not (a in whole and s)]
                )
                s += 1
            else:
                levels.append([(i.name, r) for i in b.reducing])
                r += 1
        tiled = (i for i in b.iters if i.name not in whole and self._count(i))
        return Tiles(self, b, {i.name: self._sample(b, i) for i in tiled}, levels)

    def _count(self, i: Iter) -> int:
        return self.num_spatial if i.kind == "S" else self.num_reduce

    def most(self, i: Iter) -> int:
        """The largest innermost factor of an axis."""
        summed = i.kind == "R" and self.unrolls_sums
        return self.unroll_reduce if summed else self.max_innermost

    def _sample(self, b: Block, i: Iter) -> SampleTile:
        loop, count, most = f"{b.name}.{i.name}", self._count(i), self.most(i)
        if not _is_guarded(i, b):
            return SampleTile(loop, count, self.policy, most)
        # Guards of the block stay outside of the register tile. One inside of the sums that
        # registers hold would force these to memory.
        n = i.extent.const if i.kind == "R" else None
        listed = ((n, *(1,) * (count - 1)),) if n else ()
        return SampleTile(loop, count, self.policy, 1, candidates=listed)


Part = tuple[str, int | None]  # an axis and the number of a part of its loop; None: all of it


@dataclass(frozen=True)
class Tiles:
    """How a block is tiled, before any step is taken: what is sampled for each axis, and the loops
    of each level. The methods that return Tiles are sub-rules; they change it for a purpose.
    """

    tiling: Tiling
    block: Block
    samples: dict[str, SampleTile]
    levels: list[list[Part]]
    inside: tuple[str, ...] = ()  # axes that stay whole, innermost, in this order
    cut: tuple[Part, int, Note] | None = None  # one more loop, outside of a level, with a note

    def vectors(self, axis: str) -> Tiles:
        """The innermost part of an axis holds vectors."""
        policy = "vector" if self.tiling.policy == "any" else self.tiling.policy
        sample = replace(
            self.samples[axis], policy=policy, max_innermost=self.tiling.max_innermost,
            lanes=self.tiling.lanes,
        )  # fmt: skip
        return replace(self, samples=self.samples | {axis: sample})

    def unit(self, axes: tuple[str, ...]) -> Tiles:
        """A hardware instruction carries out these axes, so nothing is vectorised."""
        samples = {n: s for n, s in self.samples.items() if n not in axes}
        levels = [[p for p in level if p[0] not in axes] for level in self.levels]
        return replace(self, samples=samples, levels=levels, inside=axes)

    def cluster(self, axis: str, numbers: tuple[int, ...]) -> Tiles:
        """Blocks of a cluster sum parts of a reducing axis. Each part is tiled like a whole one."""
        return self._cut(axis, numbers, 0, Cluster(1))

    def team(self, axis: str, numbers: tuple[int, ...]) -> Tiles:
        """Threads sum parts of what the first level of a reducing axis has in its tiles."""
        return self._cut(axis, numbers, 1, ReduceAcross("threadIdx.x"))

    def _cut(self, axis: str, numbers: tuple[int, ...], at: int, note: Note) -> Tiles:
        """Cuts an axis into one of `numbers` of parts; their loop is part `at` of the axis."""
        (i,) = (i for i in self.block.reducing if i.name == axis)
        old, most = self.samples[axis], self.tiling.most(i)
        rows = tuple(
            (*map(int, row[:at]), n, *map(int, row[at:]))
            for n in numbers
            for row in tile_table(i.extent.number // n, old.parts, "divisors", most, 1)
        )
        sample = SampleTile(old.loop, old.parts + 1, candidates=rows)
        levels = [
            [(n, k + 1) if n == axis and k is not None and k >= at else (n, k) for n, k in level]
            for level in self.levels
        ]
        outside = self.tiling.structure.index("R") + at
        samples = self.samples | {axis: sample}
        return replace(self, samples=samples, levels=levels, cut=((axis, at), outside, note))

    def apply(self, state: State) -> State:
        """The state with the block tiled."""
        name, steps = self.block.name, list[Step]()
        for axis, sample in self.samples.items():
            exact = sample.exact or (self.cut is not None and axis == self.cut[0][0])
            steps += [sample, Split(sample.loop, sample.columns, exact=exact)]

        def loop(part: Part) -> str:
            return f"{name}.{part[0]}" if part[1] is None else f"{name}.{part[0]}.{part[1]}"

        levels = [list(map(loop, level)) for level in self.levels]
        order = [x for level in levels for x in level] + [f"{name}.{n}" for n in self.inside]
        if self.cut is not None:
            order.insert(sum(map(len, levels[: self.cut[1]])), loop(self.cut[0]))
        if len(order) > 1:
            steps.append(Reorder(tuple(order)))
        if self.tiling.registers and levels and levels[-1]:
            lanes = levels[-1][-1:] if not self.inside else []
            steps += [Vectorize(x) for x in lanes]
            steps += [Unroll(x) for x in levels[-1] if x not in lanes]
            if self.tiling.unrolls_sums:
                steps += [Unroll(x) for x in levels[self.tiling.structure.rindex("R")]]
        if self.cut is not None:
            steps.append(Annotate(loop(self.cut[0]), self.cut[2]))
        return state.then(*steps, done=[name]).with_tile(name, levels)


SubRule = Callable[[Tiles], Tiles]


def _is_guarded(i: Iter, b: Block) -> bool:
    """Whether a condition of the block on the iterator may fail, as far as ranges are numbers."""
    return any(i.name in p.names and not _always(p, b) for p in b.domain)


def _always(p: Int, b: Block) -> bool:
    """Whether the ranges of iterators, where these are numbers, make a condition `p >= 0` hold."""
    try:
        low, _ = bounds(p, {i.name: i.extent for i in b.iters})
    except Unknown:
        return False
    return low.const is not None and low.const >= 0


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
    axes index, as in a window, is not tiled; one that vectors read in strides is parted, so that
    their elements are neighbours.

        B[k, j], vectors along j, 32 of them in a tile    ->    [j // 32, k, j % 32]
        X[c, 2*w + r], vectors along w                    ->    [c, d1 % 2, d1 // 2]
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
        stride = _stride(b, p, axis)
        if stride > 1:
            pieces.append((_SUMMED, len(b.iters), f"d{k} % {stride}"))
            pieces.append((_VECTOR, len(b.iters), f"d{k} // {stride}"))
            continue
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


def _stride(b: Block, p: Int, axis: str | None) -> int:
    """The elements between neighbours along the axis in a dimension that windows move over."""
    if axis is None or digits(p, {i.name: i.extent for i in b.iters}):
        return 1
    return p.coefficient(axis).const or 1


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
