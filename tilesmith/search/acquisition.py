"""What a candidate is worth measuring for: predicted scores with their spread, and the best score
so far, in; one number per candidate out, higher where measuring promises more.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erfc, pi, sqrt

import numpy as np

from tilesmith.search.protocol import Scores

Acquisition = Callable[[Scores, Scores, float], Scores]

_FAR = -5.0  # spreads below the best
_LEAST_SPREAD = 0.1

_below = np.frompyfunc(lambda z: 0.5 * erfc(-z / sqrt(2)), 1, 1)


def expected_improvement(mean: Scores, spread: Scores, best: float) -> Scores:
    """By how much a candidate is better than the best on average, where worse counts as nothing and
    its score is normally distributed.
    """
    mean, spread = np.asarray(mean, float), np.asarray(spread, float)
    gain = mean - best
    sure = spread <= 0
    z = gain / np.where(sure, 1.0, spread)
    density = np.exp(-0.5 * z * z) / sqrt(2 * pi)
    expected = gain * _below(z).astype(float) + spread * density
    return np.maximum(np.where(sure, gain, expected), 0.0)


def log_expected_improvement(mean: Scores, spread: Scores, best: float) -> Scores:
    """Its logarithm, which keeps candidates in order that have hardly a chance: far below the best
    the expectation itself is zero in floating point. No spread is less than a tenth: several models
    that agree may be wrong together.
    """
    spread = np.maximum(np.asarray(spread, float), _LEAST_SPREAD)
    z = (np.asarray(mean, float) - best) / spread
    near = expected_improvement(np.maximum(z, _FAR), np.ones_like(z), 0.0)
    log_density = -0.5 * z * z - 0.5 * np.log(2 * pi)
    far = log_density - 2 * np.log(np.maximum(-z, -_FAR))  # the first term of its expansion
    return np.asarray(np.log(spread) + np.where(z > _FAR, np.log(np.maximum(near, 1e-300)), far))


def upper_confidence_bound(
    mean: Scores, spread: Scores, best: float = 0.0, width: float = 1.0
) -> Scores:
    """The score that a candidate may have if the model errs by `width` spreads. What was best so
    far does not matter; it is taken so that all acquisitions are called alike.
    """
    return np.asarray(np.asarray(mean, float) + width * np.asarray(spread, float))
