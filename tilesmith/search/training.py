"""Training data of gradient-boosted trees: a line of features per statement of each measured
program, with the program's label and the base's prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tilesmith.search import checked
from tilesmith.search.data import Group
from tilesmith.search.features.machine import Values
from tilesmith.search.losses import Groups, Numbers
from tilesmith.search.protocol import (
    AnalyticScore,
    FeatureExtractor,
    Predictor,
    Scores,
    ScoringExtractor,
)
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant


@dataclass(frozen=True, eq=False)
class Programs:
    """`features` has a line for each statement, and `packs` the program that it belongs to. The
    other fields have an entry per program: the base's prediction, the label, the task's number.
    """

    features: Values
    packs: Groups
    base: Numbers
    labels: Numbers
    tasks: Groups

    def part(self, keep: Groups) -> Programs:
        """Some of the programs."""
        number = np.full(len(self.labels), -1)
        number[keep] = np.arange(len(keep))
        rows = np.flatnonzero(number[self.packs] >= 0)
        packs = number[self.packs[rows]]
        return Programs(
            self.features[rows], packs, self.base[keep], self.labels[keep], self.tasks[keep]
        )


def features_with_base(
    extractor: FeatureExtractor, base: Predictor, variant: Variant, rows: Matrix
) -> tuple[Values, Scores]:
    """Features of shape (programs, statements, width), of which the last one is the base's
    prediction for the whole program; and that prediction.
    """
    if _is_joint(type(extractor), type(base)):
        return extractor.with_score(variant, rows, base)  # type: ignore[attr-defined, no-any-return]
    scores = base.predict(variant, rows)
    x = checked.features(extractor, variant, rows)
    last = np.broadcast_to(scores.astype(np.float32)[:, None, None], (*x.shape[:2], 1))
    return np.concatenate([x, last], axis=2), scores


@lru_cache(maxsize=64)  # isinstance of a protocol takes longer than scoring a few rows
def _is_joint(extractor: type, base: type) -> bool:
    """Whether the extractor can compute the base's score along with its features."""
    return issubclass(extractor, ScoringExtractor) and issubclass(base, AnalyticScore)


def programs_of(groups: Sequence[Group], extractor: FeatureExtractor, base: Predictor) -> Programs:
    predicted: list[Scores] = []
    features: list[Values] = []
    packs: list[Groups] = []
    numbers: dict[str, int] = {}
    tasks: list[int] = []
    count = 0
    for g in groups:
        x, scores = features_with_base(extractor, base, g.variant, g.rows)
        n, s, width = x.shape
        checked.require_width(extractor, width, features)
        predicted.append(scores)
        features.append(x.reshape(n * s, width))
        packs.append(np.repeat(np.arange(count, count + n), s))
        tasks += [numbers.setdefault(g.variant.task.key, len(numbers))] * n
        count += n
    labels = np.concatenate([g.labels for g in groups])
    return Programs(
        np.concatenate(features), np.concatenate(packs), np.concatenate(predicted), labels,
        np.array(tasks),
    )  # fmt: skip
