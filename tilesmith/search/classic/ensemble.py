"""Ensemble: several models fitted to bootstrap samples. Their disagreement estimates the
uncertainty of a prediction, which an acquisition function trades against the predicted score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from math import erfc, pi, sqrt

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.given import checks_given
from tilesmith.search import checked
from tilesmith.search.gbdt import Gbdt
from tilesmith.search.protocol import CostModel, Predictor, Scores
from tilesmith.search.training import Group, groups_of
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant
from tilesmith.task.task import Measurement

Acquisition = Callable[[Scores, Scores, float], Scores]

_FAR = -5.0  # below this, in standard deviations from the best, an expansion is used
_LEAST_SPREAD = 0.1

_below = np.frompyfunc(lambda z: 0.5 * erfc(-z / sqrt(2)), 1, 1)


@checks_given(error=TuneError)
def expected_improvement(mean: Scores, spread: Scores, best: float) -> Scores:
    """E[max(score - best, 0)] for normally distributed scores."""
    mean, spread = np.asarray(mean, float), np.asarray(spread, float)
    gain = mean - best
    sure = spread <= 0
    z = gain / np.where(sure, 1.0, spread)
    density = np.exp(-0.5 * z * z) / sqrt(2 * pi)
    expected = gain * _below(z).astype(float) + spread * density
    return np.maximum(np.where(sure, gain, expected), 0.0)


@checks_given(error=TuneError)
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


@checks_given(error=TuneError)
def upper_confidence_bound(
    mean: Scores, spread: Scores, best: float = 0.0, width: float = 1.0
) -> Scores:
    """mean + width * spread. `best` is not used; all acquisition functions take it."""
    return np.asarray(np.asarray(mean, float) + width * np.asarray(spread, float))


@dataclass(frozen=True, eq=False)
class Standardised:
    """A predictor whose scores have mean 0 and standard deviation 1 over the measured rows, so that
    scores of different predictors can be averaged.
    """

    predictor: Predictor
    mean: float
    deviation: float

    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        return (checked.predict(self.predictor, variant, rows) - self.mean) / self.deviation


def standardise(predictor: Predictor, groups: Sequence[Group]) -> Standardised:
    scores = np.concatenate([checked.predict(predictor, g.variant, g.rows) for g in groups])
    return Standardised(predictor, float(scores.mean()), float(scores.std()) or 1.0)


@checks_given(error=TuneError)
@dataclass(frozen=True)
class Ensemble:
    """`members` models, each fitted to a bootstrap sample. `acquire` combines their mean and spread
    to a score: `log_expected_improvement`, `upper_confidence_bound`, or a function of your own.
    """

    model: CostModel = field(default_factory=Gbdt)
    members: int = 4
    acquire: Acquisition = log_expected_improvement
    seed: int = 0

    def fit(self, measurements: Sequence[Measurement]) -> EnsemblePredictor | None:
        """A predictor that has learned from the measurements; None if there are too few."""
        groups = groups_of(measurements)
        rng = np.random.default_rng(self.seed)
        fitted = []
        for _ in range(self.members):
            # a bootstrap sample without its repetitions: about 63 % of the measurements
            at = np.unique(rng.integers(0, max(len(measurements), 1), len(measurements)))
            predictor = checked.fit(self.model, [measurements[i] for i in at])
            if predictor is not None and groups:
                fitted.append(standardise(predictor, groups))
        if not fitted:
            return None
        by_member = np.concatenate(
            [np.stack([p.predict(g.variant, g.rows) for p in fitted]) for g in groups], axis=1
        )
        best, usual = float(by_member.mean(axis=0).max()), float(by_member.std(axis=0).mean())
        return EnsemblePredictor(tuple(fitted), best, usual, self.acquire)


@dataclass(frozen=True, eq=False)
class EnsemblePredictor:
    members: tuple[Standardised, ...]
    best: float  # highest mean score among the measured programs
    usual: float  # typical standard deviation among the members
    acquire: Acquisition

    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        scores = np.stack([p.predict(variant, rows) for p in self.members])
        # Few members may agree by chance, so the spread is averaged with the usual one.
        spread = np.sqrt((scores.var(axis=0) + self.usual**2) / 2)
        return self.acquire(scores.mean(axis=0), spread, self.best)
