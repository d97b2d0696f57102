"""Acquisition functions: how much each candidate is worth measuring, given its predicted score, the
prediction's standard deviation and the best score so far.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erfc, pi, sqrt

import numpy as np

from tilesmith.search.protocol import Scores

Acquisition = Callable[[Scores, Scores, float], Scores]

_FAR = -5.0  # below this, in standard deviations from the best, an expansion is used
_LEAST_SPREAD = 0.1

_below = np.frompyfunc(lambda z: 0.5 * erfc(-z / sqrt(2)), 1, 1)


def expected_improvement(mean: Scores, spread: Scores, best: float) -> Scores:
    """E[max(score - best, 0)] for normally distributed scores."""
    mean, spread = np.asarray(mean, float), np.asarray(spread, float)
    gain = mean - best
    sure = spread <= 0
    z = gain / np.where(sure, 1.0, spread)
    density = np.exp(-0.5 * z * z) / sqrt(2 * pi)
    expected = gain * _below(z).astype(float) + spread * density
    return np.maximum(np.where(sure, gain, expected), 0.0)


def log_expected_improvement(mean: Scores, spread: Scores, best: float) -> Scores:
    """log of `expected_improvement`, which underflows to zero far below the best. The spread is at
    least 0.1, because models that agree may be wrong together.
    """
    spread = np.maximum(np.asarray(spread, float), _LEAST_SPREAD)
    z = (np.asarray(mean, float) - best) / spread
    near = expected_improvement(np.maximum(z, _FAR), np.ones_like(z), 0.0)
    log_density = -0.5 * z * z - 0.5 * np.log(2 * pi)
    far = log_density - 2 * np.log(np.maximum(-z, -_FAR))  # first term of the expansion
    return np.asarray(np.log(spread) + np.where(z > _FAR, np.log(np.maximum(near, 1e-300)), far))


def upper_confidence_bound(
    mean: Scores, spread: Scores, best: float = 0.0, width: float = 1.0
) -> Scores:
    """mean + width * spread. `best` is not used; all acquisition functions take it."""
    return np.asarray(np.asarray(mean, float) + width * np.asarray(spread, float))
