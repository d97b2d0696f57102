"""Coordinate descent from the incumbent. Its neighbours differ from it by a small change of one
decision; the search stops when none of them is significantly faster.
"""

from __future__ import annotations

from math import inf, sqrt
from statistics import fmean, variance

import numpy as np

from tilesmith.search.catalogue import Catalogue, Individual
from tilesmith.search.population import Population
from tilesmith.task.task import Measurement

_DOUBT = 2.0  # standard errors of the difference, for a significance of about 5 %


class Descent:
    """Stops after `patience` consecutive neighbours without gain; a new incumbent restarts it."""

    def __init__(self, catalogue: Catalogue, patience: int) -> None:
        self.catalogue, self.patience = catalogue, patience
        self.centre: Individual | None = None
        self._best: Measurement | None = None
        self._tried = 0

    @property
    def finished(self) -> bool:
        return self._tried >= self.patience

    def tell(self, who: Individual, m: Measurement) -> None:
        if m.failure is not None:
            return
        if self._best is None or better(m, self._best):
            self.centre, self._best, self._tried = who, m, 0

    def neighbours(self) -> Population:
        """The neighbours of the incumbent that were not proposed yet."""
        if self.centre is None or self.finished:
            return Population(())
        number = self.centre.variant
        v = self.catalogue.lowered(number)
        from_here = v.neighbours(np.array(self.centre.row, np.int32))
        new = [not self.catalogue.seen(number, r) for r in from_here]
        rows = from_here[new]
        if not len(rows):
            self._tried = self.patience
            return Population(())
        return Population(((number, rows),))

    def propose(self, count: int) -> None:
        """Counts neighbours that were proposed."""
        self._tried += count


def better(a: Measurement, b: Measurement) -> bool:
    """Whether a is significantly faster than b, by Welch's test on the samples; by the medians if
    there are fewer than three samples.
    """
    if a.is_normal is not b.is_normal:  # their times are not comparable
        return a.is_normal
    less = a.normal_cost < b.normal_cost
    x, y = a.normal_seconds, b.normal_seconds
    if len(x) < 3 or len(y) < 3 or not less or b.normal_cost == inf:
        return less
    error = sqrt(variance(x) / len(x) + variance(y) / len(y))
    return less and fmean(y) - fmean(x) > _DOUBT * error
