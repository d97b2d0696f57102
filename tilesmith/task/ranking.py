"""Measurements of a task in, oldest first; the one that counts for each candidate, and the best of
all out.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilesmith.task.task import Measurement, Standing, standing_of, trust


class Ranking:
    """What counts for a candidate is the latest of its most reliable measurements: a confirmed one
    before one of a calm machine before a contended one. A failure cancels all that came before it.
    """

    def __init__(self, measurements: Iterable[Measurement] = ()) -> None:
        self._valid: dict[str, Measurement] = {}
        self.best: Measurement | None = None  # the first by `trust` of what counts
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
        """What counts, the best first."""
        return sorted(self._valid.values(), key=trust)


def is_as_reliable(m: Measurement, other: Measurement) -> bool:
    """Whatever their times and scales."""
    return standing_of(m) // 2 <= standing_of(other) // 2
