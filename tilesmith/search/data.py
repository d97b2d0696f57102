"""Measurements as training data: rows grouped by variant. A row's label is its speed relative to
the fastest program of the same task, between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilesmith.base.errors import ScheduleError
from tilesmith.base.given import checks_given
from tilesmith.search.protocol import Scores
from tilesmith.space.domains import Matrix
from tilesmith.space.reopen import reopen, stacked
from tilesmith.space.variant import Variant
from tilesmith.task.task import Measurement

# Failures of the machine, not of the program: nothing is learned from them.
_NO_LESSON = ("error",)


@dataclass(frozen=True, eq=False)
class Group:
    """Measured rows of one variant. `labels` are 0 for failures; `at` is the position of each row
    among the measurements.
    """

    variant: Variant
    rows: Matrix
    labels: Scores
    at: np.ndarray[tuple[int], np.dtype[np.int64]]

    def part(self, keep: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Group:
        return Group(self.variant, self.rows[keep], self.labels[keep], self.at[keep])


def _is_timed(m: Measurement) -> bool:
    return m.failure is None and m.normal_cost < np.inf


def labels_of(measurements: Sequence[Measurement]) -> Scores:
    """Lowest cost of the task / cost, separately for normal and raw times; 0 for a failure."""
    best: dict[tuple[str, bool], float] = {}
    for m in measurements:
        if _is_timed(m):
            key = m.candidate.task.key, m.is_normal
            best[key] = min(best.get(key, np.inf), m.normal_cost)
    return np.array(
        [
            best[m.candidate.task.key, m.is_normal] / m.normal_cost if _is_timed(m) else 0.0
            for m in measurements
        ]
    )


@checks_given
def groups_of(measurements: Sequence[Measurement]) -> list[Group]:
    """Measurements to learn from, by variant. Traces that can no longer be applied, such as records
    of another version, are left out.
    """
    labels = labels_of(measurements)
    by_variant: dict[int, tuple[Variant, list[tuple[int, ...]], list[int]]] = {}
    for k, m in enumerate(measurements):
        if m.failure is not None and m.failure.kind in _NO_LESSON:
            continue
        try:
            variant, row = reopen(m.candidate)
        except ScheduleError:
            continue
        _, rows, at = by_variant.setdefault(id(variant), (variant, [], []))
        rows.append(row)
        at.append(k)
    return [
        Group(v, stacked(rows, v), labels[np.array(at)], np.array(at))
        for v, rows, at in by_variant.values()
    ]
