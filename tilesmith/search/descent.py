"""Coordinate descent from the best known candidate: what differs from it by one small change, until
none of these is better beyond doubt.
"""

from __future__ import annotations

from math import inf, sqrt
from statistics import fmean, variance

import numpy as np

from tilesmith.search.catalogue import Catalogue, Individual
from tilesmith.search.population import Population
from tilesmith.task.task import Measurement

_DOUBT = 2.0  # standard errors of the difference: about one chance in twenty of being wrong


class Descent:
    """`patience` is how many neighbours in a row may fail to be better before it stops; a new best
    candidate starts it again.
    """

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
        """Those of the centre that were not proposed yet."""
        if self.centre is None or self.finished:
            return Population(())
        number = self.centre.variant
        v = self.catalogue.known(number)
        from_here = v.neighbours(np.array(self.centre.row, np.int32))
        new = [not self.catalogue.seen(number, r) for r in from_here]
        rows = from_here[new]
        if not len(rows):
            self._tried = self.patience
            return Population(())
        return Population(((number, rows),))

    def propose(self, count: int) -> None:
        """So many neighbours were tried."""
        self._tried += count


def better(a: Measurement, b: Measurement) -> bool:
    """Whether a is faster than b beyond doubt: Welch's test on the raw samples; the medians alone
    where there are too few of them.
    """
    if a.is_normal is not b.is_normal:  # their times do not compare
        return a.is_normal
    less = a.normal_cost < b.normal_cost
    x, y = a.normal_seconds, b.normal_seconds
    if len(x) < 3 or len(y) < 3 or not less or b.normal_cost == inf:
        return less
    error = sqrt(variance(x) / len(x) + variance(y) / len(y))
    return less and fmean(y) - fmean(x) > _DOUBT * error
