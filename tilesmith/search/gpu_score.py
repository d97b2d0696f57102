"""The analytic score of GPUs: estimates the cycles of a variant's rows without measurements, as
closed forms over its decision variables.

For each launch, what one block needs of a multiprocessor is added up: instructions, words of shared
memory with their bank conflicts, sectors of L1, bytes of L2. A multiprocessor computes its share of
the blocks at the rate of the scarcest of these; but a block also has latencies, which other blocks
hide that fit beside it. Registers, shared memory and threads decide how many fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.given import checks_given
from tilesmith.base.target import GpuConstants, Target
from tilesmith.ir.nodes import walk
from tilesmith.ir.notes import Count, HoldRow, ResidentBlocks, StagesInFlight
from tilesmith.search.features.graph import ClosedForm, Graph, Term
from tilesmith.search.features.nest import Nest, shared_nests
from tilesmith.search.gpu_needs import Needs, gpu_nest, instructions_of, needs_of
from tilesmith.space.variant import Variant


@checks_given(error=TuneError)
@dataclass(frozen=True)
class GpuScore(ClosedForm):
    """`constants` describe the GPU; None takes `GpuConstants.of` the task's target."""

    constants: GpuConstants | None = None

    def term(self, variant: Variant) -> Term:
        return _doublings(self, variant, *shared_nests(variant))

    def estimates(self, nest: Nest) -> tuple[Term, ...]:
        """Cycles of a statement in one block: instructions, shared memory and L1, L2, memory."""
        gpu = self.constants_of(nest.variant.task.target)
        need = needs_of(gpu, nest)
        l2, memory = (sum(x.values(), nest.graph.of(0)) for x in (need.l2, need.memory))
        memory = memory / (gpu.memory_rate * gpu.num_multiprocessors)
        return need.issued / gpu.issue, need.words + need.sectors, l2 / gpu.l2_rate, memory

    def constants_of(self, target: Target) -> GpuConstants:
        return GpuConstants.of(target) if self.constants is None else self.constants


@lru_cache(maxsize=256)
def _doublings(score: GpuScore, variant: Variant, graph: Graph, nests: tuple[Nest, ...]) -> Term:
    gpu = score.constants_of(variant.task.target)
    cycles = graph.of(0)
    for launch in launches_of(nests):
        cycles = cycles + _launch(gpu, graph, launch)
    work = sum(
        prod(i.extent.number for i in b.iters) * instructions_of(gpu, b)
        for _, b in walk(variant.task.func.body)
    )
    ideal = work / (gpu.warp_size * gpu.issue * gpu.num_multiprocessors)
    return (ideal / cycles.maximum(1e-9)).maximum(1e-9).log2()


@dataclass(frozen=True, eq=False)
class Occupancy:
    """What a launch takes of the multiprocessors."""

    threads: Term  # of a block
    blocks: Term
    registers: Term  # of a thread
    shared: Term  # bytes of a block
    spills: Term  # 1 where the registers do not suffice
    resident: Term  # blocks that a multiprocessor holds at once
    share: Term  # blocks of the busiest multiprocessor


