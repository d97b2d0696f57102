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
        self.best: Measurement | None = None  # the first by `trust` of those that count
        for m in measurements:
            self.add(m)

    def add(self, m: Measurement) -> None:
        old = self._valid.get(m.candidate.key)
        if m.failure is not None:
            self._valid.pop(m.candidate.key, None)
        elif standing_of(m) < Standing.FAILED and (old is None or is_as_reliable(m, old)):
            self._valid[m.candidate.key] = m
        else:
            return
        if old is not None and old is self.best:
            self.best = min(self._valid.values(), key=trust, default=None)
        elif m.failure is None and (self.best is None or trust(m) < trust(self.best)):
            self.best = m

    def __contains__(self, m: Measurement) -> bool:
        """Whether a measurement of its candidate counts."""
        return m.candidate.key in self._valid

    @property
    def ranked(self) -> list[Measurement]:
        """The measurements that count, the best first."""
        return sorted(self._valid.values(), key=trust)


def is_as_reliable(m: Measurement, other: Measurement) -> bool:
    """Whether m is of the same or a better kind, regardless of times and scales."""
    return standing_of(m) // 2 <= standing_of(other) // 2
