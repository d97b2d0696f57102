"""The analytic score of GPUs: estimates the cycles of a variant's rows without measurements, as
closed forms over its decision variables.

For each launch, what one block needs of a multiprocessor is added up: instructions, words of shared
memory with their bank conflicts, sectors of L1, bytes of L2. A multiprocessor computes its share of
the blocks at the rate of the scarcest of these; but a block also has latencies, which other blocks
hide that fit beside it. Registers, shared memory and threads decide how many fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from tilesmith.base.target import Target
from tilesmith.ir.nodes import Block, walk
from tilesmith.search.features.graph import Graph, Term
from tilesmith.search.features.machine import Compiled
from tilesmith.search.features.nest import Access, Nest, shared_nests
from tilesmith.search.features.operations import operations
from tilesmith.search.gpu_constants import GpuConstants
from tilesmith.search.gpu_nest import GpuNest, largest_power
from tilesmith.search.protocol import Scores
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant


@dataclass(frozen=True)
class GpuScore:
    """`constants` describe the GPU; None takes `GpuConstants.of` the task's target."""

    constants: GpuConstants | None = None

    def score(self, variant: Variant, rows: Matrix) -> Scores:
        """The share of the machine's peak that each row reaches. Higher is better."""
        return np.exp2(self.predict(variant, rows))

    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        """log2 of the score, the scale of learned models."""
        return _compiled(self, variant)(rows)[:, 0].astype(np.float64)

    def term(self, variant: Variant) -> Term:
        """The same as `predict`, as a closed form."""
        return _doublings(self, variant)

    def estimates(self, nest: Nest) -> tuple[Term, ...]:
        """Cycles of a statement in one block: instructions, shared memory and L1, L2, memory."""
        gpu = self.constants_of(nest.variant.task.target)
        need = _needs(gpu, nest)
        memory = need.memory / (gpu.memory_rate * gpu.num_multiprocessors)
        return need.issued / gpu.issue, need.words + need.sectors, need.l2 / gpu.l2_rate, memory

    def constants_of(self, target: Target) -> GpuConstants:
        return GpuConstants.of(target) if self.constants is None else self.constants


@dataclass(frozen=True, eq=False)
class Needs:
    """What one block needs for a statement."""

    issued: Term  # warp instructions
    words: Term  # cycles of shared memory
    sectors: Term  # cycles of L1
    l2: Term  # bytes
    memory: Term  # bytes of the whole launch, each once
    latency: Term  # cycles of a thread that nothing in it hides
    fetched: Term  # cycles to wait for a copy; copies of one step wait together
    ahead: Term  # the same for pipelined copies, which arithmetic of the block may hide
    parallel: Term  # independent instructions of a thread
    registers: Term  # of a thread
    shared: Term  # bytes


@lru_cache(maxsize=1024)
def _compiled(score: GpuScore, variant: Variant) -> Compiled:
    doublings = _doublings(score, variant)
    return doublings.graph.compile([doublings])


@lru_cache(maxsize=1024)
def _doublings(score: GpuScore, variant: Variant) -> Term:
    graph, nests = shared_nests(variant)
    gpu = score.constants_of(variant.task.target)
    launches: dict[str, list[Nest]] = {}
    for n in nests:
        launches.setdefault(n.path[0].name if n.path else n.block.name, []).append(n)
    cycles = graph.of(0)
    for of_launch in launches.values():
        cycles = cycles + _launch(gpu, graph, of_launch)
    work = sum(
        prod(i.extent.const or 1 for i in b.iters) * _instructions(gpu, b)
        for _, b in walk(variant.task.func.body)
    )
    ideal = work / (gpu.warp_size * gpu.issue * gpu.num_multiprocessors)
    return (ideal / cycles.maximum(1e-9)).maximum(1e-9).log2()


def _instructions(gpu: GpuConstants, b: Block) -> float:
    """Instructions of one instance of a block, without loads and stores."""
    cost = {"divmod": gpu.divide_cost, "math": gpu.math_cost}
    counts = operations(b)
    return max(1.0, sum(c * cost.get(name.split()[-1], 1.0) for name, c in counts.items()))


