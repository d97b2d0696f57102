"""What one block of a GPU launch needs for a statement, as closed forms over a variant's columns:
instructions, shared memory with its bank conflicts, sectors of L1, bytes of L2, latencies.
"""

from __future__ import annotations

from functools import lru_cache

from tilesmith.base.dataclass import dataclass
from tilesmith.base.target import GpuConstants
from tilesmith.ir.nodes import Block, Path
from tilesmith.search.features.graph import Term
from tilesmith.search.features.nest import Access, Nest
from tilesmith.search.gpu_nest import (
    GpuNest,
    largest_power,
    operations_in_loops,
    operations_written_out,
)

_TURNS_AT_ONCE = 8  # of a copy without a pipeline
_APART = 768.0  # bytes: lanes that read farther apart take a cycle of L1 each
_FLYING = 32  # elements that a thread has on the way at once, about
_MOST_FLYING = 128  # registers that ptxas spends on loads, about


@dataclass(frozen=True, eq=False)
class Needs:
    """What one block needs for a statement."""

    issued: Term  # warp instructions
    words: Term  # cycles of shared memory
    sectors: Term  # cycles of L1
    l2: dict[str, Term]  # bytes, by buffer
    memory: dict[str, Term]  # bytes of all blocks together, each once, by buffer
    latency: Term  # cycles of a thread that nothing in it hides
    fetched: Term  # cycles to wait for a copy; copies of one step wait together
    ahead: Term  # the same for pipelined copies, which arithmetic of the block may hide
    parallel: Term  # independent instructions of a thread
    registers: Term  # of a thread
    shared: Term  # bytes


def instructions_of(gpu: GpuConstants, b: Block, path: Path = ()) -> float:
    """Instructions of one instance of a block, without loads and stores."""
    cost = {"divmod": gpu.divide_cost, "math": gpu.math_cost}
    written_out = not b.reducing and any(f.kind == "unroll" and f.extent.const for f in path)
    counts = operations_written_out(b, path) if written_out else operations_in_loops(b, path)
    return max(1.0, sum(c * cost.get(name.split()[-1], 1.0) for name, c in counts.items()))


@lru_cache(maxsize=1024)  # the score and the features both ask for them
def gpu_nest(n: Nest) -> GpuNest:
    return GpuNest(n)


@lru_cache(maxsize=1024)
def needs_of(gpu: GpuConstants, n: Nest) -> Needs:
    here = gpu_nest(n)
    if here.copies:
        return _copied(gpu, here)
    if here.unloads:
        return _unloaded(gpu, here)
    if here.stores:
        return _stored(gpu, here)
    return _computed(gpu, here) if n.block.intrinsic is None else _multiplied(gpu, here)


def _copied(gpu: GpuConstants, n: GpuNest) -> Needs:
    """All threads of the block copy a tile to shared memory."""
    g = n.graph
    zero = g.of(0)
    threads = n.threads * float(n.lanes_of_group)
    turns = (n.tile / (threads * n.width)).ceil()
    each = turns * n.steps  # instructions of a thread
    warps = (threads / gpu.warp_size).ceil()
    sectors = zero
    l2: dict[str, Term] = {}
    memory: dict[str, Term] = {}
    for a in n.nest.accesses:
        if a.buffer.scope != "shared":
            here = n.sectors(a, n.own, gpu.sector_nbytes)
            sectors = sectors + here
            l2[a.buffer.name] = here * n.steps * float(gpu.sector_nbytes)
            memory[a.buffer.name] = a.touched[0] * a.nbytes
    # L1 serves a request per cycle, of a quarter of a warp if each thread asks for 16 bytes
    requests = (each * warps * n.width / 4).maximum(sectors * n.steps / gpu.l1_sectors)
    nbytes = n.target.dtype.nbytes
    words = n.tile * n.steps * (nbytes / 4 / gpu.banks)
    pipelined = (n.versions > 1) * (n.steps > 1)
    # Without a pipeline, loads of a few turns are under way at once.
    rounds = pipelined.where(1, (turns / _TURNS_AT_ONCE).ceil())
    waits = n.steps * gpu.global_latency * rounds
    return Needs(
        issued=each * warps * (gpu.copy_cost + n.padded * gpu.padded_cost),
        words=words,
        sectors=requests,
        l2=l2,
        memory=memory,
        latency=n.steps * gpu.sync_cycles,
        fetched=pipelined.where(0, waits),
        ahead=pipelined.where(waits, 0),
        parallel=zero + 1,
        registers=pipelined.where(turns * n.width, 0),
        shared=n.tile * float(nbytes) * n.versions,
    )


