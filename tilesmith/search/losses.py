"""Losses of cost models. From the labels of programs they give a function of scores that returns
the gradient and the diagonal of the Hessian. A score is log2 of a speed; a label is a speed
relative to the fastest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilesmith.base.errors import TuneError

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
    """Squared error weighted by speed, as in Ansor: errors of slow programs matter little."""
    weight, want = np.maximum(labels, 0.02), doublings(labels)
    return lambda scores: ((scores - want) * weight, weight)


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
