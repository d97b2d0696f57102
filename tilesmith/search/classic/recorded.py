"""Replays a strategy on recorded measurements: every proposal is replaced by the nearest record
that was not proposed yet. So strategies can be compared without hardware.

The records should be dense where the strategies search; `moved` tells how far proposals were moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError, TuneError
from tilesmith.base.given import checks_given
from tilesmith.schedule.trace import Trace
from tilesmith.search.protocol import Search, Strategy
from tilesmith.space.domains import Matrix, Rng
from tilesmith.space.variant import Variant, reopen, stacked
from tilesmith.task.task import Candidate, Measurement, Task

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


_ATTEMPTS = 3  # rounds of proposals, because a variant may have no records left


@checks_given(error=TuneError)
@dataclass(frozen=True)
class RecordedSpace:
    """The variants of the records, whatever sketches the current rules derive."""

    records: Sequence[Measurement]

    def sketches(self, task: Task) -> tuple[Trace, ...]:
        """The sketches that the records of the task belong to."""
        by_variant = rows_by_variant(
            (m.candidate, m) for m in self.records if m.candidate.task == task
        )
        return tuple(rows.variant.trace for rows in by_variant.values())


@checks_given(error=TuneError)
@dataclass(frozen=True)
class Recorded:
    """A strategy that proposes recorded candidates only: those nearest to what another strategy
    proposes. With `ts.ReplayMeasurer` it repeats a run without measuring.
    """

    strategy: Strategy
    records: Sequence[Measurement]

    def start(self, task: Task, sketches: Sequence[Trace], rng: Rng) -> RecordedSearch:
        """The search of one task."""
        pairs = ((m.candidate, m.candidate) for m in self.records if m.candidate.task == task)
        return RecordedSearch(
            self.strategy.start(task, sketches, rng), rows_by_variant(dict(pairs).items())
        )


class RecordedSearch:
    """`moved` are the distances from proposals to the records that replaced them, in log2 of
    decisions.
    """

    def __init__(self, search: Search, rows: dict[Trace, Rows[Candidate]]) -> None:
        self._search, self._rows = search, rows
        self._left = {c.key: (key, k) for key, r in rows.items() for k, c in enumerate(r.items)}
        self.moved: list[float] = []

    def ask(self, n: int) -> list[Candidate]:
        out: list[Candidate] = []
        for _ in range(_ATTEMPTS):
            if len(out) == n or not self._left:
                break
            proposed = self._search.ask(n - len(out))
            if not proposed:
                break
            out += [c for p in proposed if (c := self._move(p)) is not None]
        # The strategy finds nothing more: the remaining records, in their order.
        return out + [self._take(key) for key in [*self._left][: n - len(out)]]

    def _take(self, key: str) -> Candidate:
        variant, at = self._left.pop(key)
        return self._rows[variant].take(at)

    def _move(self, proposed: Candidate) -> Candidate | None:
        try:
            variant, row = reopen(proposed)
        except ScheduleError:
            return None
        rows = self._rows.get(variant.trace)
        if rows is None or (at := rows.nearest(row)) < 0:
            return None
        self.moved.append(float(np.sqrt(rows.distances(row)[at])))
        return self._take(rows.items[at].key)

    def tell(self, measurements: Sequence[Measurement]) -> None:
        for m in measurements:
            if m.candidate.key in self._left:  # measured elsewhere: not proposed again
                self._take(m.candidate.key)
        self._search.tell(measurements)
