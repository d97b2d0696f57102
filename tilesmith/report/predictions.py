"""Measured times beside what was predicted for them: by the analytic score, which needs no records,
and by a cost model that has seen only earlier records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TilesmithError
from tilesmith.report.decisions import evenly
from tilesmith.search.gbdt import Gbdt
from tilesmith.search.protocol import Predictor, Scores
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.search.training import Group, groups_of, rank_correlation
from tilesmith.space.variant import without_numbers
from tilesmith.task.task import Measurement

# A variant must be lowered and its features compiled, which takes some 50 ms.
_VARIANTS = 12  # of a task: those with the most candidates
_FIRST = 32  # candidates that the first model learns from
_FEWEST = 8  # candidates, below which nothing is shown

Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Predictions:
    """All times are in microseconds, in the order in which candidates were measured. `learned` is
    None for the first candidates, before which there is no model. The correlations are
    Spearman's, from -1 to 1, both of the candidates that have a learned prediction; if none has,
    of all. Candidates of the same code count once; `total` counts them before thinning.
    """

    measured: tuple[float, ...]
    analytic: tuple[float | None, ...]
    learned: tuple[float | None, ...]
    analytic_correlation: float | None
    learned_correlation: float | None
    total: int


def predictions_of(
    measured: Sequence[Measurement], ranked: Sequence[Measurement], points: int
) -> Predictions | None:
    """None if there are too few, or if nothing can be predicted for their target. `ranked` are the
    measurements that count, the best first.
    """
    if not ranked:
        return None
    best = ranked[0]
    counting = {m.candidate.key: m for m in ranked if m.is_normal is best.is_normal}
    # Each candidate once, at its first measurement. Failures teach the model too.
    seen = {m.candidate.key: counting.get(m.candidate.key, m) for m in measured}
    timed = [m for m in seen.values() if m.failure is not None or m.candidate.key in counting]
    # Candidates that compile to the same code share their samples: known once, all are known.
    programs: dict[tuple[float, ...] | str, Measurement] = {}
    for m in timed:
        programs.setdefault(m.seconds or m.candidate.key, m)
    kept = evenly(_of_common_variants([*programs.values()]), points)
    if sum(m.failure is None for m in kept) < _FEWEST:
        return None
    try:
        return _predictions(
            kept, best.cost / best.normal_cost, sum(m.failure is None for m in programs.values())
        )
    except (TilesmithError, ImportError):
        return None


def _of_common_variants(history: Sequence[Measurement]) -> list[Measurement]:
    variants = [without_numbers(m.candidate.trace) for m in history]
    common = {v for v, _ in Counter(variants).most_common(_VARIANTS)}
    return [m for m, v in zip(history, variants, strict=True) if v in common]


def _predictions(history: Sequence[Measurement], speed: float, total: int) -> Predictions | None:
    groups = groups_of(history)
    if not groups:
        return None
    costs = np.array([np.inf if m.failure else m.normal_cost for m in history]) * speed * 1e6
    score = _scores(ScoreByTarget(), groups, len(history))
    shown = np.isfinite(costs) & np.isfinite(score)
    if shown.sum() < _FEWEST:
        return None
    # The score is log2 of a share of the peak: one constant makes times of it.
    speeds = np.exp2(score)
    analytic = np.median((costs * speeds)[shown]) / speeds
    learned = _learned(history, groups, costs, shown)
    both = shown & np.isfinite(learned)
    judged = both if both.any() else shown
    return Predictions(
        tuple(float(f"{c:.4g}") for c in costs[shown]),
        _numbers(analytic[shown]),
        _numbers(learned[shown]),
        rank_correlation(analytic[judged], costs[judged]),
        rank_correlation(learned[both], costs[both]),
        total,
    )


def _learned(
    history: Sequence[Measurement], groups: Sequence[Group], costs: Scores, shown: Mask
) -> Scores:
    """Each candidate's time as predicted by a model of the candidates before it: of the first 32
    for the next 16, of 48 for the next 24, and so on. A straight line through the logarithms of the
    learned times makes times of its scores.
    """
    out = np.full(len(history), np.nan)
    start = _FIRST
    while start < len(history):
        end = min(start + start // 2, len(history))
        model = Gbdt().fit(history[:start])
        if model is not None:
            score = _scores(model, groups, len(history))
            known = np.flatnonzero(shown & np.isfinite(score))
            past, new = known[known < start], known[(known >= start) & (known < end)]
            if len(past) > 1 and np.ptp(score[past]) > 0:
                slope, offset = np.polyfit(score[past], np.log2(costs[past]), 1)
                out[new] = np.exp2(np.clip(min(slope, 0.0) * score[new] + offset, -60, 60))
        start = end
    return out


def _scores(predictor: Predictor, groups: Sequence[Group], count: int) -> Scores:
    """By position among the measurements; not a number where a trace cannot be applied."""
    out = np.full(count, np.nan)
    for g in groups:
        out[g.at] = predictor.predict(g.variant, g.rows)
    return out


def _numbers(values: Scores) -> tuple[float | None, ...]:
    return tuple(float(f"{v:.4g}") if np.isfinite(v) else None for v in values)
