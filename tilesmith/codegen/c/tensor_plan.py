"""How a launch with matrix instructions works: the loop over stages of shared memory, the boxes
that the copy engine (TMA) brings for each, and what is computed with them (wgmma).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import BuildError
from tilesmith.codegen.artifact import TensorMap
from tilesmith.codegen.c.dialect import Dialect
from tilesmith.codegen.c.statements import size_of
from tilesmith.codegen.passes.bulk_copies import source_of
from tilesmith.expr.intervals import linear
from tilesmith.expr.ints import ONE, ZERO, Int, of
from tilesmith.expr.nodes import Load
from tilesmith.ir.intrinsics import BULK_COPY, RUN, WARPGROUP
from tilesmith.ir.launch_form import LaunchForm
from tilesmith.ir.launch_resources import LEAST_STAGES, TILE_ALIGNMENT
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
        _count(loop, ResidentBlocks, 0), staged,
    )  # fmt: skip


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
        if d == 0 and size % RUN:
            raise _no_box(load)
        if d == 0 and size > RUN:
            chunks, chunk, size = size // RUN, 2 * distance(name, RUN), RUN
        box.append((size - 1) * step + 1)
        each.append(step)
        inner *= size
    shape = tuple(reversed([e.number for e in source.shape]))
    strides = tuple(prod(shape[:d]) * source.dtype.nbytes for d in range(1, len(shape)))
    fits = (
        box[0] == RUN
        and first * 2 % TILE_ALIGNMENT == 0
        and max(box) <= _MOST_BOX
        and len(box) <= _MOST_RANK
    )
    if not fits or any(n % 16 for n in strides) or extents.keys() - place.names:
        raise _no_box(load)
    sides = tuple(box), tuple(each)
    tensor = TensorMap(load.buffer, source.dtype.name, shape, strides, *sides)
    start = tuple(p.substitute(zero) for p in reversed(load.index))
    return Copy(tensor, 2 * inner * chunks, start, w.buffer, chunks, 2 * first, chunk)


def _no_box(load: Load) -> BuildError:
    return BuildError(f"the copy engine has no box of {load.buffer} in the order of its tile")
