"""NVIDIA's GPUs, by their compute capability: "sm_90a" is 9.0, and code for it runs on no other."""

from __future__ import annotations

import re
from functools import cache

from tilesmith.base.machines.machine import GpuMachine, GpuModel

# Shared memory of a multiprocessor and its threads, by the first digits of the architecture.
_MULTIPROCESSORS = {
    "sm_70": (96 << 10, 2048), "sm_75": (64 << 10, 1024), "sm_8": (164 << 10, 2048),
    "sm_9": (228 << 10, 2048), "sm_10": (228 << 10, 2048),
}  # fmt: skip

MODELS = {
    "nvidia-v100": GpuModel("sm_70", 80, 48, 6),
    "nvidia-a100": GpuModel("sm_80", 108, 163, 40),
    "nvidia-h100": GpuModel("sm_90a", 132, 227, 50),
    "nvidia-h200": GpuModel("sm_90a", 132, 227, 60),
}


def arch_of(major: int, minor: int) -> str:
    """From 9.0 on, some instructions exist only in code for exactly this architecture."""
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def _number(arch: str) -> int:
    """90 of sm_90a; 0 of anything else."""
    found = re.fullmatch(r"sm_(\d+)[af]?", arch)
    return int(found[1]) if found else 0


@cache
def cuda_machine(arch: str) -> GpuMachine:
    number = _number(arch)
    known = (v for k, v in _MULTIPROCESSORS.items() if arch.startswith(k))
    shared, threads = next(known, (0, 0))
    return GpuMachine(
        warp_products=number >= 80,
        group_products=arch.startswith("sm_90a"),
        clusters=number >= 90,
        overlaps=number >= 90,
        shared_nbytes=shared,
        threads=threads,
    )


def runs_on(code: str, here: str) -> bool:
    """Whether code for an architecture runs on another: on the same major number and a minor one
    that is not smaller. With an "a" it runs on exactly this one.
    """
    if code == here or code[-1:] == "a":
        return code == here
    one, other = _number(code), _number(here)
    return one > 0 and one // 10 == other // 10 and one % 10 <= other % 10
