"""Limits that are checked before anything is built: bounds on expressions over size variables. A
warning is a bound that may be exceeded: the program is then correct but probably slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from tilesmith.base.target import Target
from tilesmith.expr.dynamic import code_cost, settled
from tilesmith.expr.ints import Int, loops_of, maximum, of, product
from tilesmith.ir.function import Function
from tilesmith.ir.launch_resources import (
    Blocks,
    launch_resources,
    product_of,
    registers_of_thread,
    results_of_thread,
    shared_bound,
)
from tilesmith.ir.nodes import Block, For, Path, walk
from tilesmith.ir.notes import Cluster, PipelineStages, ReduceAcross, UnrollDepth
from tilesmith.ir.regions import Box, box_of, extent, inner_ranges, union
from tilesmith.space.analysis import adds_chunks, computed_bits, points, written_out
from tilesmith.space.domains import Limit
from tilesmith.task.task import Task

# Operations in the unrolled code of one block. Twice as many take seconds to compile (partial tiles
# duplicate them) and are no faster.
_MOST_CODE = 2048
# Operations in a register tile: about 128 multiply-adds compile in tens of milliseconds, and four
# times as many run no faster.
_MOST_TILE_CODE = 640
# Registers that one vector of a tile may span; further registers are better used along another
# axis.
_MOST_VECTORS = 8


def limits_of(task: Task, func: Function) -> list[Limit]:
    """Limits of hardware and code size: registers, unrolled code, threads, shared memory."""
    out: list[Limit] = []
    for path, b in walk(func.body):
        if task.target.kind == "cpu":
            out += _cpu_limits(task, path, b)
    if task.target.kind != "cpu":
        out += _gpu_limits(task, func)
    return [x for x in out if x.value.const is None or x.value.const > x.most]


def _cpu_limits(task: Task, path: tuple[For, ...], b: Block) -> Iterator[Limit]:
    target = task.target
    cost = sum(code_cost(settled(w.value, written_out(path, b))) for w in b.writes)
    taken = 1  # registers of one accumulator
    if b.intrinsic is not None:
        taken = b.intrinsic.registers(b.intrinsic.output, target.vector_bits)
        if b.intrinsic.by_address:  # it has registers of its own
            taken = target.num_vector_registers // 4
    for f in path:
        depth = f.note(UnrollDepth)
        if depth is not None and depth.size.const is None:
            yield Limit(f"{b.name}: code", depth.size * cost, _MOST_CODE)
    unrolled = [f for f in path if f.kind == "unroll"]
    if not unrolled:  # a lone vectorized loop of any length is split into strips later
        return
    written = product(f.extent for f in unrolled) * cost
    yield Limit(f"{b.name}: code", written, _MOST_TILE_CODE if b.reducing else _MOST_CODE)
    vector = product(f.extent for f in path if f.kind == "vectorize")
    if not b.reducing and vector.const is not None:  # so are those without accumulators
        return
    # A vector shorter than a register costs as much as a full one, so both are bounded.
    lanes = target.lanes(computed_bits(target, b))
    if vector.const != 1:
        nbytes = b.writes[0].value.dtype.bits // 8
        most = _MOST_VECTORS * target.vector_bits // 8
        yield Limit(f"{b.name}: vector bytes", vector * nbytes, most)
    if b.reducing and not adds_chunks(b):
        held = product(f.extent for f in unrolled if f.name not in b.reducing_loops)
        wide = product(
            f.extent for f in path if f.kind == "vectorize" and f.name not in b.reducing_loops
        )
        # Besides the accumulators, registers hold the vectors that these share and one operand. One
        # register too few is expensive: the compiler then moves all of them in every step.
        registers = target.num_vector_registers - 1
        yield Limit(f"{b.name}: registers", held * taken + 1, registers)
        yield Limit(f"{b.name}: registers of vectors", (held + 1) * wide, registers * lanes)
    yield Limit(f"{b.name}: code of vectors", written * vector, _MOST_TILE_CODE * lanes)


def warnings_of(task: Task, func: Function) -> list[Limit]:
    """Warnings for tiles that may not fit L1."""
    out = []
    for path, b in walk(func.body):
        touched = _innermost_nbytes(func, path, b)
        if task.target.kind == "cpu" and touched is not None:
            out.append(
                Limit(f"{b.name}: bytes of the innermost tiles", touched, task.target.l1_nbytes)
            )
    return [x for x in out if x.value.const is None or x.value.const > x.most]


def _innermost_nbytes(func: Function, path: Path, b: Block) -> Int | None:
    """The bytes that the loops inside of the outermost reducing level access; None if the block is
    not tiled.
    """
    sums = [k for k, f in enumerate(path) if f.name in b.reducing_loops]
    last = next((k for k in sums if k + 1 not in sums), None)
    if last is None or last == sums[-1]:
        return None
    boxes: dict[str, Box] = {}
    for name, index in (
        *((w.buffer, w.index) for w in b.writes),
        *((load.buffer, load.index) for load in b.loads),
    ):
        buffer = func.all_buffers[name]
        inner = inner_ranges(path, b, path[last].name, buffer.scope)
        at = [p.substitute(b.binding) for p in index]
        boxes[name] = union(boxes.get(name), box_of(at, buffer.shape, inner, func.rules))
    total = of(0)
    for name, box in boxes.items():
        nbytes = func.all_buffers[name].dtype.bits // 8
        total = total + product(extent(span, func.rules) for span in box) * nbytes
    return total if not loops_of(total) else None


# A thread holds at most this many results: more spill out of its 255 registers, or take NVRTC
# minutes. Fewer than _FEWEST leave the memory pipes no time.
_MOST_RESULTS, _FEWEST_RESULTS = 128, 8
_LEAST_BLOCKS = 32
_MOST_FETCHED = 32  # elements that a thread fetches ahead of their use
# Instructions that a thread's unrolled sums may take: NVRTC needs a second for 4096 multiply-adds
# with their loads, and as many again are no faster.
_MOST_WRITTEN_OUT = 4096
# A load from global memory takes NVRTC as long as so many multiply-adds. On an H200, 166 sums of
# convolutions read operands there and had 512 multiply-adds or more written out: none was within
# 25 % of the best.
_CODE_OF_LOAD = 8
# Terms of the innermost reducing level. Results further out use its operands again; more of these
# than registers hold make NVRTC search for seconds what to keep.
_MOST_TERMS = 64


# Launches with matrix instructions (codegen/c/tensor.py): groups of threads beside the one that
# copies, registers that hold results of groups and of warps, rows of a box of the copy engine
# (TMA), and elements that a thread of warps fetches ahead of their use.
_MOST_GROUPS, _MOST_RESULTS_OF_GROUPS, _MOST_RESULTS_OF_WARPS = 3, 208, 128
_MOST_ROWS, _MOST_FETCHED_OF_WARPS = 256, 64


def _tensor_limits(
    func: Function, target: Target, k: int, blocks: Blocks, path: Path, b: Block
) -> Iterator[Limit]:
    assert b.intrinsic is not None
    assert b.intrinsic.fragment is not None
    groups = product(f.extent for f in path if f.kind == "threadIdx.x")
    results = results_of_thread(path, b)
    by_warps = b.intrinsic.fragment.threads == target.warp_size
    threads = groups * b.intrinsic.fragment.threads
    if by_warps:
        yield Limit(f"threads of kernel {k}", threads, target.max_threads)
        yield Limit(f"{b.name}: results of a thread", results, _MOST_RESULTS_OF_WARPS)
    else:
        yield Limit(f"groups of threads of kernel {k}", groups, _MOST_GROUPS)
        yield Limit(f"{b.name}: results of a thread", results, _MOST_RESULTS_OF_GROUPS)
        # The compiler gives all groups the same number of registers, also the one that copies.
        threads += b.intrinsic.fragment.threads
    total = registers_of_thread(path, b, target.warp_size) * threads
    yield Limit(f"{b.name}: registers", total, target.registers_per_block)
    if by_warps:
        most = threads * (2 * _MOST_FETCHED_OF_WARPS)
        yield from _shared_limits(func, target, k, blocks, most)
        return
    held = product(f.extent for f in path if f.kind == "vthread")
    rows = groups * held * b.tile[0][1].number
    yield Limit(f"{b.name}: rows of a block", rows, _MOST_ROWS)
    shared = launch_resources(func, blocks, target.warp_size).shared_nbytes
    yield Limit(f"shared bytes of kernel {k}", shared, target.shared_nbytes)


def _gpu_limits(task: Task, func: Function) -> Iterator[Limit]:
    target = task.target
    for k, root in enumerate(func.body):
        blocks = list(walk((root,)))
        if (found := product_of(blocks)) is not None:
            yield from _tensor_limits(func, target, k, blocks, *found)
            continue
        axes = {"threadIdx.x": of(1), "threadIdx.y": of(1), "threadIdx.z": of(1), "vthread": of(1)}
        split: set[str] = set()
        work = 0
        tiles: list[tuple[Path, Block]] = []
        for path, b in blocks:
            # A row alone may have any number of threads; with others in a block it may not.
            alone = not any(f.kind.startswith("threadIdx") for f in path)
            for axis in axes:
                noted = [f for f in path if not alone and _axis_across(f) == axis]
                bound = product(f.extent for f in (*noted, *(f for f in path if f.kind == axis)))
                # Blocks behind a sum that is split over threads use some of these threads.
                if bound.const != 1 and (noted or axis not in split):
                    axes[axis] = bound
                split |= {axis} if noted else set()
            yield from _idle_limits(path, b)
            work = max(work, *points(b))
            fills = func.all_buffers[b.writes[0].buffer].scope == "shared"
            if b.reducing and not fills and any(f.kind.startswith("threadIdx") for f in path):
                if any(f.note(ReduceAcross) is not None for f in path) and not _is_tiled(path):
                    continue  # a row, of which a thread has one result
                tiles.append((path, b))
        vthreads = axes.pop("vthread")
        threads = product(axes.values())
        # fewer threads than a warp never pay if there is work for two warps
        least = target.warp_size if work >= 2 * target.warp_size else 0
        if threads.const != 1:
            yield Limit(f"threads of kernel {k}", threads, target.max_threads, least)
        if vthreads.const != 1:
            yield Limit(f"vthreads of kernel {k}", vthreads, max(1, target.warp_size // 4))
        yield from _shared_limits(func, target, k, blocks, threads * (4 * _MOST_FETCHED))
        for path, b in tiles:
            yield from _register_limits(task, func, path, b, threads)
            yield from _code_limits(func, path, b)


def _idle_limits(path: Path, b: Block) -> Iterator[Limit]:
    """Terms that the threads of a reduction take at once: less than twice as many as there are."""
    at = next((k for k, f in enumerate(path) if _axis_across(f) is not None), len(path))
    if at == len(path) or any(f.kind == "serial" for f in path[at + 1 :]):
        return
    taken = product(f.extent for f in path[at:] if f.name in b.reducing_loops)
    terms = product(i.extent for i in b.reducing)
    yield Limit(f"{b.name}: terms at once", taken - terms * 2 + 1, 0)


def _axis_across(f: For) -> str | None:
    """The threads that the loop is reduced across."""
    return None if (note := f.note(ReduceAcross)) is None else note.axis


def _is_tiled(path: Path) -> bool:
    return any(f.kind == "threadIdx.x" for f in path)


def _shared_limits(
    func: Function, target: Target, k: int, blocks: Blocks, most_fetched_nbytes: Int
) -> Iterator[Limit]:
    """Bytes of shared memory, and what threads fetch ahead of its use."""
    most = shared_bound(func, blocks)
    if most.tile_nbytes.const != 0:
        nbytes = most.tile_nbytes * most.versions + most.exchanged_nbytes
        yield Limit(f"shared bytes of kernel {k}", nbytes, target.shared_nbytes)
        fetched = (most.versions - 1) * most.tile_nbytes - most_fetched_nbytes
        yield Limit(f"elements fetched ahead in kernel {k}", fetched, 0)


def _register_limits(
    task: Task, func: Function, path: Path, b: Block, threads: Int
) -> Iterator[Limit]:
    """Results of a thread, and the registers of all threads of a block."""
    target, results = task.target, results_of_thread(path, b)
    if results.const is not None:
        return
    blocks = product(f.extent for f in path if f.kind.startswith("blockIdx"))
    space = points(b)[0]
    large = space >= _LEAST_BLOCKS * 2 * target.warp_size * _FEWEST_RESULTS
    fetched = any(func.all_buffers[x.buffer].scope == "shared" for x in b.loads)
    fewest = _FEWEST_RESULTS if large and fetched else 0
    yield Limit(f"{b.name}: results of a thread", results, _MOST_RESULTS, fewest)
    if blocks.const is None and large:
        yield Limit(f"{b.name}: blocks", blocks, 1 << 31, _LEAST_BLOCKS)
    if target.registers_per_block:
        registers = threads * registers_of_thread(path, b, target.warp_size)
        yield Limit(f"{b.name}: registers", registers, target.registers_per_block)


def _code_limits(func: Function, path: Path, b: Block) -> Iterator[Limit]:
    """The code of a thread: its results, times the reducing steps that `unroll_depth` writes out.
    These are the innermost loops, as many as make at most so many copies. A product of two loads
    counts once; conditions of padding and loads from global memory are what takes NVRTC long.
    """
    depth = next((n.size for f in path if (n := f.note(UnrollDepth)) is not None), of(0))
    if depth.const is not None:
        return
    inside = [
        f for f in path
        if f.kind in ("vthread", "serial", "unroll", "vectorize")
        and f.note(Cluster) is None and f.note(ReduceAcross) is None
    ]  # fmt: skip
    results = product(f.extent for f in inside if f.name not in b.reducing_loops)
    copies = product(f.extent for f in inside if f.kind == "vthread")
    code = results * max(1, sum(code_cost(w.value) for w in b.writes) - 2)
    bound = {i.name: i.bind.names for i in b.iters}
    for x in b.loads:
        if func.all_buffers[x.buffer].scope in ("global", "constant"):
            moves = {f for p in x.index for n in p.names for f in bound.get(n, ())}
            own = (f.extent for f in inside if f.name in moves and f.name not in b.reducing_loops)
            code += _CODE_OF_LOAD * product(own)
    runs = groupby(
        (f for f in reversed(inside) if f.kind != "vthread"), lambda f: f.name in b.reducing_loops
    )
    terms: Int | None = None
    for reducing, loops in runs:  # the innermost first
        extents = product(f.extent for f in loops)
        if reducing:
            terms = extents if terms is None else terms
            left = maximum(depth // copies, of(1))
            code = code * (extents * left // maximum(extents, left))  # the smaller of the two
        copies = copies * extents
    if pipelined := [f.extent for f in path if f.note(PipelineStages) is not None]:
        turns = pipelined[-1]
        code = code * (1 + (of(2) // turns) * (turns // 2))  # two turns are written out
    shared = any(_axis_across(f) == "threadIdx.y" for f in path)  # columns, whose terms are streams
    if terms is not None and terms.const is None and not shared:
        yield Limit(f"{b.name}: terms of the innermost level", terms, _MOST_TERMS)
    yield Limit(f"{b.name}: written out", code, _MOST_WRITTEN_OUT)
