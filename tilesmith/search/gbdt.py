"""Gbdt: a cost model of gradient-boosted trees over the features of statements.

A program's score is the prediction of the base (an analytic score or another model) plus the sum of
the trees' outputs over the program's statements; with the packed loss it is that sum alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import cache
from importlib import import_module
from threading import Thread
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.given import checks_given
from tilesmith.search import checked
from tilesmith.search.protocol import FeatureExtractor, Part, Predictor, Scores
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.search.statements import StatementFeatures
from tilesmith.search.training import bounded, features_with_base, groups_of, loss_of, programs_of
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant
from tilesmith.task.task import Measurement


@cache
def _load_trees() -> None:
    """Loads XGBoost beside the caller, which takes seconds where pandas and scikit-learn are
    installed.
    """

    def load() -> None:
        with suppress(ImportError):  # the first fit that needs it says so
            import_module("tilesmith.search.boosting")

    Thread(target=load, name="tilesmith-load").start()


@checks_given(error=TuneError)
@dataclass(frozen=True)
class Gbdt:
    """Gradient-boosted trees.

    `loss` is "rank" (pairwise logistic), "regression" (squared error of log2 of the speed), or
    "packed": Ansor's squared error of the speed relative to the task's fastest program, weighted by
    it. A packed model is the sum of its trees alone, as Ansor's; `base` is only a feature of it.
    `features` describe programs to the trees: `StatementFeatures()`, `RelationFeatures()` (which
    transfer to other shapes and operators), or an object of your own.
    The trees correct the prediction of `base`, which is also one more feature. It is the analytic
    score, or a model fitted to other tasks.

    At most `rounds` trees of `depth` levels are added, each scaled by `learning_rate`. A tree sees
    a share `sample` of the statements and half that share of the features.
    From `many` programs on, a share `held_out` is kept for validation, and training stops after
    `patience` rounds without gain. Below that, all programs are used for training.
    Of more than `most` programs, the fastest half and a random sample of the others are used, which
    bounds the time of a fit. With fewer than `fewest` programs there is no model.
    """

    loss: str = "rank"
    features: FeatureExtractor = field(default_factory=StatementFeatures)
    base: Predictor = field(default_factory=ScoreByTarget)
    rounds: int = 60
    depth: int = 6
    learning_rate: float = 0.15
    held_out: float = 0.1
    patience: int = 15
    many: int = 512
    sample: float = 0.7
    fewest: int = 24
    most: int = 2000
    threads: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        loss_of(self.loss)
        checked.require_extractor(self.features)
        if not 0 <= self.held_out < 1:
            raise TuneError(
                f"Gbdt(held_out={self.held_out}): give the share of programs kept for validation, "
                "from 0 to below 1"
            )

    def fit(self, measurements: Sequence[Measurement]) -> GbdtPredictor | None:
        """A predictor that has learned from the measurements; None if there are too few."""
        rng = np.random.default_rng(self.seed)
        groups = bounded(groups_of(measurements), self.most, rng)
        labels = [y for g in groups for y in g.labels]
        if len(labels) < self.fewest or len(set(labels)) < 2:
            if any(m.candidate.task.target.kind != "cpu" for m in measurements):
                _load_trees()  # more will come; on a CPU this would disturb measurements
            return None
        # Imported here because loading XGBoost takes a second.
        from tilesmith.search.boosting import boost

        train, test = programs_of(groups, self.features, self.base), None
        if self.loss == "packed":
            train = replace(train, base=np.zeros_like(train.base))
        order = rng.permutation(len(labels))
        cut = int(len(order) * self.held_out) if len(order) >= self.many else 0
        if cut:
            train, test = train.part(np.sort(order[cut:])), train.part(np.sort(order[:cut]))
        booster = boost(
            train, test, loss=self.loss, rounds=self.rounds, depth=self.depth,
            learning_rate=self.learning_rate, sample=self.sample, patience=self.patience,
            threads=self.threads, seed=self.seed,
        )  # fmt: skip
        return GbdtPredictor(booster, self.features, self.base, self.loss != "packed")


@dataclass(frozen=True, eq=False)
class GbdtPredictor:
    booster: Any
    features: FeatureExtractor
    base: Predictor
    corrects: bool = True  # the base: else the trees alone are the score

    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        return self.with_base([(variant, rows)])[0]

    def with_base(self, parts: Sequence[Part]) -> tuple[Scores, Scores]:
        """Predicts all parts by one call of XGBoost, which costs as much as dozens of rows."""
        extracted = [
            features_with_base(self.features, self.base, v, rows) for v, rows in parts if len(rows)
        ]
        if not extracted:
            return np.zeros(0), np.zeros(0)
        flat = [x.reshape(-1, x.shape[2]) for x, _ in extracted]
        every = flat[0] if len(flat) == 1 else np.concatenate(flat)
        out = np.asarray(self.booster.inplace_predict(every, predict_type="margin"), np.float64)
        ends = np.cumsum([len(x) for x in flat])[:-1]
        sums = [
            margins.reshape(x.shape[:2]).sum(axis=1)
            for (x, _), margins in zip(extracted, np.split(out, ends), strict=True)
        ]
        base = np.concatenate([scores for _, scores in extracted])
        scores = np.concatenate(sums)
        return (scores + base if self.corrects else scores), base
