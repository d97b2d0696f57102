"""Cycles of a launch whose blocks compute by matrix instructions, as a closed form over a variant's
columns: tensor cores, the bytes that a stage takes from L2, and what a pipeline does not hide.
"""

from __future__ import annotations

from tilesmith.base.machines.constants import GpuConstants
from tilesmith.search.features.graph import Graph, Term
from tilesmith.search.features.nest import Nest
from tilesmith.search.gpu_needs import gpu_nest

# Measured on an H200, in cycles and bytes per cycle of a multiprocessor.
_COPY_RATE = 48.0  # of the copy engine from L2 while all of them read
_STORE_RATE = 24.0
_COPY_LATENCY = 1000.0
_START = 1500.0  # barriers, the first stage
_STAGE = 60.0  # waiting for a stage and setting it free, once all its products are done
_STAGE_IN_FLIGHT = 20.0  # the same, while the next stage's products run


def tensor_cycles(gpu: GpuConstants, g: Graph, nests: tuple[Nest, ...]) -> Term | None:
    """Cycles of all blocks of the launch; None if it has no matrix instruction."""
    found = next((n for n in nests if n.block.intrinsic and n.block.intrinsic.fragment), None)
    if found is None:
        return None
    here = gpu_nest(found)
    assert found.block.intrinsic is not None
    pairs = list(zip(found.loops, here.axes, strict=False))
    held = g.product([x.extent for x, a in pairs if a == "vthread"])
    blocks = [x.extent for x, a in pairs if a == "block"]
    num_blocks = g.product(blocks)
    (_, m), (_, n), _ = found.block.tile
    rows = here.threads * held * float(m.number)
    columns = float(n.number)
    nbytes, turns = g.of(0), g.of(1)
    for copy in map(gpu_nest, nests):
        if copy.copies:
            nbytes = nbytes + copy.tile * float(copy.target.dtype.nbytes)
            turns = copy.steps
    each = here.each / held / turns  # instructions of a group's tile in a stage
    apart = _note(found, "in_flight") > 1
    products = here.threads * held * each * found.block.intrinsic.cost
    products = products + apart.where(_STAGE_IN_FLIGHT, _STAGE)
    stages = here.versions
    stage = products.maximum(nbytes / _COPY_RATE).maximum(_COPY_LATENCY / (stages - 1).maximum(1))
    store = rows * columns * float(here.target.dtype.nbytes) / 2 / _STORE_RATE
    count = float(gpu.num_multiprocessors)
    rounds = (num_blocks / count).ceil()
    keeps = _note(found, "resident") < num_blocks  # a block goes on with the next tile
    starts = keeps.where(1, rounds)
    cycles = rounds * (turns * stage + store) + starts * _START
    # Blocks that run at the same time read each operand once from memory.
    side = blocks[-1].minimum(count)
    wave = side * rows + (count / side).ceil().minimum(num_blocks / side) * columns
    memory = rounds * turns * wave * 128 / (gpu.memory_rate * count)
    return cycles.maximum(memory) + gpu.launch_cycles


def _note(n: Nest, key: str) -> Term:
    for f in n.path:
        if (note := f.note(key)) is not None:
            return n.runs.size(note)
    return n.graph.of(1)
