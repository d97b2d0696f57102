"""The constants of a CPU that the analytic score needs: sizes from the Target, the others from one
table for all machines of an architecture.

The table was fitted to measurements. Constants measured on the machine itself (latency of FMAs,
bandwidth of each cache) rank programs slightly worse: of all pairs of random programs 0.859 are in
the right order instead of 0.861 on a Xeon (ten tasks), and 0.815 instead of 0.820 on a Neoverse-N1
(seven tasks). `python -m bench.constants` compares them on records of the machine it runs on. An
FMA latency of 3 orders more pairs of random programs (0.867 and 0.832), but the programs that are
tried first do not get faster by it (fifteen operators on the Xeon).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tilesmith.base.given import checks_given
from tilesmith.base.target import Target

_SMALLEST_WAY = 4096  # bytes; L1 of x86-64 is indexed by the page offset, so a way is a page
_ARM_WAYS = 4  # associativity of L1 on Neoverse and Cortex-A7x cores
_WAYS = 16  # associativity of L2 and L3


# Registers besides the sums that code generation wants free before it loads factors together
# (codegen/llvm/lane_loads.py).
LANE_OPERANDS = 7


@dataclass(frozen=True)
class Cache:
    """One level. `nbytes` is its size and `way_nbytes` that of one of its ways.

    `bandwidth_below` is in bytes per cycle and core, from the next level or memory. `miss_nbytes`
    is what that level could have delivered during one miss: latency x bandwidth, minus what the
    hardware prefetcher hides.
    """

    nbytes: int
    way_nbytes: int
    bandwidth_below: float
    miss_nbytes: float


@checks_given
@dataclass(frozen=True)
class CpuConstants:
    """Sizes are in bytes and times in cycles. A Target gives the sizes; the other defaults were
    fitted to measurements on several machines.
    """

    num_cores: int
    vector_bits: int
    num_vector_registers: int
    caches: tuple[Cache, Cache, Cache]  # L1, L2, L3
    line_nbytes: int = 64
    ports: int = 2  # vector instructions per cycle, and loads per cycle
    fma_latency: float = 5.0  # between dependent FMAs: 4 of latency, 1 of scheduling loss
    usable_share: float = 0.75  # of a cache; the rest holds other data
    tail_speed: float = 0.98  # factor per non-dividing tile: partial tiles add code and branches
    # Share of the shorter of arithmetic and loads that does not overlap with the longer.
    overlap_loss: float = 0.35
    # Registers for what an instruction takes besides an accumulator and a vector of the tile: one
    # where arithmetic reads memory operands, three where every operand is loaded first (with two,
    # LLVM spills a 4 x 24 tile of float32 on Neoverse-N1: 30 instead of 36 GFLOP/s).
    scratch_registers: int = 1
    # Cycles per element of a sum whose vectors are not contiguous in the output. Such a sum cannot
    # stay in a register: each step loads, inserts, extracts and stores every element, and the next
    # step waits for that store (4.5 measured on Neoverse-N1).
    scattered_sum: float = 4.0
    # Cycles of an iteration of a parallel loop besides its body: finding its indices, and addresses
    # that a serial loop would step along (9 to 24 measured on Neoverse-N1).
    parallel_turn: float = 16.0
    lane_factors: bool = False  # a vector may be multiplied by one lane of another (Neon)

    def lanes(self, bits: int) -> int:
        return max(1, self.vector_bits // bits)

    @staticmethod
    def of(target: Target) -> CpuConstants:
        return _of(target)


@lru_cache(maxsize=64)
def _of(target: Target) -> CpuConstants:
    sizes = (target.l1_nbytes, target.l2_nbytes, target.l3_nbytes)
    below = ((32.0, 64.0), (10.0, 256.0), (4.0, 256.0))  # bandwidth_below, miss_nbytes
    ways = (_ARM_WAYS if target.arch == "aarch64" else _WAYS, _WAYS, _WAYS)
    l1, l2, l3 = (
        Cache(nbytes, max(_SMALLEST_WAY, nbytes // k), *rest)
        for nbytes, k, rest in zip(sizes, ways, below, strict=True)
    )
    return CpuConstants(
        target.num_cores, target.vector_bits, target.num_vector_registers, (l1, l2, l3),
        scratch_registers=1 if target.arch == "x86-64" else 3,
        lane_factors=target.arch == "aarch64",
    )  # fmt: skip
