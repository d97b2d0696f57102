"""AutoTVM's baseline: features that are the decisions, and a score that knows nothing."""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.search.protocol import AnalyticScore
from tilesmith.search.training import groups_of, pairwise_accuracy
from tilesmith.testing.landscape import MANY, matmul_task, measured


def drawn(count: int, seed: int) -> list[ts.Measurement]:
    task = matmul_task()
    search = ts.Random().start(task, MANY.sketches(task), np.random.default_rng(seed))
    return measured(search.ask(count))


def test_knobs_are_told_apart_by_name_and_number() -> None:
    task = matmul_task()
    features = ts.KnobFeatures()
    one, two = (next(ts.variants(task, sketch)) for sketch in MANY.sketches(task))
    rows = one.sample(np.random.default_rng(0), 50)
    x = features.extract(one, rows)
    assert x.shape == (50, 1, 256)
    assert x.dtype == np.float32
    assert len(np.unique(x[:, 0], axis=0)) == len(np.unique(rows, axis=0))
    # the same numbers under another order of loops differ in the structure's slots alone
    other = features.extract(two, rows)
    assert 0 < (x[0] != other[0]).sum() <= 4
    for k in range(3):
        changed = rows[:1].copy()
        changed[0, k] += 1
        assert (features.extract(one, changed) != x[:1]).sum() == 1


def test_it_learns_without_the_analytic_score() -> None:
    none = ts.NoScore()
    model = ts.Gbdt(features=ts.KnobFeatures(), base=none).fit(drawn(300, 0))
    assert model is not None
    fresh = drawn(100, 9)
    scores = np.zeros(len(fresh))
    for g in groups_of(fresh):
        scores[g.at] = model.predict(g.variant, g.rows)
    assert pairwise_accuracy(scores, np.array([-m.cost for m in fresh])) > 0.75


def test_no_score_takes_the_place_of_the_analytic_one() -> None:
    none = ts.NoScore()
    assert isinstance(none, AnalyticScore)
    assert none == ts.NoScore()
    task = matmul_task()
    (variant,) = ts.variants(task, MANY.sketches(task)[0])
    rows = variant.sample(np.random.default_rng(0), 8)
    assert not none.predict(variant, rows).any()
    x, scores = ts.StatementFeatures().with_score(variant, rows, none)
    assert not scores.any()
    assert not x[..., -1].any()
    strategy = ts.Evolution(score=none, cost_model=ts.Gbdt(base=none), population=64)
    search = strategy.start(task, MANY.sketches(task), np.random.default_rng(0))
    for _ in range(3):
        asked = search.ask(16)
        assert len(asked) == 16
        search.tell(measured(asked))


def test_there_is_a_slot_at_least() -> None:
    with pytest.raises(ts.TuneError, match="width"):
        ts.KnobFeatures(width=0)
    task = matmul_task()
    (variant,) = ts.variants(task, MANY.sketches(task)[0])
    rows = variant.sample(np.random.default_rng(0), 3)
    assert ts.KnobFeatures(width=1).extract(variant, rows).shape == (3, 1, 1)


@pytest.mark.parametrize(
    "strategy",
    [
        ts.Evolution(score=ts.NoScore(), cost_model=None, epsilon=0.0, population=64),
        ts.Annealing(score=ts.NoScore(), cost_model=None, epsilon=0.0, plan=16),
    ],
    ids=lambda s: type(s).__name__,
)
def test_equal_scores_favour_no_variant(strategy: ts.Evolution | ts.Annealing) -> None:
    task = matmul_task()
    search = strategy.start(task, ts.SketchSpace().sketches(task), np.random.default_rng(0))
    asked = search.ask(16)
    assert len(asked) == 16
    who = [search.catalogue.individual(c) for c in asked]
    assert len({w.variant for w in who if w is not None}) >= 3
