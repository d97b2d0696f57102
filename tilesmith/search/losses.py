"""What a cost model minimises, as gradients: scores and labels of programs in, the slope and the
curvature of the loss at each score out. A score counts doublings of speed; a label is a share of
the best speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilesmith.base.errors import TuneError

Numbers = np.ndarray[Any, np.dtype[np.float64]]
Groups = np.ndarray[Any, np.dtype[np.int64]]  # the task of each program, numbered from 0
Loss = Callable[[Numbers, Numbers, Groups], tuple[Numbers, Numbers]]

_PARTNERS = 24  # programs that each one is compared with, in one step
MARGIN = 0.03  # labels that differ by a smaller share are noise
_SLOWEST = 2.0**-10  # a label: what fails or is slower is that slow


def doublings(labels: Numbers) -> Numbers:
    return np.asarray(np.log2(np.maximum(labels, _SLOWEST)))


def packed(scores: Numbers, labels: Numbers, groups: Groups) -> tuple[Numbers, Numbers]:
    """Squared error, weighted by speed as Ansor's: what is slow need only be known to be slow."""
    weight = np.maximum(labels, 0.02)
    return (scores - doublings(labels)) * weight, weight


def regression(scores: Numbers, labels: Numbers, groups: Groups) -> tuple[Numbers, Numbers]:
    return scores - doublings(labels), np.ones_like(scores)


def rank(scores: Numbers, labels: Numbers, groups: Groups) -> tuple[Numbers, Numbers]:
    """Pairwise logistic within a task: log(1 + exp(-(s - t))) where s should be above t. Each
    program is compared with a few others, near and far in the order of labels.
    """
    grad, hess = np.zeros_like(scores), np.full_like(scores, 1e-6)
    order = np.lexsort((labels, groups))
    n = len(order)
    for step in range(1, _PARTNERS + 1):
        # distances grow, so that neighbours and strangers both count
        shift = max(1, round((n / 2) ** (step / _PARTNERS)))
        low, high = order[:-shift], order[shift:]
        differ = labels[low] < (1 - MARGIN) * labels[high]
        use = (groups[low] == groups[high]) & differ
        low, high = low[use], high[use]
        weight = np.maximum(labels[high], 0.05)  # the order among the best matters most
        wrong = 1 / (1 + np.exp(np.clip(scores[high] - scores[low], -50, 50)))
        slope, bend = weight * wrong, weight * wrong * (1 - wrong)
        grad += np.bincount(low, slope, n) - np.bincount(high, slope, n)
        hess += np.bincount(low, bend, n) + np.bincount(high, bend, n)
    return grad, hess


def level(loss: Loss, scores: Numbers, labels: Numbers, groups: Groups) -> Numbers:
    """What the scores of each task are too low by: programs of two tasks are never compared, so
    nothing has to be learned of it.
    """
    slope, bend = loss(scores, labels, groups)
    off: Numbers = -np.bincount(groups, slope) / np.maximum(np.bincount(groups, bend), 1e-6)
    return off[groups]


LOSSES: dict[str, Loss] = {"packed": packed, "rank": rank, "regression": regression}


def loss_of(name: str) -> Loss:
    if name not in LOSSES:
        raise TuneError(f"unknown loss {name!r}; known are {', '.join(sorted(LOSSES))}")
    return LOSSES[name]
