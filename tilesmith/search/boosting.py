"""The one file that knows XGBoost: programs in, a booster out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xgboost

from tilesmith.search.losses import Numbers, level, loss_of

if TYPE_CHECKING:
    from tilesmith.search.gbdt import Gbdt, Programs


def boost(settings: Gbdt, data: Programs) -> Any:
    """Rounds of trees, each fitted to the slope of the loss, which begin where the base ends; the
    custom objective is what lets statements share the error of their program.
    """
    loss = loss_of(settings.loss)
    start = data.base + level(loss, data.base, data.labels, data.tasks)
    shares = start / np.bincount(data.packs, minlength=len(start))
    matrix = xgboost.DMatrix(
        data.features, base_margin=shares[data.packs], nthread=settings.threads
    )

    def objective(margins: Numbers, _: Any) -> tuple[Numbers, Numbers]:
        scores: Numbers = np.bincount(data.packs, margins, len(data.labels)).astype(float)
        slope, bend = loss(scores, data.labels, data.tasks)
        return slope[data.packs], np.maximum(bend[data.packs], 1e-6)

    return xgboost.train(
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
        verbose_eval=False,
    )  # fmt: skip
