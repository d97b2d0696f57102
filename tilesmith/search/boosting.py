"""The one file that knows XGBoost: programs in, a booster out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xgboost

from tilesmith.search.losses import Numbers, level, loss_of
from tilesmith.search.metrics import pairwise_accuracy

if TYPE_CHECKING:
    from tilesmith.search.gbdt import Gbdt, Programs


def boost(settings: Gbdt, train: Programs, test: Programs | None) -> Any:
    """Rounds of trees, each fitted to the slope of the loss, which begin where the base ends; the
    custom objective is what lets statements share the error of their program.
    """
    slopes = loss_of(settings.loss)(train.labels, train.tasks)
    start = train.base + level(slopes, train.base, train.tasks)
    matrix = _matrix(settings, train, start)
    held_out = None if test is None else _matrix(settings, test, test.base)

    def objective(margins: Numbers, _: Any) -> tuple[Numbers, Numbers]:
        scores: Numbers = np.bincount(train.packs, margins, len(train.labels)).astype(float)
        slope, bend = slopes(scores)
        return slope[train.packs], np.maximum(bend[train.packs], 1e-6)

    def accuracy(margins: Numbers, _: Any) -> tuple[str, float]:
        assert test is not None
        scores: Numbers = np.bincount(test.packs, margins, len(test.labels)).astype(float)
        return "accuracy", pairwise_accuracy(scores, test.labels, test.tasks)

    model = xgboost.train(
        {
            "max_depth": settings.depth, "eta": settings.learning_rate, "base_score": 0.0,
            "min_child_weight": 0, "gamma": 0.001, "nthread": settings.threads, "max_bin": 64,
            "subsample": settings.sample, "colsample_bytree": settings.sample / 2,
            "seed": settings.seed, "tree_method": "hist", "disable_default_eval_metric": 1,
            "verbosity": 0,
        },
        matrix,
        num_boost_round=settings.rounds,
        obj=objective,
        evals=[] if held_out is None else [(held_out, "test")],
        custom_metric=None if held_out is None else accuracy,
        maximize=True,
        early_stopping_rounds=None if held_out is None else settings.patience,
        verbose_eval=False,
    )  # fmt: skip
    return model if held_out is None else model[: model.best_iteration + 1]


def _matrix(settings: Gbdt, data: Programs, start: Numbers) -> Any:
    """The statements of a program begin with equal shares of its score."""
    shares = start / np.bincount(data.packs, minlength=len(start))
    return xgboost.DMatrix(data.features, base_margin=shares[data.packs], nthread=settings.threads)
