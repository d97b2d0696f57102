"""The decisions of measured candidates beside their times, to see which of them matter."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log
from typing import TypeVar

from tilesmith.base.dataclass import dataclass
from tilesmith.task.task import Measurement

_COLUMNS = 24  # of one task: those that explain most

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column:
    """One size variable. `share` is how much of the variance of log(time) it explains, from 0 to 1;
    candidates of another sketch, which do not have it, are None.
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
    """At most so many points: half of them are the fastest, the others are spread over the rest.

    All times are scaled to the machine's speed when the fastest was measured. If some have
    reference times, the others are left out, because the two scales cannot be compared.
    """
    timed = [m for m in measured if m.failure is None and m.normal_cost < inf]
    timed.sort(key=lambda m: m.rank)
    timed = [m for m in timed if m.is_normal is timed[0].is_normal]
    speed = timed[0].cost / timed[0].normal_cost if timed else 1.0
    fastest = timed[: points // 2]
    kept = fastest + evenly(timed[len(fastest) :], points - len(fastest))
    rows = [m.candidate.trace.decisions for m in kept]
    names = dict.fromkeys(name for row in rows for name in row)
    logs = [log(m.normal_cost) for m in kept]
    columns = []
    for name in names:
        values = tuple(row.get(name) for row in rows)
        if len(set(values) - {None}) > 1:
            columns.append(Column(name, round(_explained(values, logs), 3), values))
    columns.sort(key=lambda c: -c.share)
    times = tuple(float(f"{m.normal_cost * speed * 1e6:.5g}") for m in kept)
    return Decisions(times, tuple(columns[:_COLUMNS]), len(timed))


def evenly(items: Sequence[T], count: int) -> list[T]:
    """At most `count` of them, evenly spread, with the first and the last."""
    if len(items) <= count:
        return list(items)
    if count < 2:
        return list(items[:count])
    return [items[k * (len(items) - 1) // (count - 1)] for k in range(count)]


def _explained(values: Sequence[int | None], logs: Sequence[float]) -> float:
    """The variance between the groups over all variance, less what chance alone explains: many
    groups of few members each always differ (the statistic epsilon squared; 0 if all are single).
    """
    groups: dict[int, list[float]] = {}
    for v, y in zip(values, logs, strict=True):
        if v is not None:
            groups.setdefault(v, []).append(y)
    every = [y for g in groups.values() for y in g]
    mean = sum(every) / len(every)
    total = sum((y - mean) ** 2 for y in every)
    means = {v: sum(g) / len(g) for v, g in groups.items()}
    within = sum((y - means[v]) ** 2 for v, g in groups.items() for y in g)
    free = len(every) - len(groups)
    if total <= 0 or free == 0:
        return 0.0
    return max(0.0, 1 - within / total * (len(every) - 1) / free)
