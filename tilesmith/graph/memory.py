"""Where the arrays of a plan lie: sizes and lifetimes in, offsets in one arena out."""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.base.dataclass import dataclass

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """From the step that writes it to the last step that reads it, both included."""

    nbytes: int
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Arena:
    offsets: Mapping[str, int]
    nbytes: int
    lower_bound: int  # bytes that are alive at the worst step: no arena is smaller


def plan_arena(lifetimes: Mapping[str, Lifetime], alignment: int = ALIGNMENT) -> Arena:
    """The largest arrays first, each at the lowest place that is free while it lives."""
    placed: list[tuple[int, int, Lifetime]] = []
    offsets: dict[str, int] = {}
    for name, life in sorted(lifetimes.items(), key=lambda x: (-x[1].nbytes, x[1].first, x[0])):
        nbytes = -(-life.nbytes // alignment) * alignment
        at = 0
        for begin, end, other in sorted(placed, key=lambda p: p[0]):
            if not life.meets(other):
                continue
            if begin - at >= nbytes:
                break
            at = max(at, end)
        offsets[name] = at
        placed.append((at, at + nbytes, life))
    total = max((end for _, end, _ in placed), default=0)
    return Arena(offsets, total, _lower_bound(lifetimes, alignment))


def _lower_bound(lifetimes: Mapping[str, Lifetime], alignment: int) -> int:
    change: dict[int, int] = {}
    for life in lifetimes.values():
        nbytes = -(-life.nbytes // alignment) * alignment
        change[life.first] = change.get(life.first, 0) + nbytes
        change[life.last + 1] = change.get(life.last + 1, 0) - nbytes
    live = most = 0
    for step in sorted(change):
        live += change[step]
        most = max(most, live)
    return most