def _launch(gpu: GpuConstants, g: Graph, nests: list[Nest]) -> Term:
    """Cycles of all blocks of a launch, and of starting it."""
    threads, blocks = g.of(1), g.of(1)
    for n in nests:
        here = _gpu_nest(n)
        threads, blocks = threads.maximum(here.threads), blocks.maximum(here.blocks)
    needs = [_needs(gpu, n) for n in nests]
    total: dict[str, Term] = {}
    for name in ("issued", "words", "sectors", "l2", "memory", "latency", "shared"):
        total[name] = sum((getattr(x, name) for x in needs), g.of(0))
    ahead, parallel, registers = g.of(0), g.of(1), g.of(float(gpu.base_registers))
    fetched = g.of(0)
    for x in needs:
        ahead, parallel = ahead.maximum(x.ahead), parallel.maximum(x.parallel)
        fetched = fetched.maximum(x.fetched)
        registers = registers.maximum(x.registers + float(gpu.base_registers))
    warps = (threads / gpu.warp_size).ceil()
    held = warps * gpu.warp_size * registers
    spills = (registers > gpu.most_registers).maximum(held > gpu.registers)
    slowed = spills.where(gpu.spill_cost, 1)
    # how many blocks a multiprocessor holds
    resident = (gpu.threads / (warps * gpu.warp_size)).minimum(gpu.registers / held)
    resident = resident.minimum(gpu.shared_nbytes / (total["shared"] + 1024))
    resident = (resident.minimum(gpu.most_blocks) // 1).maximum(1)
    share = (blocks / gpu.num_multiprocessors).ceil()  # blocks of the busiest multiprocessor
    # what a multiprocessor needs for a block, and for a block alone
    issue = total["issued"] * slowed / gpu.issue
    parts = [issue, total["words"] + total["sectors"], total["l2"] / gpu.l2_rate]
    busy = _overlapped(parts)
    filled = (warps * parallel / (gpu.issue * gpu.fma_latency)).minimum(1)
    alone = _overlapped([issue / filled, parts[1], total["l2"] / gpu.l2_alone])
    waits = total["latency"] + fetched + (ahead - alone).maximum(0)
    rounds = (share / resident).ceil()
    cycles = (share * busy).maximum(rounds * (alone + waits))
    memory = total["memory"] / (gpu.memory_rate * gpu.num_multiprocessors)
    return cycles.maximum(memory) + gpu.launch_cycles


def _overlapped(parts: list[Term]) -> Term:
    """The longest of them, and a part of the others."""
    longest, total = parts[0], parts[0]
    for t in parts[1:]:
        longest, total = longest.maximum(t), total + t
    return longest + (total - longest) * 0.3


@lru_cache(maxsize=4096)  # the score and the features both ask for them
def _gpu_nest(n: Nest) -> GpuNest:
    return GpuNest(n)


@lru_cache(maxsize=4096)
def _needs(gpu: GpuConstants, n: Nest) -> Needs:
    here = _gpu_nest(n)
    return _copied(gpu, here) if here.copies else _computed(gpu, here)


def _copied(gpu: GpuConstants, n: GpuNest) -> Needs:
    """All threads of the block copy a tile to shared memory."""
    g = n.graph
    zero = g.of(0)
    turns = (n.tile / (n.threads * n.width)).ceil()
    each = turns * n.steps  # instructions of a thread
    warps = (n.threads / gpu.warp_size).ceil()
    sectors, memory = zero, zero
    for a in n.nest.accesses:
        if a.buffer.scope != "shared":
            sectors = sectors + n.sectors(a, n.own, gpu.sector_nbytes)
            memory = memory + a.touched[0] * a.nbytes
    # L1 serves a request per cycle, of a quarter of a warp if each thread asks for 16 bytes
    requests = (each * warps * n.width / 4).maximum(sectors * n.steps / gpu.l1_sectors)
    nbytes = n.target.dtype.nbytes
    words = n.tile * n.steps * (nbytes / 4 / gpu.banks)
    waits = n.steps * gpu.global_latency
    pipelined = n.versions > 1
    return Needs(
        issued=each * warps * gpu.copy_cost,
        words=words,
        sectors=requests,
        l2=sectors * n.steps * float(gpu.sector_nbytes),
        memory=memory,
        latency=n.steps * gpu.sync_cycles,
        fetched=pipelined.where(0, waits),
        ahead=pipelined.where(waits, 0),
        parallel=zero + 1,
        registers=pipelined.where(turns * n.width, 0),
        shared=n.tile * float(nbytes) * n.versions,
    )


def _computed(gpu: GpuConstants, n: GpuNest) -> Needs:
    """Each thread computes its elements."""
    g, nest = n.graph, n.nest
    reducing = bool(nest.block.reducing)
    warps = (n.threads / gpu.warp_size).ceil()
    results = n.results if reducing else n.each
    steps = n.each / results
    loads, words, sectors, l2, memory = (g.of(0) for _ in range(5))
    operands, waits = g.of(0), g.of(0)
    for a in nest.accesses:
        if a.buffer.scope == "local" or (a.reads and a.writes):
            continue
        count = n.loaded(a) * steps
        if a.buffer.scope == "shared":
            strides = n.shared_strides(a, _tile_of(nest, a))
            wide = n.vector(a, strides)
            instructions = count / wide
            words = words + instructions * warps * _wavefronts(gpu, n, strides, wide)
        else:
            instructions = count
            sectors = sectors + instructions * warps * _coalesced(gpu, n, a) / gpu.l1_sectors
            l2 = l2 + n.sectors(a, n.first, gpu.sector_nbytes) * float(gpu.sector_nbytes)
            memory = memory + a.touched[0] * a.nbytes
            if a.reads:
                waits = waits.maximum(steps / n.written_out.minimum(16))
        loads = loads + instructions
        operands = operands + n.loaded(a)
    work = n.each * _instructions(gpu, nest.block)
    loop = steps / n.written_out * gpu.loop_cost
    shared = steps / n.written_out * gpu.shared_latency if reducing else g.of(0)
    latency = waits * gpu.global_latency * 0.5 + shared
    return Needs(
        issued=(work + loads + loop) * warps,
        words=words,
        sectors=sectors,
        l2=l2,
        memory=memory,
        latency=latency + _joined(gpu, n),
        fetched=g.of(0),
        ahead=g.of(0),
        parallel=results.minimum(16),
        registers=(results + operands.minimum(64) if reducing else operands.minimum(64)),
        shared=g.of(0),
    )


def _joined(gpu: GpuConstants, n: GpuNest) -> Term:
    """Cycles of the joins across threads: shuffles within a warp, then once more across warps."""
    across = [f for f in n.nest.path if f.note("reduce_across") is not None]
    if not across:
        return n.graph.of(0)
    several = n.threads > gpu.warp_size
    one = 5 * gpu.shared_latency
    return n.results * (one + several * (one + 2 * gpu.sync_cycles))


def _tile_of(nest: Nest, a: Access) -> tuple[Term, ...]:
    """The shape that a shared buffer has after lowering: what its copy fills at once."""
    _, nests = shared_nests(nest.variant)
    for other in nests:
        here = _gpu_nest(other)
        if here.copies and here.target.name == a.buffer.name:
            written = next(x for x in other.accesses if x.buffer.name == a.buffer.name)
            return written.spans[here.own]
    return a.spans[0]


def _wavefronts(gpu: GpuConstants, n: GpuNest, strides: tuple[Term, ...], wide: Term) -> Term:
    """Cycles in which shared memory answers one load of a warp. Lanes that read the same word share
    it; different words of one bank come one after the other.
    """
    g = n.graph
    distinct, worst = g.of(1), g.of(1)
    for lanes, step in n.lanes(strides, gpu.warp_size):
        moves = step.minimum(1)
        distinct = distinct * moves.where(lanes, 1)
        same_bank = lanes * largest_power(step, gpu.banks) / (gpu.banks * wide)
        worst = worst * moves.where(same_bank.maximum(1), 1)
    return (distinct * wide / gpu.banks).maximum(1).maximum(worst.minimum(distinct) * wide)


def _coalesced(gpu: GpuConstants, n: GpuNest, a: Access) -> Term:
    """Sectors that one access of a warp touches."""
    out = n.graph.of(1)
    for lanes, step in n.lanes(a.strides, gpu.warp_size):
        reach = (lanes * step * (a.nbytes / gpu.sector_nbytes)).minimum(lanes)
        out = out * reach.maximum(1)
    return out
