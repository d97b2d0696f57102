"""Picks a batch by quality and diversity: scored rows in, the positions of those to measure out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilesmith.search.protocol import Scores
from tilesmith.space.domains import Matrix

Numbers = np.ndarray[Any, np.dtype[np.int64]]


def pick(
    count: int, variants: Sequence[int], rows: Sequence[Matrix], scores: Scores, diversity: float
) -> list[int]:
    """Which `count` of the candidates make a good batch, best first: a greedy maximum of

        sum of scores + diversity * number of different decisions among them,

    where a decision is a value of a column of a variant. The objective is submodular, so that the
    greedy batch has at least 63 % of the best one's worth wherever no score is negative. Without
    diversity these are the best scores, in order. A score counts as it is: divide by its spread if
    its unit is arbitrary, as that of a ranking model is.

    `variants[i]` is the number of the variant that `rows[i]` belongs to. Of equals the first wins.
    """
    count = min(count, len(scores))
    if diversity == 0:
        return [int(i) for i in np.argsort(-scores, kind="stable")[:count]]
    parts = decisions(variants, rows)
    holders, ends = _holders(parts)
    worth = np.array(scores, float) + diversity * (parts >= 0).sum(axis=1)
    taken = {-1}
    out: list[int] = []
    for _ in range(count):
        best = int(np.argmax(worth))
        out.append(best)
        worth[best] = -np.inf
        for part in parts[best].tolist():
            if part not in taken:  # no longer new to those that share it
                taken.add(part)
                worth[holders[ends[part] : ends[part + 1]]] -= diversity
    return out


def decisions(variants: Sequence[int], rows: Sequence[Matrix]) -> Numbers:
    """A line for each row with a number for each of its decisions: the same one wherever variant,
    column and value are the same. Lines of variants with few columns end in -1.
    """
    widths = np.array([len(r) for r in rows], np.int64)
    out = np.full((len(rows), widths.max(initial=0)), -1, np.int64)
    there = np.arange(out.shape[1]) < widths[:, None]
    values = np.concatenate([*rows, np.zeros(0, np.int64)]).astype(np.int64)
    which, columns = np.nonzero(there)
    # one number for all three: values have 32 bits, and of variants and columns there are few
    keys = np.asarray(variants, np.int64)[which] * out.shape[1] + columns << 32
    out[there] = np.unique(keys + values, return_inverse=True)[1]
    return out


def _holders(parts: Numbers) -> tuple[Numbers, list[int]]:
    """The lines that each decision stands in, one decision after the other, and where each begins;
    the last end too.
    """
    lines, columns = np.nonzero(parts >= 0)
    held = parts[lines, columns]
    ends = np.cumsum(np.bincount(held))
    return lines[np.argsort(held, kind="stable")], [0, *ends.tolist()]
