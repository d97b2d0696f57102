"""Annealing climbs what its model predicts, keeps its chains, and spreads its plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.search.classic.annealing import AnnealingSearch
from tilesmith.testing.landscape import MANY, matmul_task, measured


@dataclass(frozen=True)
class Oracle:
    """Predicts the sum of the innermost tiles, in some unit; counts its fits."""

    unit: float = 1.0
    seen: list[int] = field(default_factory=list)

    def fit(self, measurements: Sequence[ts.Measurement]) -> Oracle:
        self.seen.append(len(measurements))
        return self

    def predict(self, variant: ts.Variant, rows: np.ndarray) -> np.ndarray:
        return self.unit * sum(np.log2(rows[:, s.stop - 1]) for s in variant.spans)


@dataclass(frozen=True)
class Counted(Oracle):
    calls: list[int] = field(default_factory=list)

    def predict(self, variant: ts.Variant, rows: np.ndarray) -> np.ndarray:
        self.calls.append(len(rows))
        return super().predict(variant, rows)


def begun(seed: int = 0, **settings: object) -> AnnealingSearch:
    task = matmul_task()
    strategy = ts.Annealing(**{"chains": 32, "iterations": 60, "plan": 16, **settings})
    search = strategy.start(task, MANY.sketches(task), np.random.default_rng(seed))
    if strategy.cost_model is not None:
        search.tell(measured(search.ask(16)))
    return search


def predicted(search: AnnealingSearch, candidates: list[ts.Candidate]) -> np.ndarray:
    found = [search.catalogue.individual(c) for c in candidates]
    every = [(search.catalogue.variant(w.variant), w.row) for w in found]
    return np.array([Oracle().predict(v, np.array([row]))[0] for v, row in every])


@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e6])
def test_the_chains_climb_whatever_the_unit(unit: float) -> None:
    """The highest sum is 4 + 5 + 6, and few rows come near."""
    search = begun(cost_model=Oracle(unit), epsilon=0.0, diversity=0.0)
    scores = predicted(search, search.ask(16))
    assert scores.min() >= 10
    assert list(scores) == sorted(scores, reverse=True)


def test_the_model_is_fitted_after_every_plan() -> None:
    model = Oracle()
    search = begun(cost_model=model)
    for _ in range(8):
        search.tell(measured(search.ask(8)))
    assert model.seen == [0, 16, 32, 48, 64, 80]


def test_records_are_learned_from_at_once_and_failures_alone_are_not() -> None:
    known = begun(cost_model=None).ask(40)
    task = matmul_task()
    for cost, fits in ((lambda c: 1e-3, [0, 40]), (lambda c: ts.Failure("crash"), [0])):
        model = Oracle()
        strategy = ts.Annealing(cost_model=model, plan=16)
        search = strategy.start(task, MANY.sketches(task), np.random.default_rng(0))
        search.tell(measured(known, cost))
        assert model.seen == fits


def test_the_states_of_the_chains_persist() -> None:
    search = begun(cost_model=Oracle(), temperature=(0.0, 0.0), iterations=20)
    levels = []
    for _ in range(4):
        search.tell(measured(search.ask(16)))
        scores = [
            Oracle().predict(search.catalogue.lowered(k), r) for k, r in search._states.items()
        ]
        levels.append(np.concatenate(scores).mean())
    assert levels == sorted(levels)
    assert levels[-1] > levels[0]


def test_hot_chains_wander_and_cold_ones_climb() -> None:
    means = []
    for heat in (1e6, 0.0):
        search = begun(cost_model=Oracle(), temperature=(heat, heat))
        search.ask(16)
        scores = [
            Oracle().predict(search.catalogue.lowered(k), r) for k, r in search._states.items()
        ]
        means.append(np.concatenate(scores).mean())
    assert means[1] > means[0] + 3


def test_diversity_spreads_a_plan() -> None:
    def different(diversity: float) -> int:
        search = begun(cost_model=Oracle(), epsilon=0.0, diversity=diversity)
        found = [search.catalogue.individual(c) for c in search.ask(16)]
        return len({(w.variant, k, v) for w in found for k, v in enumerate(w.row)})

    assert different(1.0) > different(0.0)


def test_a_share_of_a_plan_is_random() -> None:
    search = begun(cost_model=Oracle(), epsilon=0.25, diversity=0.0)
    scores = predicted(search, search.ask(16))
    assert scores[:12].min() >= 10
    assert scores[12:].mean() < 10


def test_early_stop_ends_the_chains() -> None:
    predictions = []
    for early_stop in (1, 1000):
        calls: list[int] = []
        search = begun(
            cost_model=None, iterations=200, early_stop=early_stop, chains=4, plan=1, diversity=0.0
        )
        search._predictor = Counted(calls=calls)
        search.ask(1)
        predictions.append(len(calls))
    assert predictions[0] < 200 <= predictions[1]
