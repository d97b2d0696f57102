"""Who works where: the cores this process may use and a target in, cores for running kernels and
cores for building out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cores:
    """Building may go on beside measuring on `free` only; on `run` as well when nothing runs."""

    run: tuple[int, ...]
    free: tuple[int, ...]

    @property
    def all(self) -> tuple[int, ...]:
        return (*self.free, *self.run)


def share_out(num_threads: int, available: frozenset[int] | None = None) -> Cores:
    """The last cores run kernels: systems put their own chores on the first. One whose sibling
    hardware thread runs kernels stays idle.
    """
    usable = sorted(os.sched_getaffinity(0) if available is None else available)
    run = tuple(usable[-num_threads:])
    taken = set(run).union(*(siblings(c) for c in run))
    return Cores(run, tuple(c for c in usable if c not in taken))


def siblings(core: int) -> set[int]:
    """The hardware threads of a core, itself included."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    found = {core}
    try:
        for part in path.read_text().strip().split(","):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    except (OSError, ValueError):
        pass
    return found
