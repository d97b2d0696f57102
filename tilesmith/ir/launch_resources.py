"""What one block of a GPU launch takes of a multiprocessor: bytes of shared memory, registers, and
how many versions of a tile a pipelined loop holds (double buffering). It is reckoned here, for
the limits of a space and code generation. The analytic score counts tiles without padding, as it
was fitted (search/gpu_needs.py).

The program is not lowered yet: a copy to shared memory stands inside of the loops over threads, and
a shared buffer has the shape of the whole tensor. Sizes may be symbolic, as those of a sketch are;
then so are the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tilesmith.base.dataclass import dataclass
from tilesmith.expr.ints import Int, loops_of, maximum, of, product
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, Buffer, Path
from tilesmith.ir.notes import Cluster, PipelineStages
from tilesmith.ir.regions import box_of, extent

# Threads fetch the next tile into their registers, so more than two versions would stay unused.
FETCHED_VERSIONS = 2
LEAST_STAGES = 2  # of the copy engine
# Of a launch whose tiles the copy engine (TMA) brings: two barriers per stage, and the alignment of
# swizzled tiles.
BARRIERS_NBYTES, TILE_ALIGNMENT = 16, 1024
_ARRAY_ALIGNMENT = 16
# Registers of a thread besides those that hold results: of plain arithmetic, of matrix instructions
# of a warp, and of those of a group. A lower estimate: with fewer, code does not run or spills.
_OTHERS, _OTHERS_OF_WARPS, _OTHERS_OF_GROUPS = 40, 80, 28

_OF_BLOCK = ("vthread", "threadIdx.x")

Blocks = Sequence[tuple[Path, Block]]


@dataclass(frozen=True)
class SharedBound:
    """What tiles take at most: rows padded by almost two multiples, as many versions as stated."""

    tile_nbytes: Int
    versions: Int
    exchanged_nbytes: Int  # what blocks of a cluster exchange, and results on their way to memory


@dataclass(frozen=True)
class LaunchResources:
    # Of all versions of all tiles, what blocks of a cluster exchange, and results on their way.
    shared_nbytes: Int
    tile_nbytes: Int  # of one version of all tiles
    versions: Int


def product_of(blocks: Iterable[tuple[Path, Block]]) -> tuple[Path, Block] | None:
    """The block that a matrix instruction computes, with its loops, if there is one."""
    for path, b in blocks:
        if b.intrinsic is not None and b.intrinsic.fragment is not None:
            return path, b
    return None


def launch_resources(func: Function, blocks: Blocks, warp_size: int) -> LaunchResources:
    """`blocks` are those of one launch: inside of one statement of the function's body. What
    threads exchange to reduce together, a few bytes for each, is not counted.
    """
    found = product_of(blocks)
    by_engine = found is not None and _threads_of(found[1]) > warp_size
    # Behind one another, each tile has as many versions as it needs: one outside of all loops.
    several = by_engine and sum(b.intrinsic is not None for _, b in blocks) > 1
    shared, tiles, versions, staged = of(0), of(0), of(1), of(0)
    for path, b in blocks:
        buffer = func.all_buffers[b.writes[0].buffer]
        if is_staging(func, b):
            staged += _aligned(_elements(buffer, _tile(func, path, b)) * buffer.dtype.nbytes)
        elif buffer.scope == "shared":  # it holds what is copied at once
            nbytes = _elements(buffer, _tile(func, path, b)) * buffer.dtype.nbytes
            if several:
                around = [f for f in path if f.owner != b.name and f.kind == "serial"]
                nbytes = _aligned(nbytes, TILE_ALIGNMENT)
                tiles += nbytes
                shared += (nbytes + BARRIERS_NBYTES) * (_versions(path, True) if around else of(1))
                continue
            versions = _versions(path, by_engine)
            tiles += _aligned(nbytes, TILE_ALIGNMENT) if by_engine else nbytes
            shared += _aligned(nbytes * versions)
        elif b.reducing and any(f.note(Cluster) is not None for f in path):
            shared += _aligned(_parts(path, b) * b.writes[0].value.dtype.nbytes)
    if several:
        shared += TILE_ALIGNMENT
    elif by_engine:
        shared = (tiles + BARRIERS_NBYTES) * versions + TILE_ALIGNMENT
    return LaunchResources(shared + staged, tiles, versions)


def is_staging(func: Function, b: Block) -> bool:
    """Whether threads put results of a matrix instruction into shared memory, from where all of
    them store.
    """
    buffers = func.all_buffers
    reads = any(buffers[x.buffer].scope == "fragment" for x in b.loads)
    return reads and buffers[b.writes[0].buffer].scope == "shared"


def shared_bound(func: Function, blocks: Blocks) -> SharedBound:
    """The limits of a space. They leave some room on purpose: with the exact bytes, tiles that just
    fit are drawn, and tuning a convolution for 10 s on an H200 ended 5 to 8 % slower.
    """
    tiles, exchanged = of(0), of(0)
    versions: Int | None = None
    for path, b in blocks:
        buffer = func.all_buffers[b.writes[0].buffer]
        if is_staging(func, b):
            exchanged += _elements(buffer, _tile(func, path, b)) * buffer.dtype.nbytes
        elif buffer.scope == "shared":
            inside = (f for f in path if f.owner == b.name)
            own = [f.extent for f in inside if f.name not in b.reducing_loops]
            tiles += (product(own) + _most_padding(buffer, own)) * buffer.dtype.nbytes
            stages = (n.size for f in path if (n := f.note(PipelineStages)) is not None)
            versions = next(stages, None) if versions is None else versions
        elif b.reducing and any(f.note(Cluster) is not None for f in path):
            exchanged += _parts(path, b) * b.writes[0].value.dtype.nbytes
    return SharedBound(tiles, of(1) if versions is None else versions, exchanged)


def _most_padding(buffer: Buffer, extents: list[Int]) -> Int:
    """An upper bound of the elements that `storage_align` adds."""
    if buffer.align is None or len(extents) != len(buffer.shape):
        return of(0)
    last = buffer.layout[-1].name if buffer.layout else None
    inner = int(last[1:]) if last is not None else len(extents) - 1
    rows = product(e for d, e in enumerate(extents) if d != inner)
    return rows * (buffer.align[1] + buffer.align[2])


def _parts(path: Path, b: Block) -> Int:
    """Results of a block of threads."""
    inside = (f for f in path if not f.kind.startswith("blockIdx"))
    return product(f.extent for f in inside if f.name not in b.reducing_loops)


def results_of_thread(path: Path, b: Block) -> Int:
    """Registers of a thread that hold results, of 32 bits."""
    if b.intrinsic is not None and b.intrinsic.fragment is not None:
        held = product(f.extent for f in path if f.kind == "vthread")
        return held * b.intrinsic.fragment.registers
    inside = (f for f in path if f.kind in ("vthread", "serial", "unroll", "vectorize"))
    results = product(f.extent for f in inside if f.name not in b.reducing_loops)
    return results * max(1, b.writes[0].value.dtype.bits // 32)


def registers_of_thread(path: Path, b: Block, warp_size: int) -> Int:
    """At least: the results, and what is needed besides."""
    others = _OTHERS
    if b.intrinsic is not None and b.intrinsic.fragment is not None:
        others = _OTHERS_OF_WARPS if _threads_of(b) == warp_size else _OTHERS_OF_GROUPS
    return results_of_thread(path, b) + others


def _threads_of(b: Block) -> int:
    """The threads that carry out a matrix instruction."""
    assert b.intrinsic is not None
    assert b.intrinsic.fragment is not None
    return b.intrinsic.fragment.threads


def _versions(path: Path, by_engine: bool) -> Int:
    """How many tiles a pipelined loop around a copy holds at once, if it has several turns. The
    copy engine runs as far ahead as it is told, threads by one tile.
    """
    noted = [(f, n.size) for f in path if (n := f.note(PipelineStages)) is not None]
    alone = LEAST_STAGES if by_engine else 1
    if not noted:
        return of(alone)
    stages = noted[0][1]
    if not by_engine:  # the smaller of the two
        stages = stages + FETCHED_VERSIONS - maximum(stages, of(FETCHED_VERSIONS))
    turns = product(f.extent for f, _ in noted) // 2
    return alone + (stages - alone) * (turns // maximum(turns, of(1)))


def _tile(func: Function, path: Path, b: Block) -> tuple[Int, ...]:
    """The shape that a shared buffer has after lowering: what its copy fills at once, or what all
    threads of a block hold.
    """
    (w, *_) = b.writes
    buffer = func.all_buffers[w.buffer]
    every = is_staging(func, b)
    inside = (f for f in path if f.owner == b.name or (every and f.kind in _OF_BLOCK))
    inner = {f.name: f.extent for f in inside}
    at = [p.substitute(b.binding) for p in w.index]
    spans = box_of(at, buffer.shape, inner, func.rules)
    shape = tuple(extent(span, func.rules) for span in spans)
    if every:  # tiles reach beyond the last element
        shape = tuple(n + m - maximum(n, m) for n, m in zip(shape, buffer.shape, strict=True))
    return tuple(whole if loops_of(n) else n for n, whole in zip(shape, buffer.shape, strict=True))


def _elements(b: Buffer, shape: tuple[Int, ...]) -> Int:
    """Elements of a tile in memory, with the padding of its rows."""
    physical = replace(b, shape=shape).physical_shape
    step = of(1)
    for d in reversed(range(len(physical))):
        if b.align is not None and b.align[0] == d:
            step += (b.align[2] - step) % b.align[1]
        step *= physical[d]
    return step


def _aligned(nbytes: Int, to: int = _ARRAY_ALIGNMENT) -> Int:
    return (nbytes + (to - 1)) // to * to
