"""The constants that the analytic scores need of a machine: sizes from the Target, the others from
one table for all machines of an architecture.

The table of CPUs was fitted to measurements. Constants measured on the machine itself (latency of
FMAs, bandwidth of each cache) rank programs slightly worse: of all pairs of random programs 0.859
are in the right order instead of 0.861 on a Xeon (ten tasks), and 0.815 instead of 0.820 on a
Neoverse-N1 (seven tasks). `python -m bench.constants` compares them on records of the machine it
runs on. An FMA latency of 3 orders more pairs of random programs (0.867 and 0.832), but the
programs that are tried first do not get faster by it (fifteen operators on the Xeon).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tilesmith.base.machines.machine import CpuRates, GpuRates
from tilesmith.base.target import Lanes, Target


@dataclass(frozen=True)
class Cache:
    """One level. `nbytes` is its size and `way_nbytes` that of one of its ways; the others are
    those of CpuRates.below.
    """

    nbytes: int
    way_nbytes: int
    bandwidth_below: float
    miss_nbytes: float


@dataclass(frozen=True, kw_only=True)
class CpuConstants(CpuRates):
    """Sizes are in bytes and times in cycles. A Target gives the sizes, its architecture the
    others.
    """

    num_cores: int
    vector_bits: int
    num_vector_registers: int
    caches: tuple[Cache, Cache, Cache]  # L1, L2, L3

    def lanes(self, bits: int) -> int:
        return Lanes(self.vector_bits).of(bits)

    @staticmethod
    def of(target: Target) -> CpuConstants:
        return _of_cpu(target)


@lru_cache(maxsize=64)
def _of_cpu(target: Target) -> CpuConstants:
    rates = target.machine.rates
    sizes = (target.l1_nbytes, target.l2_nbytes, target.l3_nbytes)
    l1, l2, l3 = (
        Cache(nbytes, max(rates.smallest_way_nbytes, nbytes // ways), *below)
        for nbytes, ways, below in zip(sizes, rates.ways, rates.below, strict=True)
    )
    return CpuConstants(
        num_cores=target.num_cores,
        vector_bits=target.vector_bits,
        num_vector_registers=target.num_vector_registers,
        caches=(l1, l2, l3),
        **vars(rates),
    )


@dataclass(frozen=True, kw_only=True)
class GpuConstants(GpuRates):
    num_multiprocessors: int
    warp_size: int
    shared_nbytes: int  # of a multiprocessor, as are the next two
    threads: int
    registers: int
    l2_nbytes: int

    @staticmethod
    def of(target: Target) -> GpuConstants:
        return _of_gpu(target)


@lru_cache(maxsize=64)
def _of_gpu(target: Target) -> GpuConstants:
    gpu = target.gpu
    return GpuConstants(
        num_multiprocessors=max(1, target.num_multiprocessors),
        warp_size=max(1, target.warp_size),
        shared_nbytes=max(gpu.shared_nbytes or 2 * target.shared_nbytes, target.shared_nbytes),
        threads=max(gpu.threads or 2 * target.max_threads, target.max_threads),
        registers=target.registers_per_block or 65536,
        l2_nbytes=target.l2_nbytes,
        **vars(gpu.rates),
    )
