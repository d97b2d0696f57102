"""What cost models are trained on and judged by: measurements as rows grouped by variant, features
of programs, losses and metrics. A row's label is its speed relative to the fastest program of the
same task, between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError, TuneError
from tilesmith.base.given import checks_given
from tilesmith.search import checked
from tilesmith.search.features.machine import Values
from tilesmith.search.protocol import (
    AnalyticScore,
    FeatureExtractor,
    Predictor,
    Scores,
    ScoringExtractor,
)
from tilesmith.space.domains import Matrix, Rng
from tilesmith.space.variant import Variant, reopen, stacked
from tilesmith.task.task import Measurement

Numbers = np.ndarray[Any, np.dtype[np.float64]]
Groups = np.ndarray[Any, np.dtype[np.int64]]  # the task of each program, numbered from 0
Slopes = Callable[[Numbers], tuple[Numbers, Numbers]]
Loss = Callable[[Numbers, Groups], Slopes]

_PARTNERS = 24  # programs that each one is compared with
MARGIN = 0.03  # labels that differ by less are equal: the noise of timing
_SLOWEST = 2.0**-10  # lower bound of labels, also for failures


def doublings(labels: Numbers) -> Numbers:
    return np.asarray(np.log2(np.maximum(labels, _SLOWEST)))


def packed(labels: Numbers, groups: Groups) -> Slopes:
    """Ansor's loss: y * (s - y)^2 of the speed y relative to the task's fastest program, so that
    errors of slow programs matter little and failures teach nothing.
    """
    return lambda scores: ((scores - labels) * labels, labels)


def regression(labels: Numbers, groups: Groups) -> Slopes:
    weight, want = np.ones_like(labels), doublings(labels)
    return lambda scores: (scores - want, weight)


def rank(labels: Numbers, groups: Groups) -> Slopes:
    """Pairwise logistic within a task: log(1 + exp(-(s - t))), where s should be above t. Each
    program is compared with a few others, near and far in the order of labels.
    """
    n = len(labels)
    low, high = _pairs(labels, groups)
    both = np.concatenate([low, high])
    weight = np.maximum(labels[high], 0.05)  # the order among the best matters most

    def slopes(scores: Numbers) -> tuple[Numbers, Numbers]:
        wrong = 1 / (1 + np.exp(np.clip(scores[high] - scores[low], -50, 50)))
        slope = weight * wrong
        bend = slope * (1 - wrong)
        grad: Numbers = np.bincount(both, np.concatenate([slope, -slope]), n).astype(float)
        hess: Numbers = np.bincount(both, np.concatenate([bend, bend]), n).astype(float)
        return grad, hess + 1e-6

    return slopes


def _pairs(labels: Numbers, groups: Groups) -> tuple[Groups, Groups]:
    """The slower and the faster program of each pair."""
    order = np.lexsort((labels, groups))
    lows, highs = [order[:0]], [order[:0]]
    for step in range(1, _PARTNERS + 1):
        # geometric distances, to compare programs of similar and of different speed
        shift = max(1, round((len(order) / 2) ** (step / _PARTNERS)))
        low, high = order[:-shift], order[shift:]
        differ = labels[low] < (1 - MARGIN) * labels[high]
        use = (groups[low] == groups[high]) & differ
        lows.append(low[use])
        highs.append(high[use])
    return np.concatenate(lows), np.concatenate(highs)


def level(slopes: Slopes, scores: Numbers, groups: Groups) -> Numbers:
    """One Newton step of a constant per task. Programs of different tasks are never compared, so
    the trees need not learn it.
    """
    slope, bend = slopes(scores)
    off: Numbers = -np.bincount(groups, slope) / np.maximum(np.bincount(groups, bend), 1e-6)
    return off[groups]


LOSSES: dict[str, Loss] = {"packed": packed, "rank": rank, "regression": regression}


def loss_of(name: str) -> Loss:
    if name not in LOSSES:
        raise TuneError(f"unknown loss {name!r}; known are {', '.join(sorted(LOSSES))}")
    return LOSSES[name]


_MOST = 2000  # programs of a task that are compared at most


def pairwise_accuracy(scores: Numbers, labels: Numbers, tasks: Groups | None = None) -> float:
    """The share of pairs of programs of one task, with different labels, that the scores rank
    correctly. Equal scores count half.
    """
    right = pairs = 0.0
    numbers = np.zeros(len(labels), int) if tasks is None else tasks
    for task in np.unique(numbers):
        at = np.flatnonzero(numbers == task)[:_MOST]
        s, y = scores[at], labels[at]
        faster = y[:, None] > y[None, :]
        difference = s[:, None] - s[None, :]
        right += ((difference > 0) & faster).sum() + 0.5 * ((difference == 0) & faster).sum()
        pairs += faster.sum()
    return float(right / pairs) if pairs else 1.0


def recall_at(scores: Numbers, labels: Numbers, k: int) -> float:
    """The share of the k fastest programs that is among the k highest scores."""
    k = min(k, len(labels))
    if k == 0:
        return 1.0
    best = set(np.argsort(-labels, kind="stable")[:k])
    liked = set(np.argsort(-scores, kind="stable")[:k])
    return len(best & liked) / k


def peak_curve(scores: Numbers, labels: Numbers, most: int) -> Numbers:
    """The best label among the first 1, 2, ... programs in the order of the scores."""
    order = np.argsort(-scores, kind="stable")[:most]
    return np.maximum.accumulate(labels[order])


def rank_correlation(scores: Numbers, labels: Numbers) -> float | None:
    """Spearman's: from -1 (opposite order) to 1 (the same order). Equal numbers share their ranks.
    None if there are fewer than three, or if all of one kind are equal.
    """
    if len(labels) < 3:
        return None
    a, b = _ranks(scores), _ranks(labels)
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / size if size > 0 else None


def _ranks(values: Numbers) -> Numbers:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    middle: Numbers = ends - (counts - 1) / 2
    return middle[place]


# Failures of the machine, not of the program: nothing is learned from them.
_NO_LESSON = ("error",)


@dataclass(frozen=True, eq=False)
class Group:
    """Measured rows of one variant. `labels` are 0 for failures; `at` is the position of each row
    among the measurements.
    """

    variant: Variant
    rows: Matrix
    labels: Scores
    at: np.ndarray[tuple[int], np.dtype[np.int64]]

    def part(self, keep: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Group:
        return Group(self.variant, self.rows[keep], self.labels[keep], self.at[keep])


def _is_timed(m: Measurement) -> bool:
    return m.failure is None and m.normal_cost < np.inf


def labels_of(measurements: Sequence[Measurement]) -> Scores:
    """Lowest cost of the task / cost, separately for normal and raw times; 0 for a failure."""
    best: dict[tuple[str, bool], float] = {}
    for m in measurements:
        if _is_timed(m):
            key = m.candidate.task.key, m.is_normal
            best[key] = min(best.get(key, np.inf), m.normal_cost)
    return np.array(
        [
            best[m.candidate.task.key, m.is_normal] / m.normal_cost if _is_timed(m) else 0.0
            for m in measurements
        ]
    )


@checks_given(error=TuneError)
def groups_of(measurements: Sequence[Measurement]) -> list[Group]:
    """Measurements to learn from, by variant. Traces that can no longer be applied, such as records
    of another version, are left out.
    """
    labels = labels_of(measurements)
    by_variant: dict[int, tuple[Variant, list[tuple[int, ...]], list[int]]] = {}
    for k, m in enumerate(measurements):
        if m.failure is not None and m.failure.kind in _NO_LESSON:
            continue
        try:
            variant, row = reopen(m.candidate)
        except ScheduleError:
            continue
        _, rows, at = by_variant.setdefault(id(variant), (variant, [], []))
        rows.append(row)
        at.append(k)
    return [
        Group(v, stacked(rows, v), labels[np.array(at)], np.array(at))
        for v, rows, at in by_variant.values()
    ]


def bounded(groups: list[Group], most: int, rng: Rng) -> list[Group]:
    """At most `most` programs of these: the fastest half, and a random sample of the others."""
    labels = np.concatenate([g.labels for g in groups]) if groups else np.zeros(0)
    if len(labels) <= most:
        return groups
    best = np.argsort(-labels, kind="stable")
    keep = np.zeros(len(labels), bool)
    keep[best[: most // 2]] = True
    others = best[most // 2 :]
    keep[rng.choice(others, most - most // 2, replace=False)] = True
    parts = np.split(keep, np.cumsum([len(g.labels) for g in groups])[:-1])
    return [g.part(k) for g, k in zip(groups, parts, strict=True) if k.any()]


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
