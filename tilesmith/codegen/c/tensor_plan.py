"""How a launch with matrix instructions works: the loop over stages of shared memory, the boxes
that the copy engine (TMA) brings for each, and what is computed with them (wgmma).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import BuildError
from tilesmith.codegen.artifact import TensorMap
from tilesmith.codegen.c.dialect import Dialect
from tilesmith.codegen.c.statements import size_of
from tilesmith.codegen.passes.bulk_copies import source_of
from tilesmith.codegen.passes.guards import ends_of
from tilesmith.expr.intervals import linear
from tilesmith.expr.ints import ONE, ZERO, Int, is_size, of, product, var
from tilesmith.expr.nodes import Load
from tilesmith.ir.intrinsics import BULK_COPY, WARPGROUP, run_of
from tilesmith.ir.launch_form import LaunchForm
from tilesmith.ir.launch_resources import LEAST_STAGES, TILE_ALIGNMENT
from tilesmith.ir.nests import allocated
from tilesmith.ir.nodes import Buffer, For, If, Stmt, Store, Sync, statements
from tilesmith.ir.notes import Count, PipelineStages, ResidentBlocks, StagesInFlight

_MOST_BOX, _MOST_RANK, _MOST_STEP = 256, 5, 8  # of the copy engine


@dataclass(frozen=True, slots=True)
class Copy:
    """A box of a tensor and where it goes. Boxes wider than a run are copied in `chunks`."""

    tensor: TensorMap
    nbytes: int
    start: tuple[Int, ...]  # the first element, fastest dimension first
    to: str
    chunks: int
    at: int  # bytes from the beginning of the tile
    chunk_nbytes: int  # from one to the next in shared memory
    run: int  # elements along the fastest dimension


_MOST_HELD_BY_SMALL = 64


@dataclass(frozen=True, slots=True)
class Plan:
    loop: For  # over stages
    used: tuple[Stmt, ...]  # what is done with a stage
    copies: tuple[Copy, ...]
    offsets: dict[str, int]  # of the tiles in a stage
    stage_nbytes: int
    stages: int
    in_flight: int  # stages whose instructions may run at the same time
    resident: int  # blocks that are launched at most, each for several tiles; 0: one for each
    staged: tuple[Buffer, ...] = ()  # results on their way to memory
    held: int = 0  # elements of results that a thread has in registers

    @property
    def is_large(self) -> bool:
        """Whether a block needs all registers of a multiprocessor; else several have room."""
        return self.held > _MOST_HELD_BY_SMALL


def is_tensor_nest(nest: LaunchForm) -> bool:
    return any(is_product(s) for s in statements(nest.body))


def is_product(s: Stmt) -> bool:
    """Whether it is a matrix instruction of several warps."""
    fragment = s.intrinsic.fragment if isinstance(s, Store) and s.intrinsic is not None else None
    return fragment is not None and fragment.threads == WARPGROUP


def is_copy(s: Stmt) -> bool:
    return isinstance(s, Store) and s.intrinsic is not None and s.intrinsic.name == BULK_COPY.name


def is_one_product(nest: LaunchForm) -> bool:
    """Whether all its matrix instructions have one result."""
    stores = (s for s in statements(nest.body) if isinstance(s, Store) and is_product(s))
    return len({s.writes[0].buffer for s in stores}) == 1


def with_loop(nest: LaunchForm) -> LaunchForm:
    """Simplifying drops a loop over one stage; here it is again."""
    inside = [
        k
        for k, s in enumerate(nest.body)
        if any(is_copy(t) or is_product(t) for t in statements((s,)))
    ]
    if len(inside) < 2:
        return nest
    first, last = inside[0], inside[-1] + 1
    once = For("stage", ONE, nest.body[first:last])
    return replace(nest, body=(*nest.body[:first], once, *nest.body[last:]))


def plan_of(nest: LaunchForm, buffers: dict[str, Buffer], dialect: Dialect) -> Plan:
    loops = [s for s in nest.body if isinstance(s, For) and any(map(is_copy, statements(s.body)))]
    if dialect.name != "cuda" or len(loops) != 1:
        raise BuildError(f"matrix instructions have no {dialect.name} code here")
    (loop,) = loops
    others = [t for s in nest.body if s is not loop for t in statements((s,))]
    filled = {w.buffer for s in statements(nest.body) if isinstance(s, Store) and is_copy(s)
              for w in s.writes}  # fmt: skip
    staged = tuple(b for b in nest.shared if b.name not in filled)
    barrier = not staged and any(isinstance(t, Sync) for t in others)
    if barrier or nest.num_threads % WARPGROUP:
        raise BuildError(
            "a barrier stands outside of the loop of a matrix instruction, or its threads do not "
            "form whole groups"
        )
    tiles = {b.name: b for b in nest.shared if b.name in filled}
    copies: list[Copy] = []
    used: list[Stmt] = []
    for s in loop.body:
        inner = s.body[0] if isinstance(s, If) and len(s.body) == 1 else s
        if isinstance(inner, Store) and is_copy(inner):
            copies.append(copy_of(inner, buffers, tiles))
        elif not isinstance(s, Sync):
            used.append(s)
    offsets: dict[str, int] = {}
    nbytes = 0
    for name, b in tiles.items():
        offsets[name] = nbytes
        nbytes += -(-size_of(b) * b.dtype.nbytes // TILE_ALIGNMENT) * TILE_ALIGNMENT
    if {c.to for c in copies} != tiles.keys():
        raise BuildError("a tile of a matrix instruction is not filled by the copy engine")
    return Plan(
        loop, tuple(used), tuple(copies), offsets, nbytes,
        _count(loop, PipelineStages, LEAST_STAGES), _count(loop, StagesInFlight, 1),
        resident_blocks(nest, _count(loop, ResidentBlocks, 0)), staged,
        sum(size_of(b) for b in allocated(nest.body).values()),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Groups:
    """Tiles of rows of an open axis in groups of `size`, numbered by the loop `outer`; `inner`
    numbers those of a group. Blocks beside each other take the tiles of a group, so that they share
    operands in L2. The last group may have fewer.
    """

    outer: str
    inner: str
    size: int
    tiles: Int


def groups_of(nest: LaunchForm) -> Groups | None:
    """How blocks take the tiles of rows; None if all blocks of the loops have tiles."""
    loops = [f for f in nest.blocks if f.extent.const is None]
    if len(loops) != 1 or len(nest.blocks) < 2 or (inner := nest.blocks[-1]) is loops[0]:
        return None
    (outer,) = loops
    for p in _stored_where(nest):
        rows = -(p.coefficient(inner.name).const or 0)
        rest = p + rows * (var(outer.name) * inner.extent + var(inner.name))
        if rows > 0 and not rest.names & {f.name for f in nest.blocks}:
            return Groups(outer.name, inner.name, inner.trips, rest // rows + 1)
    return None


def blocks_of(nest: LaunchForm) -> Int:
    """How many blocks have a tile."""
    if (groups := groups_of(nest)) is None:
        return nest.open_grid
    taken = (groups.outer, groups.inner)
    return product(f.extent for f in nest.blocks if f.name not in taken) * groups.tiles


def _stored_where(nest: LaunchForm) -> tuple[Int, ...]:
    """What is at least 0 in a block that stores something: of the ends of open axes that all stores
    test, the largest values over the block.
    """
    tests: list[set[Int]] = []

    def walk(body: tuple[Stmt, ...], inner: dict[str, Int], held: frozenset[Int]) -> None:
        for s in body:
            if isinstance(s, For):
                walk(s.body, {**inner, s.name: s.extent}, held)
            elif isinstance(s, If):
                ends = (ends_of(p, inner) for p in s.conds if any(map(is_size, p.names)))
                walk(s.body, inner, held | {e[1] for e in ends if e})
            elif isinstance(s, Store) and any(w.buffer not in private for w in s.writes):
                tests.append({*held})

    private = {b.name for b in nest.shared} | allocated(nest.body).keys()
    walk(nest.body, {f.name: f.extent for f in nest.threads}, frozenset())
    blocks = {f.name for f in nest.blocks}
    common = set.intersection(*tests) if tests else set()
    return tuple(p for p in common if all(n in blocks or is_size(n) for n in p.names))


def resident_blocks(nest: LaunchForm, most: int) -> int:
    """How many blocks take all tiles of a launch; 0 if each block takes one."""
    grid = nest.open_grid.const
    return most if most < (ResidentBlocks.many if grid is None else grid) else 0


def _count(f: For, kind: type[Count], default: int) -> int:
    return default if (n := f.count(kind)) is None else n


def copy_of(s: Store, buffers: dict[str, Buffer], tiles: dict[str, Buffer]) -> Copy:
    """Raises if no box of the tensor has the order of the tile."""
    (w,) = s.writes
    load = source_of(w.value)
    assert load is not None
    source, extents = buffers[load.buffer], {n: e.number for n, e in s.tile}
    zero: dict[str, Int] = dict.fromkeys(extents, ZERO)
    place = linear(w.index, tiles[w.buffer].strides)

    if (first := place.substitute(zero).const) is None:
        raise _no_box(load)

    def distance(name: str, steps: int = 1) -> int:
        return (place.substitute({**zero, name: of(steps)}) - first).number

    nbytes = source.dtype.nbytes
    run = run_of(source.dtype)
    box: list[int] = []
    each: list[int] = []
    chunks, chunk, inner = 1, 0, 1
    for d, p in enumerate(reversed(load.index)):
        moving = [n for n in extents if n in p.names]
        if not moving:
            box.append(1)
            each.append(1)
            continue
        (name, *more) = moving
        size = extents[name]
        step = p.coefficient(name).const
        if more or not step or step > _MOST_STEP or distance(name) != inner:
            raise _no_box(load)
        if d == 0 and size % run:
            raise _no_box(load)
        if d == 0 and size > run:
            chunks, chunk, size = size // run, nbytes * distance(name, run), run
        box.append((size - 1) * step + 1)
        each.append(step)
        inner *= size
    shape = tuple(reversed(source.shape))
    strides = tuple(product(shape[:d]) * nbytes for d in range(1, len(shape)))
    fits = (
        box[0] == run
        and first * nbytes % TILE_ALIGNMENT == 0
        and max(box) <= _MOST_BOX
        and len(box) <= _MOST_RANK
    )
    if not fits or any(n // 16 * 16 != n for n in strides) or extents.keys() - place.names:
        raise _no_box(load)
    sides = tuple(box), tuple(each)
    dims = _numbers(shape), _numbers(strides)
    tensor = TensorMap(load.buffer, source.dtype.name, *dims, *sides)
    start = tuple(p.substitute(zero) for p in reversed(load.index))
    return Copy(
        tensor, nbytes * inner * chunks, start, w.buffer, chunks, nbytes * first, chunk, run
    )


def _numbers(values: Sequence[Int]) -> tuple[int, ...]:
    """With -1 for what depends on open sizes."""
    return tuple(-1 if n.const is None else n.const for n in values)


def _no_box(load: Load) -> BuildError:
    return BuildError(f"the copy engine has no box of {load.buffer} in the order of its tile")
