"""Trains gradient-boosted trees. The only file that imports XGBoost."""

from __future__ import annotations

from typing import Any

import numpy as np
import xgboost

from tilesmith.search.training import Numbers, Programs, level, loss_of, pairwise_accuracy


def boost(
    train: Programs, test: Programs | None, *, loss: str, rounds: int, depth: int,
    learning_rate: float, sample: float, patience: int, threads: int, seed: int,
) -> Any:  # fmt: skip
    """A booster that starts from the base's predictions. With `test`, training stops early.

    The objective is custom because a program's score is the sum over its statements: each statement
    gets the gradient of the loss with respect to that sum.
    """
    slopes = loss_of(loss)(train.labels, train.tasks)
    start = train.base
    if loss != "packed":  # whose scores are speeds, not speeds up to a factor of the task
        start = start + level(slopes, train.base, train.tasks)
    matrix = _matrix(train, start, threads)
    held_out = None if test is None else _matrix(test, test.base, threads)

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
            "max_depth": depth, "eta": learning_rate, "base_score": 0.0,
            "min_child_weight": 0, "gamma": 0.001, "nthread": threads, "max_bin": 64,
            "subsample": sample, "colsample_bytree": sample / 2,
            "seed": seed, "tree_method": "hist", "disable_default_eval_metric": 1,
            "verbosity": 0,
        },
        matrix,
        num_boost_round=rounds,
        obj=objective,
        evals=[] if held_out is None else [(held_out, "test")],
        custom_metric=None if held_out is None else accuracy,
        maximize=True,
        early_stopping_rounds=None if held_out is None else patience,
        verbose_eval=False,
    )  # fmt: skip
    return model if held_out is None else model[: model.best_iteration + 1]


def _matrix(data: Programs, start: Numbers, threads: int) -> Any:
    """Training data in which a program's starting score is shared equally by its statements."""
    shares = start / np.bincount(data.packs, minlength=len(start))
    return xgboost.DMatrix(data.features, base_margin=shares[data.packs], nthread=threads)
