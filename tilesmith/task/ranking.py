"""Ranks the measurements of a task: which one counts for each candidate, and which is the best."""

from __future__ import annotations

from collections.abc import Iterable

from tilesmith.task.task import Measurement, Standing, standing_of, trust


class Ranking:
    """For each candidate, the latest of its most reliable measurements counts: confirmed ones
    before those on a calm machine before contended ones. A failure cancels everything before it.
    """

    def __init__(self, measurements: Iterable[Measurement] = ()) -> None:
        self._valid: dict[str, Measurement] = {}
        self._trust: dict[str, tuple[int, float]] = {}  # of each, because medians take time
        self.best: Measurement | None = None  # the first by `trust` of those that count
        for m in measurements:
            self.add(m)

    def add(self, m: Measurement) -> None:
        key, rank = m.candidate.key, trust(m)
        old = self._valid.get(key)
        if m.failure is not None:
            self._valid.pop(key, None)
            self._trust.pop(key, None)
        elif rank[0] < Standing.FAILED and (
            old is None or rank[0] // 2 <= self._trust[key][0] // 2
        ):
            self._valid[key], self._trust[key] = m, rank
        else:
            return
        if old is not None and old is self.best:
            first = min(self._trust, key=self._trust.__getitem__, default=None)
            self.best = None if first is None else self._valid[first]
        elif m.failure is None and (
            self.best is None or rank < self._trust[self.best.candidate.key]
        ):
            self.best = m

    def __contains__(self, m: Measurement) -> bool:
        """Whether a measurement of its candidate counts."""
        return m.candidate.key in self._valid

    @property
    def ranked(self) -> list[Measurement]:
        """The measurements that count, the best first."""
        return [self._valid[key] for key in sorted(self._trust, key=self._trust.__getitem__)]


def is_as_reliable(m: Measurement, other: Measurement) -> bool:
    """Whether m is of the same or a better kind, regardless of times and scales."""
    return standing_of(m) // 2 <= standing_of(other) // 2
