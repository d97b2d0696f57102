"""Gbdt: gradient-boosted trees over the features of statements. They learn what the base, an
analytic score or another model, leaves to be learned. A program's score is the base's and the sum
over its statements, whatever the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilesmith.base.errors import TuneError
from tilesmith.search.data import Group, groups_of
from tilesmith.search.draft import Draft
from tilesmith.search.features.context import relation_features
from tilesmith.search.features.machine import Values
from tilesmith.search.features.statements import statements_of
from tilesmith.search.losses import Groups, Numbers, loss_of
from tilesmith.search.protocol import Part, Predictor, Scores
from tilesmith.space.domains import Matrix, Rng
from tilesmith.space.variant import Variant
from tilesmith.task.task import Measurement

FEATURES = ("statements", "relations")


@dataclass(frozen=True, eq=False)
class Programs:
    """Training data: features of all statements, which program each belongs to, and what the base
    says of the programs, their labels and tasks.
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


def features_of(
    kind: str, base: Predictor, variant: Variant, rows: Matrix
) -> tuple[Values, Scores]:
    """In the shape (programs, statements, features); relations are of the whole program, and so is
    what the base says, the last feature and the second result.
    """
    if kind == "statements" and isinstance(base, Draft):
        return statements_of(variant, base).with_draft(rows)
    said = base.predict(variant, rows)
    if kind == "relations":
        x = relation_features(variant, rows)[:, None]
    else:
        x = statements_of(variant).of(rows)
    last = np.broadcast_to(said.astype(np.float32)[:, None, None], (*x.shape[:2], 1))
    return np.concatenate([x, last], axis=2), said


def programs_of(groups: Sequence[Group], kind: str, base: Predictor) -> Programs:
    said: list[Scores] = []
    features: list[Values] = []
    packs: list[Groups] = []
    numbers: dict[str, int] = {}
    tasks: list[int] = []
    count = 0
    for g in groups:
        x, scores = features_of(kind, base, g.variant, g.rows)
        n, s, width = x.shape
        said.append(scores)
        features.append(x.reshape(n * s, width))
        packs.append(np.repeat(np.arange(count, count + n), s))
        tasks += [numbers.setdefault(g.variant.task.key, len(numbers))] * n
        count += n
    labels = np.concatenate([g.labels for g in groups])
    return Programs(
        np.concatenate(features), np.concatenate(packs), np.concatenate(said), labels,
        np.array(tasks),
    )  # fmt: skip


@dataclass(frozen=True)
class Gbdt:
    """`loss` is "rank" (pairwise logistic), "packed" (Ansor's weighted squared error) or
    "regression"; `features` are those of "statements", or "relations", which are made to be alike
    for other shapes and operators. What `base` says is corrected by the trees, and a feature of
    theirs: the draft, or a model that knows other tasks. Of `many` programs or more, a share
    `held_out` is not learned from and decides when to stop, after `patience` rounds without gain;
    of fewer it would cost more than it tells. Each tree sees a share `sample` of the statements,
    and half that share of the features. Of more than `most` programs, the fastest and a sample of
    the others are used, so that fitting takes bounded time.
    """

    loss: str = "rank"
    features: str = "statements"
    base: Predictor = field(default_factory=Draft)
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
        if self.features not in FEATURES:
            known = " and ".join(FEATURES)
            raise TuneError(f"unknown features {self.features!r}; there are {known}")
        if not 0 <= self.held_out < 1:
            raise TuneError(f"held_out is a share of the programs below 1, not {self.held_out}")

    def fit(self, measurements: Sequence[Measurement]) -> GbdtPredictor | None:
        rng = np.random.default_rng(self.seed)
        groups = self._bounded(groups_of(measurements), rng)
        labels = [y for g in groups for y in g.labels]
        if len(labels) < self.fewest or len(set(labels)) < 2:
            return None
        # A leaf file loads XGBoost, which takes a second: here, when a model is first fitted.
        from tilesmith.search.boosting import boost

        train, test = programs_of(groups, self.features, self.base), None
        order = rng.permutation(len(labels))
        cut = int(len(order) * self.held_out) if len(order) >= self.many else 0
        if cut:
            train, test = train.part(np.sort(order[cut:])), train.part(np.sort(order[:cut]))
        return GbdtPredictor(boost(self, train, test), self.features, self.base)

    def _bounded(self, groups: list[Group], rng: Rng) -> list[Group]:
        labels = np.concatenate([g.labels for g in groups]) if groups else np.zeros(0)
        if len(labels) <= self.most:
            return groups
        best = np.argsort(-labels, kind="stable")
        keep = np.zeros(len(labels), bool)
        keep[best[: self.most // 2]] = True
        others = best[self.most // 2 :]
        keep[rng.choice(others, self.most - self.most // 2, replace=False)] = True
        parts = np.split(keep, np.cumsum([len(g.labels) for g in groups])[:-1])
        return [g.part(k) for g, k in zip(groups, parts, strict=True) if k.any()]


@dataclass(frozen=True, eq=False)
class GbdtPredictor:
    booster: Any
    features: str
    base: Predictor

    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        return self.with_base([(variant, rows)])[0]

    def with_base(self, parts: Sequence[Part]) -> tuple[Scores, Scores]:
        """In one call of XGBoost, which takes longer than a few dozen predictions do."""
        told = [features_of(self.features, self.base, v, rows) for v, rows in parts if len(rows)]
        if not told:
            return np.zeros(0), np.zeros(0)
        flat = [x.reshape(-1, x.shape[2]) for x, _ in told]
        every = flat[0] if len(flat) == 1 else np.concatenate(flat)
        out = np.asarray(self.booster.inplace_predict(every, predict_type="margin"), np.float64)
        ends = np.cumsum([len(x) for x in flat])[:-1]
        sums = [
            margins.reshape(x.shape[:2]).sum(axis=1)
            for (x, _), margins in zip(told, np.split(out, ends), strict=True)
        ]
        base = np.concatenate([said for _, said in told])
        return np.concatenate(sums) + base, base
