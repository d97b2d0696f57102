"""Metrics of cost models: how well they rank programs, and how well they find the fastest."""

from __future__ import annotations

from typing import Any

import numpy as np

Numbers = np.ndarray[Any, Any]

_MOST = 2000  # programs of a task that are compared at most


def pairwise_accuracy(scores: Numbers, labels: Numbers, tasks: Numbers | None = None) -> float:
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