@lru_cache(maxsize=256)  # the score and the features both ask for it
def occupancy(gpu: GpuConstants, nests: tuple[Nest, ...]) -> Occupancy:
    """The occupancy of the launch that consists of these statements."""
    g = nests[0].graph
    threads, blocks, shared, registers = g.of(1), g.of(1), g.of(0), g.of(0)
    common: dict[str, Term] = {}  # registers of what several statements use
    for n in nests:
        here, need = gpu_nest(n), needs_of(gpu, n)
        threads, blocks = threads.maximum(here.threads), blocks.maximum(here.blocks)
        shared, registers = shared + need.shared, registers.maximum(need.registers)
        if here.held:
            most = common.get(here.target.name, g.of(0))
            common[here.target.name] = most.maximum(here.results)
    registers = sum(common.values(), registers) + gpu.base_registers
    lanes = (threads / gpu.warp_size).ceil() * gpu.warp_size
    held = lanes * registers
    spills = (registers > gpu.most_registers).maximum(held > gpu.registers)
    resident = (gpu.threads / lanes).minimum(gpu.registers / held)
    resident = resident.minimum(gpu.shared_nbytes / (shared + 1024))
    resident = (resident.minimum(gpu.most_blocks) // 1).maximum(1)
    share = (blocks / gpu.num_multiprocessors).ceil()
    return Occupancy(threads, blocks, registers, shared, spills, resident, share)


def launches_of(nests: Sequence[Nest]) -> list[tuple[Nest, ...]]:
    """The statements of each launch: those inside of one outermost loop."""
    launches: dict[str, list[Nest]] = {}
    for n in nests:
        launches.setdefault(n.path[0].name if n.path else n.block.name, []).append(n)
    return [tuple(x) for x in launches.values()]


def _launch(gpu: GpuConstants, g: Graph, nests: tuple[Nest, ...]) -> Term:
    """Cycles of all blocks of a launch, and of starting it."""
    if (cycles := tensor_cycles(gpu, g, nests)) is not None:
        return cycles
    room = occupancy(gpu, nests)
    needs = [needs_of(gpu, n) for n in nests]
    each_l2 = gpu.l2_nbytes / gpu.num_multiprocessors
    issued, words, latency = (g.of(0) for _ in range(3))
    ahead, fetched, parallel = g.of(0), g.of(0), g.of(1)
    together = room.resident.minimum(room.share)
    held = _held(g, nests)
    # What several statements read, the caches hold for all blocks that run at once, or do not.
    once = {
        name: ((most * together > gpu.l1_nbytes), (most * together > each_l2))
        for name, most in _most(needs).items()
    }
    l2 = _together(g, [x.l2 for x in needs], {k: held.where(0, a) for k, (a, _) in once.items()})
    memory = _together(
        g, [x.memory for x in needs], {k: held.where(0, b) for k, (_, b) in once.items()}
    )
    for x in needs:
        issued, words = issued + x.issued, words + x.words + x.sectors
        latency = latency + x.latency
        ahead, fetched = ahead.maximum(x.ahead), fetched.maximum(x.fetched)
        parallel = parallel.maximum(x.parallel)
    warps = (room.threads / gpu.warp_size).ceil()
    # what a multiprocessor needs for a block among others, and for a block alone
    issue = issued * room.spills.where(gpu.spill_cost, 1) / gpu.issue
    every = issue / _filled(gpu, warps * together, parallel)
    busy = _overlapped([every, words, l2 / _l2_rate(gpu, room.blocks)])
    alone = _overlapped([issue / _filled(gpu, warps, parallel), words, l2 / gpu.l2_alone])
    waits = latency + fetched + (ahead - alone).maximum(0)
    rounds = (room.share / room.resident).ceil()
    cycles = (room.share * busy).maximum(rounds * (alone + waits))
    cycles = cycles + rounds * waits * gpu.overlap_loss
    memory = memory / (gpu.memory_rate * gpu.num_multiprocessors)
    # Large clusters were much slower than what their blocks need.
    cluster = g.of(1)
    for n in nests:
        cluster = cluster.maximum(gpu_nest(n).parts)
    cycles = cycles * (cluster > 2).where(gpu.cluster_loss, 1)
    cycles = cycles + room.share * gpu.block_cycles
    return _overlapped([cycles, memory], _MEMORY_SHARE) + gpu.launch_cycles


def _filled(gpu: GpuConstants, warps: Term, parallel: Term) -> Term:
    """The share of its cycles in which a multiprocessor with so many warps issues instructions. Of
    threads with very many independent instructions, fewer suffice.
    """
    each = warps / gpu.issue
    share = each / (each.maximum(1) + gpu.half_busy * (gpu.half_parallel / parallel).minimum(1))
    return share.minimum(each * parallel.minimum(16) / gpu.fma_latency)


def _most(needs: Sequence[Needs]) -> dict[str, Term]:
    """The most bytes of each buffer that a statement of a block reads or writes."""
    out: dict[str, Term] = {}
    for x in needs:
        for name, nbytes in x.l2.items():
            out[name] = out[name].maximum(nbytes) if name in out else nbytes
    return out


def _held(g: Graph, nests: tuple[Nest, ...]) -> Term:
    """1 where threads keep the rows that they read several times (see hold_rows.py)."""
    for n in nests:
        for f in n.path:
            if (note := f.note(HoldRow)) is not None:
                return n.runs.size(note.count) + 1 > gpu_nest(n).each
    return g.of(0)


def _together(g: Graph, parts: list[dict[str, Term]], again: dict[str, Term]) -> Term:
    """Bytes that come from below a cache: those of several statements once, or `again`."""
    total = g.of(0)
    for name in dict.fromkeys(n for part in parts for n in part):
        of_buffer = [part[name] for part in parts if name in part]
        most = of_buffer[0]
        for t in of_buffer[1:]:
            most = most.maximum(t)
        total = total + again[name].where(sum(of_buffer, g.of(0)), most)
    return total


def _overlapped(parts: list[Term], share: float = 0.3) -> Term:
    """The longest of them, and a share of the others."""
    longest, total = parts[0], parts[0]
    for t in parts[1:]:
        longest, total = longest.maximum(t), total + t
    return longest + (total - longest) * share


# The rest of a launch is hidden behind its memory accesses, or these behind it, but for this share.
_MEMORY_SHARE = 0.1

# Measured on an H200, in cycles and bytes per cycle of a multiprocessor.
_COPY_RATE = 48.0  # of the copy engine from L2 while all of them read
_SHARERS = 8.0  # multiprocessors, up to which what L2 reads once goes to all that ask for it
_COPY_LATENCY = 1000.0
_START = 1500.0  # barriers, the first stage
_STAGE = 60.0  # waiting for a stage and setting it free, once all its products are done
_STAGE_IN_FLIGHT = 20.0  # the same, while the next stage's products run


def tensor_cycles(gpu: GpuConstants, g: Graph, nests: tuple[Nest, ...]) -> Term | None:
    """Cycles of all blocks of the launch; None if it has no matrix instruction for which the copy
    engine brings the operands: one of several warps.
    """
    units = ((n, n.block.intrinsic) for n in nests if n.block.intrinsic is not None)
    groups = ((n, u) for n, u in units if u.fragment and u.fragment.threads > gpu.warp_size)
    found, unit = next(groups, (None, None))
    if found is None or unit is None:
        return None
    here = gpu_nest(found)
    pairs = list(zip(found.loops, here.axes, strict=False))
    held = g.product([x.extent for x, a in pairs if a == "vthread"])
    blocks = [x.extent for x, a in pairs if a == "block"]
    num_blocks = g.product(blocks)
    (_, m), (_, n), _ = found.block.tile
    rows = here.threads * held * float(m.number)
    columns = float(n.number)
    nbytes, own_nbytes, turns = g.of(0), g.of(0), g.of(1)
    for copy in map(gpu_nest, nests):
        if copy.copies:
            here_nbytes = copy.tile * float(copy.target.dtype.nbytes)
            nbytes = nbytes + here_nbytes
            own_nbytes = own_nbytes + here_nbytes / copy.sharers.minimum(_SHARERS)
            turns = copy.steps
    each = here.each / held / turns  # instructions of a group's tile in a stage
    apart = _count(found, StagesInFlight) > 1
    products = here.threads * held * each * unit.cost
    products = products + apart.where(_STAGE_IN_FLIGHT, _STAGE)
    stages = here.versions
    l2_rate = _l2_rate(gpu, num_blocks)
    copied = (nbytes / _COPY_RATE).maximum(own_nbytes / l2_rate)
    stage = products.maximum(copied).maximum(_COPY_LATENCY / (stages - 1).maximum(1))
    store = _store_cycles(gpu, nests, rows * columns, l2_rate)
    count = float(gpu.num_multiprocessors)
    rounds = (num_blocks / count).ceil()
    keeps = _count(found, ResidentBlocks) < num_blocks  # a block goes on with the next tile
    starts = keeps.where(1, rounds)
    cycles = rounds * (turns * stage + store) + starts * _START
    # Blocks that run at the same time read each operand once from memory.
    side = blocks[-1].minimum(count)
    wave = side * rows + (count / side).ceil().minimum(num_blocks / side) * columns
    memory = rounds * turns * wave * 128 / (gpu.memory_rate * count)
    return cycles.maximum(memory) + gpu.launch_cycles


def _l2_rate(gpu: GpuConstants, blocks: Term) -> Term:
    """Bytes per cycle that a multiprocessor gets from L2 beside the others that have a block."""
    others = blocks.minimum(float(gpu.num_multiprocessors))
    rate = gpu.l2_rate * gpu.num_multiprocessors / others
    return rate.minimum(gpu.l2_alone)


def _store_cycles(gpu: GpuConstants, nests: tuple[Nest, ...], elements: Term, rate: Term) -> Term:
    """Cycles to store a tile: by way of shared memory, or by each quad of threads 8 neighbours."""
    cycles = elements * 0
    for n in nests:
        here = gpu_nest(n)
        if here.unloads or here.stores:
            need = needs_of(gpu, n)
            cycles = cycles + need.words + sum(need.l2.values(), elements * 0) / rate
        elif here.target.scope == "global" and not here.copies:
            row = here.target.shape[-1].number * here.target.dtype.nbytes
            sectors = 1.0
            if row % gpu.sector_nbytes:
                sectors = 2 * gpu.part_of_sector
            elif 8 * here.target.dtype.nbytes < gpu.sector_nbytes:
                sectors = gpu.part_of_sector
            cycles = cycles + elements * (sectors * gpu.sector_nbytes / 8) / rate
    return cycles


def _count(n: Nest, kind: type[Count]) -> Term:
    for f in n.path:
        if (note := f.note(kind)) is not None:
            return n.runs.size(note.count)
    return n.graph.of(1)
