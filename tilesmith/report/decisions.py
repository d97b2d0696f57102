"""The decisions of measured candidates beside their times, to see which of them matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log
from typing import TypeVar

from tilesmith.task.task import Measurement

_COLUMNS = 24  # of one task: those that explain most

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column:
    """One size variable. `share` is how much of the variance of log(time) lies between its values,
    from 0 to 1; candidates of another sketch, which do not have it, are None.
    """

    name: str
    share: float
    values: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Decisions:
    """`times` are in microseconds, one for each entry of a column; `total` counts the candidates
    before thinning.
    """

    times: tuple[float, ...]
    columns: tuple[Column, ...]
    total: int


def decisions_of(measured: Sequence[Measurement], points: int) -> Decisions:
    """At most so many points: half of them are the fastest, the others are spread over the rest."""
    timed = [m for m in measured if m.failure is None and m.cost < inf]
    timed.sort(key=lambda m: m.cost)
    fastest = timed[: points // 2]
    kept = fastest + evenly(timed[len(fastest) :], points - len(fastest))
    rows = [m.candidate.trace.decisions for m in kept]
    names = dict.fromkeys(name for row in rows for name in row)
    logs = [log(m.cost) for m in kept]
    columns = []
    for name in names:
        values = tuple(row.get(name) for row in rows)
        if len(set(values) - {None}) > 1:
            columns.append(Column(name, round(_explained(values, logs), 3), values))
    columns.sort(key=lambda c: -c.share)
    times = tuple(float(f"{m.cost * 1e6:.5g}") for m in kept)
    return Decisions(times, tuple(columns[:_COLUMNS]), len(timed))


def evenly(items: Sequence[T], count: int) -> list[T]:
    """At most `count` of them, evenly spread, with the first and the last."""
    if len(items) <= count:
        return list(items)
    if count < 2:
        return list(items[:count])
    return [items[k * (len(items) - 1) // (count - 1)] for k in range(count)]


def _explained(values: Sequence[int | None], logs: Sequence[float]) -> float:
    """The correlation ratio, squared: variance between the groups over all variance."""
    groups: dict[int, list[float]] = {}
    for v, y in zip(values, logs, strict=True):
        if v is not None:
            groups.setdefault(v, []).append(y)
    every = [y for g in groups.values() for y in g]
    mean = sum(every) / len(every)
    total = sum((y - mean) ** 2 for y in every)
    between = sum(len(g) * (sum(g) / len(g) - mean) ** 2 for g in groups.values())
    return between / total if total > 0 else 0.0
