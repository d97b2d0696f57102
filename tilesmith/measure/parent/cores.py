"""Divides the cores that this process may use into cores that run kernels and cores that build."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

_EQUAL = 1.05  # cores whose probes differ by a smaller factor are equally good
_MAX_PROBED = 8


@dataclass(frozen=True, slots=True)
class Cores:
    """`run` are for kernels, and for builds while no kernel runs. `free` may build at any time."""

    run: tuple[int, ...]
    free: tuple[int, ...]

    @property
    def all(self) -> tuple[int, ...]:
        return (*self.free, *self.run)


def usable_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def to_probe(num_threads: int, usable: Collection[int]) -> list[int]:
    """The cores on which the reference kernel is to be timed; none if kernels need all cores."""
    if num_threads >= len(usable):
        return []
    return sorted(usable)[-max(_MAX_PROBED, num_threads) :]


def share_out(num_threads: int, usable: Collection[int], probes: Mapping[int, float]) -> Cores:
    """Kernels run on the fastest cores by `probes`, the seconds of the reference kernel. Among
    equal cores the last are taken, because systems run their own tasks on the first. The sibling
    hardware threads of a core that runs kernels stay idle.
    """
    fastest = min(probes.values(), default=0.0)

    def merit(core: int) -> tuple[bool, float, int]:
        seconds = probes.get(core, float("inf"))
        return seconds > _EQUAL * fastest, seconds if seconds > _EQUAL * fastest else 0.0, -core

    run = tuple(sorted(sorted(usable, key=merit)[:num_threads]))
    taken = set(run).union(*(siblings(c) for c in run))
    return Cores(run, tuple(c for c in sorted(usable) if c not in taken))


def siblings(core: int) -> set[int]:
    """The hardware threads of a core, itself included."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    threads = {core}
    try:
        for part in path.read_text().strip().split(","):
            first, _, last = part.partition("-")
            threads.update(range(int(first), int(last or first) + 1))
    except (OSError, ValueError):
        pass
    return threads
