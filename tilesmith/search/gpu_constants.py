"""The constants of a GPU that the analytic score needs, derived from a Target.

Rates are per multiprocessor and cycle. The defaults are those of an H200: from NVIDIA's documents,
measured, or fitted to recorded measurements (tests/data/gpu). Other GPUs differ in size more than
in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tilesmith.base.target import Target

# Shared memory of a multiprocessor and its threads, by the first digits of the architecture.
_BY_ARCH = {
    "sm_70": (96 << 10, 2048), "sm_75": (64 << 10, 1024), "sm_8": (164 << 10, 2048),
    "sm_9": (228 << 10, 2048), "sm_10": (228 << 10, 2048),
}  # fmt: skip


@dataclass(frozen=True)
class GpuConstants:
    num_multiprocessors: int
    warp_size: int
    shared_nbytes: int  # of a multiprocessor, as are the next three
    threads: int
    registers: int
    most_blocks: int = 32
    l1_nbytes: int = 128 << 10  # what data of all blocks may take of L1
    l2_nbytes: int = 60 << 20
    issue: float = 4.0  # warp instructions
    math_cost: float = 8.0  # instructions of a function such as exp, of which part is on slow units
    divide_cost: float = 10.0
    fma_latency: float = 4.0
    shared_latency: float = 30.0  # cycles, as are the next three
    global_latency: float = 600.0
    sync_cycles: float = 40.0
    cluster_cycles: float = 2000.0  # to meet the other blocks of a cluster, and read what they have
    cluster_loss: float = 1.6  # slowdown of clusters of more than two blocks
    block_cycles: float = 80.0  # to begin a block, during which others compute little
    launch_cycles: float = 1500.0  # from one kernel of a graph to the next
    banks: int = 32  # of 4 bytes; each delivers one word per cycle
    sector_nbytes: int = 32  # what L2 delivers at least
    l1_sectors: float = 3.0  # per cycle
    l2_rate: float = 30.0  # bytes per cycle while all multiprocessors read
    l2_alone: float = 64.0  # the most that one of them gets
    memory_rate: float = 17.0  # 4.5 TB/s over 132 multiprocessors at 1.98 GHz
    most_registers: int = 255  # of a thread
    base_registers: int = 24  # addresses and loop counters
    spill_cost: float = 4.0  # slowdown of code whose registers do not suffice
    # Instructions of a loop that is not unrolled, per iteration: counter, test, and the addresses
    # that unrolled code has as constants.
    loop_cost: float = 24.0
    overlap_loss: float = 0.1  # share of a block's latencies that other blocks do not hide
    # Warps per scheduler at which half of its cycles issue an instruction; fewer than one leave
    # schedulers without work.
    half_busy: float = 1.0
    half_parallel: float = 64.0  # independent instructions of a thread, from which on it is less
    # Instructions to find the place of an element in a padded image, and whether it is inside.
    padded_cost: float = 70.0
    copy_cost: float = 6.0  # instructions to copy an element or a vector to shared memory

    @staticmethod
    def of(target: Target) -> GpuConstants:
        return _of(target)


@lru_cache(maxsize=64)
def _of(target: Target) -> GpuConstants:
    known = next((v for k, v in _BY_ARCH.items() if target.arch.startswith(k)), None)
    shared, threads = known or (2 * target.shared_nbytes, 2 * target.max_threads)
    return GpuConstants(
        max(1, target.num_multiprocessors), max(1, target.warp_size),
        max(shared, target.shared_nbytes), max(threads, target.max_threads),
        target.registers_per_block or 65536, l2_nbytes=target.l2_nbytes,
    )  # fmt: skip
