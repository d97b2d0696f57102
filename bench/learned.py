"""What a cost model that was trained before knows of families it has never seen, on the data of
`bench.drawn_dataset`.

    python -m bench.learned [--folds] [-o FILE]

It is trained on the families that may be fitted and judged on the others; with `--folds` on four
fifths of all families, five times, so that each operator is judged once. For each operator: the
share of pairs of programs in the right order (of evenly drawn ones, of the analytic score's
favourites, of all), the share of the fastest 1 % among the first 8, 32 and 128 programs, and the
speed of the best of the first 8 and of the first one, relative to the best. `-o` writes the model.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tilesmith as ts
from bench.drawn_dataset import EVEN, LIKED, DrawnSet, Operator, machines
from bench.everyday_cases import FAMILIES
from tilesmith.search.protocol import Predictor
from tilesmith.search.training import groups_of, pairwise_accuracy, peak_curve

PICKS = (8, 32, 128)
HEADER = ("even", "liked", "all", *(f"1 % in {k}" for k in PICKS), "best of 8", "first")
Case = tuple[DrawnSet, Operator]


def records_of(case: Case) -> list[ts.Measurement]:
    known, o = case
    return [*known.of(EVEN, o.number), *known.of(LIKED, o.number)]


def judged(predictor: Predictor, case: Case) -> list[float]:
    known, o = case
    groups = groups_of(records_of(case))
    at = np.concatenate([g.at for g in groups])
    labels = np.concatenate([g.labels for g in groups])
    scores = np.concatenate([predictor.predict(g.variant, g.rows) for g in groups])
    even = at < len(known.of(EVEN, o.number))
    accuracies = [pairwise_accuracy(scores[k], labels[k]) for k in (even, ~even, even | True)]
    order = np.random.default_rng(0).permutation(len(labels))  # ties are in no one's favour
    scores, labels = scores[order], labels[order]
    top = max(1, len(labels) // 100)
    best = set(np.argsort(-labels, kind="stable")[:top].tolist())
    liked = np.argsort(-scores, kind="stable")
    recalls = [len(best & set(liked[:k].tolist())) / top for k in PICKS]
    curve = peak_curve(scores, labels, 8)
    return [*accuracies, *recalls, float(curve[-1]), float(curve[0])]


def interval(differences: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Of the mean, 95 %, by drawing operators again."""
    rng = np.random.default_rng(0)
    n = len(differences)
    means = [differences[rng.integers(n, size=n)].mean() for _ in range(2000)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def table(analytic: Sequence[list[float]], learned: Sequence[list[float]]) -> None:
    a, b = np.array(analytic), np.array(learned)
    print(f"{len(a)} operators{'':14}analytic  learned   difference, 95 %")
    for k, name in enumerate(HEADER):
        low, high = interval(b[:, k] - a[:, k])
        print(f"{name:26}{a[:, k].mean():8.3f} {b[:, k].mean():8.3f}   {low:+.3f} to {high:+.3f}")


def trained(cases: Sequence[Case], share: float | None) -> ts.LearnedModel:
    model = ts.learn([m for c in cases for m in records_of(c)])
    return model if share is None else replace(model, score=replace(model.score, share=share))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folds", action="store_true", help="each family is left out once")
    parser.add_argument("--share", type=float, help="of the trees' corrections")
    parser.add_argument("-o", "--output", type=Path, help="write the model here")
    args = parser.parse_args()
    sets = [DrawnSet(folder) for folder in machines()]
    cases = [(s, o) for s in sets for o in s.operators if records_of((s, o))]
    if args.folds:
        names = [*FAMILIES]
        numbers = [names.index(o.family) % 5 for _, o in cases]
        parts = [
            ([c for c, n in zip(cases, numbers, strict=True) if n != k],
             [c for c, n in zip(cases, numbers, strict=True) if n == k])
            for k in range(5)
        ]  # fmt: skip
    else:
        fitted = [c for c in cases if c[1].is_fitted]
        parts = [(fitted, [c for c in cases if not c[1].is_fitted])]
    analytic, learned = [], []
    for fitted, others in parts:
        model = trained(fitted, args.share)
        if args.output and not args.folds:
            model.save(args.output)
        analytic += [judged(ts.ScoreByTarget(), c) for c in others]
        learned += [judged(model.score, c) for c in others]
    table(analytic, learned)


if __name__ == "__main__":
    main()