def _unloaded(gpu: GpuConstants, n: GpuNest) -> Needs:
    """Each thread puts its part of a result into shared memory, two elements at a time."""
    zero = n.graph.of(0)
    tile = n.nest.inside[n.first]
    nbytes = float(n.target.dtype.nbytes)
    instructions = tile / (2 * gpu.warp_size)
    work = 1 + instructions_of(gpu, n.nest.block, n.nest.path)
    return Needs(
        issued=instructions * work,
        words=instructions * 2,
        sectors=zero,
        l2={},
        memory={},
        latency=zero + gpu.sync_cycles,
        fetched=zero,
        ahead=zero,
        parallel=zero + 16,
        registers=zero,
        shared=tile * nbytes,
    )


def _stored(gpu: GpuConstants, n: GpuNest) -> Needs:
    """All threads of the block store a tile from shared memory: neighbours, side by side."""
    zero = n.graph.of(0)
    root = n.nest.path[0].name
    here = [gpu_nest(x) for x in n.nest.siblings if x.path and x.path[0].name == root]
    threads = zero + 1
    for x in here:
        threads = threads.maximum(x.threads * (1.0 if x.unloads else float(n.lanes_of_group)))
    (a,) = (x for x in n.nest.accesses if x.buffer.scope != "shared")
    each = (n.tile / (threads * n.stored_width(a))).ceil()
    instructions = each * (threads / gpu.warp_size).ceil()
    rows, length = n.nest.runs_of(a.buffer, a.spans[n.own])
    sectors = rows * (length * (a.nbytes / gpu.sector_nbytes)).ceil()
    if a.buffer.shape[-1].number * a.nbytes % gpu.sector_nbytes:  # both ends of a row
        sectors = sectors + rows * (2 * (gpu.part_of_sector - 1))
    return Needs(
        issued=instructions * gpu.copy_cost,
        words=n.tile * (a.nbytes / 4 / gpu.banks),
        sectors=instructions.maximum(sectors / gpu.l1_sectors),
        l2={a.buffer.name: sectors * float(gpu.sector_nbytes)},
        memory={a.buffer.name: a.touched[0] * a.nbytes},
        latency=zero + gpu.shared_latency,
        fetched=zero,
        ahead=zero,
        parallel=zero + 4,
        registers=zero,
        shared=zero,
    )


def _computed(gpu: GpuConstants, n: GpuNest) -> Needs:
    """Each thread computes its elements."""
    g, nest = n.graph, n.nest
    reducing = bool(nest.block.reducing)
    warps = (n.threads / gpu.warp_size).ceil()
    results = n.results if reducing else n.each
    steps = n.each / results
    loads, words, sectors, operands, waits, flying, fresh = (g.of(0) for _ in range(7))
    turns = g.of(1)  # of loops around a sum, each of which waits for what it loads
    l2: dict[str, Term] = {}
    memory: dict[str, Term] = {}
    for a in nest.accesses:
        again = a.reads and a.writes  # a sum: it stays in registers only if these are its own
        if a.buffer.scope in ("local", "fragment") or (again and n.across):
            continue
        count = n.loaded(a) * steps * (2 if again else 1)
        if a.buffer.scope == "shared":
            strides = n.shared_strides(a, _tile_of(nest, a))
            wide = n.vector(a, strides)
            instructions = count / wide
            words = words + instructions * warps * _wavefronts(gpu, n, strides, wide)
        else:
            instructions = count / n.wide(a, n.global_strides(a))
            asked = instructions * warps * _coalesced(gpu, n, a, gpu.sector_nbytes)
            apart = instructions * warps * _coalesced(gpu, n, a, _APART)
            sectors = sectors + (asked / gpu.l1_sectors).maximum(apart)
            touched = n.sectors(a, n.first, gpu.sector_nbytes).minimum(asked)
            l2[a.buffer.name] = touched * float(gpu.sector_nbytes)
            if again:  # L1 writes through
                l2[a.buffer.name] = count * n.threads * (a.nbytes / 2)
            memory[a.buffer.name] = a.touched[0] * a.nbytes
            if a.reads:
                waits = waits.maximum(steps if again else 0)
                fresh = fresh + (0 if again else n.loaded(a))
                turns = turns.maximum(n.turns_around(a))
                if n.across:  # what is written out is loaded first
                    ahead = n.loaded(a) * n.written_out.minimum(steps)
                    flying = flying + ahead * (a.nbytes / 4)
        loads = loads + instructions
        operands = operands + n.loaded(a)
    # Of steps that are written out, loads fly together as far as there are registers for them.
    together = n.written_out.minimum(16).minimum((_FLYING / fresh.maximum(1)).maximum(1))
    waits = waits.maximum((fresh > 0).where(steps / together, 0))
    work = n.each * instructions_of(gpu, nest.block, nest.path)
    loop = steps / n.written_out * gpu.loop_cost
    shared = steps / n.written_out * gpu.shared_latency if reducing else g.of(0)
    waits = waits * (1 if n.across else 0.5) + turns - 1
    latency = waits * gpu.global_latency + shared
    # A part of the results goes through shared memory, there and back.
    cluster = n.parts > 1
    parts = results * n.threads * float(n.target.dtype.nbytes)
    words = words + cluster.where(parts * (2 / 4 / gpu.banks), 0)
    shuffles = results * n.team.minimum(gpu.warp_size).log2() * warps
    words = words + shuffles
    filled = parts / n.team if n.target.scope == "shared" else g.of(0)
    return Needs(
        issued=(work + loads + loop) * warps + shuffles * 2,
        words=words,
        sectors=sectors,
        l2=l2,
        memory=memory,
        latency=latency + _joined(gpu, n) + cluster.where(gpu.cluster_cycles, 0),
        fetched=g.of(0),
        ahead=g.of(0),
        parallel=results,
        registers=operands.minimum(64).maximum(flying.minimum(_MOST_FLYING))
        + (results if reducing and not n.held else 0),
        shared=cluster.where(parts, filled),
    )


