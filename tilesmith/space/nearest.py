"""Nearest-neighbour search among candidates of a variant. The distance is Euclidean in log2 of the
decisions: 4 to 8 is as far as 64 to 128.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from tilesmith.base.errors import ScheduleError
from tilesmith.schedule.trace import Trace
from tilesmith.space.domains import Matrix
from tilesmith.space.reopen import reopen, stacked
from tilesmith.space.variant import Variant
from tilesmith.task.task import Candidate

T = TypeVar("T")


class Rows(Generic[T]):
    """Rows of one variant with an item each. A row that was taken is not returned again."""

    def __init__(self, variant: Variant, rows: list[tuple[int, ...]], items: list[T]) -> None:
        self.variant, self.items = variant, items
        self.matrix: Matrix = stacked(rows, variant)
        self._logs = _log2(self.matrix)
        self._taken = np.zeros(len(rows))

    def nearest(self, row: Sequence[int]) -> int:
        """The position of the nearest row, the first of equals; -1 if all are taken."""
        at = int(np.argmin(self.distances(row)))
        return -1 if np.isinf(self._taken[at]) else at

    def distances(self, row: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.asarray(np.square(self._logs - _log2(np.array(row))).sum(axis=1) + self._taken)

    def take(self, at: int) -> T:
        self._taken[at] = np.inf
        return self.items[at]


def _log2(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """log2, where the choice 0 counts as 1/2."""
    return np.asarray(np.log2(np.maximum(rows, 0.5)))


def rows_by_variant(pairs: Iterable[tuple[Candidate, T]]) -> dict[Trace, Rows[T]]:
    """The rows of candidates of one task, by the open trace of their variant. Traces that can no
    longer be applied are left out.
    """
    groups: dict[Trace, tuple[Variant, list[tuple[int, ...]], list[T]]] = {}
    for c, item in pairs:
        try:
            variant, row = reopen(c)
        except ScheduleError:
            continue
        _, rows, items = groups.setdefault(variant.trace, (variant, [], []))
        rows.append(row)
        items.append(item)
    return {key: Rows(v, rows, items) for key, (v, rows, items) in groups.items()}
