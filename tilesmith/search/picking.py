"""Picks a batch of candidates by quality and diversity."""

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
    """The positions of `count` candidates that make a good batch, best first: a greedy maximum of

        sum of scores + diversity * number of different decisions among them,

    where a decision is a value of a column of a variant. The objective is submodular, so the greedy
    batch has at least 63 % of the best possible worth if no score is negative. Without diversity
    these are the best scores, in order. Scores are used as given: divide them by their standard
    deviation if their unit is arbitrary, as for a ranking model.

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
            if part not in taken:  # no longer new for the other candidates that make it
                taken.add(part)
                worth[holders[ends[part] : ends[part + 1]]] -= diversity
    return out


def decisions(variants: Sequence[int], rows: Sequence[Matrix]) -> Numbers:
    """For each row, a number for each of its decisions, equal if variant, column and value are
    equal. Lines of variants with fewer columns end in -1.
    """
    widths = np.array([len(r) for r in rows], np.int64)
    out = np.full((len(rows), widths.max(initial=0)), -1, np.int64)
    there = np.arange(out.shape[1]) < widths[:, None]
    values = np.concatenate([*rows, np.zeros(0, np.int64)]).astype(np.int64)
    which, columns = np.nonzero(there)
    # variant, column and value in one integer: values take 32 bits, the others are small
    keys = np.asarray(variants, np.int64)[which] * out.shape[1] + columns << 32
    out[there] = np.unique(keys + values, return_inverse=True)[1]
    return out


def _holders(parts: Numbers) -> tuple[Numbers, list[int]]:
    """The lines that contain each decision, concatenated, and the start of each decision's lines
    followed by the end of the last.
    """
    lines, columns = np.nonzero(parts >= 0)
    held = parts[lines, columns]
    ends = np.cumsum(np.bincount(held))
    return lines[np.argsort(held, kind="stable")], [0, *ends.tolist()]