def _multiplied(gpu: GpuConstants, n: GpuNest) -> Needs:
    """Warps compute tiles by matrix instructions, from operands in shared memory."""
    g, nest = n.graph, n.nest
    unit = nest.block.intrinsic
    assert unit is not None
    assert unit.fragment is not None
    results, warps = n.results, n.threads
    steps = n.each / results
    operands = g.of(0)  # tiles that a warp loads in a step
    for a in nest.accesses:
        if a.buffer.scope == "shared":
            operands = operands + n.loaded(a)
    loads = operands * steps * warps
    # Each of a multiprocessor's four parts has tensor cores, which one warp keeps half busy.
    busy = n.each * warps * unit.cost * gpu.issue
    return Needs(
        issued=busy * (8 / warps).maximum(1) + loads * 4,
        words=loads * 4,
        sectors=g.of(0),
        l2={},
        memory={},
        latency=steps * gpu.shared_latency,
        fetched=g.of(0),
        ahead=g.of(0),
        parallel=g.of(16),
        registers=results * float(unit.fragment.registers) + operands * 4,
        shared=g.of(0),
    )


def _joined(gpu: GpuConstants, n: GpuNest) -> Term:
    """Cycles of the joins across threads: shuffles within a warp, then once more across warps."""
    if not n.across:
        return n.graph.of(0)
    several = n.team > gpu.warp_size
    one = 5 * gpu.shared_latency
    # Shuffles of several results overlap.
    return one + (n.results - 1) * 10 + several * n.results * (one + 2 * gpu.sync_cycles)


def _tile_of(nest: Nest, a: Access) -> tuple[Term, ...]:
    """The shape that a shared buffer has after lowering: what its copy fills at once."""
    for other in nest.siblings:
        here = gpu_nest(other)
        if here.target.scope == "shared" and here.target.name == a.buffer.name:
            written = next(x for x in other.accesses if x.buffer.name == a.buffer.name)
            return written.spans[here.own]
    return a.spans[0]


def _wavefronts(gpu: GpuConstants, n: GpuNest, strides: tuple[Term, ...], wide: Term) -> Term:
    """Cycles in which shared memory answers one load of a warp. Lanes that read the same word share
    it; different words of one bank come one after the other. Vectors of 4 words are loaded by a
    quarter of a warp at a time.
    """
    g = n.graph
    distinct, worst = g.of(1), g.of(1)
    for lanes, step in n.lanes(strides, gpu.warp_size):
        moves = step.minimum(1)
        distinct = distinct * moves.where(lanes, 1)
        same_bank = lanes.minimum(gpu.banks / wide) * largest_power(step, gpu.banks) / gpu.banks
        worst = worst * moves.where(same_bank.maximum(1), 1)
    return (distinct * wide / gpu.banks).maximum(1).maximum(worst.minimum(distinct) * wide)


def _coalesced(gpu: GpuConstants, n: GpuNest, a: Access, nbytes: float) -> Term:
    """Pieces of so many bytes that one access of a warp touches."""
    out = n.graph.of(1)
    for lanes, step in n.lanes(n.global_strides(a), gpu.warp_size):
        reach = (lanes * step * (a.nbytes / nbytes)).minimum(lanes)
        out = out * reach.maximum(1)
    return out
