"""A cost model that the searches of several tasks share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import tilesmith as ts
from tilesmith.search.protocol import Predictor
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.search.shared_model import SharedModel, with_shared_model
from tilesmith.search.training import groups_of, pairwise_accuracy
from tilesmith.testing.landscape import MANY, matmul_task, measured, seconds_by_tiles

TASKS = [matmul_task(), matmul_task(64, 32, 64), matmul_task(96, 64, 32)]


def drawn(task: ts.Task, count: int, seed: int = 0) -> list[ts.Measurement]:
    search = ts.Random().start(task, MANY.sketches(task), np.random.default_rng(seed))
    return measured(search.ask(count))


def searches(model: SharedModel) -> list[ts.Search]:
    strategy = ts.Evolution(cost_model=model, population=64)
    return [
        strategy.start(t, MANY.sketches(t), np.random.default_rng(k)) for k, t in enumerate(TASKS)
    ]


def accuracy(predictor: Predictor, task: ts.Task) -> float:
    """Of how many pairs of programs that were never measured the order is right."""
    fresh = drawn(task, 80, seed=9)
    scores = np.zeros(len(fresh))
    for g in groups_of(fresh):
        scores[g.at] = predictor.predict(g.variant, g.rows)
    return pairwise_accuracy(scores, np.array([-m.cost for m in fresh]))


def test_one_model_learns_from_all_tasks() -> None:
    model = SharedModel(fewest=180)
    runs = searches(model)
    assert model.fit(()) is None
    for run, task in zip(runs, TASKS, strict=True):
        run.tell(drawn(task, 60))
    predictor = model.fit(())
    assert predictor is not None
    assert model.fits == 1
    other = matmul_task(48, 64, 48)  # never measured
    assert accuracy(predictor, other) > accuracy(ScoreByTarget(), other) + 0.1


def test_it_is_fitted_again_when_enough_is_new() -> None:
    model = SharedModel(fewest=40, refit=0.25)
    every = drawn(TASKS[0], 60)
    model.tell(every[:40])
    first = model.fit(())
    assert first is not None
    model.tell(every[:48])  # the same once more, and eight new ones
    assert model.fit(()) is first
    model.tell(every[:50])
    assert model.fit(()) is not first
    assert model.fits == 2


def test_records_of_other_tasks_count_half_at_most() -> None:
    records = drawn(TASKS[1], 80)
    model = SharedModel(records, fewest=80)
    assert model.fit(()) is None  # nothing was measured yet
    model.tell(drawn(TASKS[0], 30))
    assert model.fit(()) is None
    model.tell(drawn(TASKS[0], 40, seed=1))
    assert model.fit(()) is not None
    assert "80 records" in repr(model)


def test_searches_ask_for_the_shared_predictor_at_every_batch() -> None:
    """Also one that has measured nothing itself."""
    model = SharedModel(fewest=40)
    first, second, _ = searches(model)
    first.tell(drawn(TASKS[0], 40))
    cold = matmul_task(64, 32, 64)
    costs = [seconds_by_tiles(c) for c in second.ask(8)]
    by_draft = ts.Evolution(cost_model=None, population=64).start(
        cold, MANY.sketches(cold), np.random.default_rng(1)
    )
    drafted: Sequence[ts.Candidate] = by_draft.ask(8)
    assert np.median(costs) < np.median([seconds_by_tiles(c) for c in drafted])


def test_a_strategy_gets_a_shared_model_in_place_of_its_trees() -> None:
    few = with_shared_model(ts.Evolution(population=64), drawn(TASKS[0], 8), 2)
    assert isinstance(few, ts.Evolution)
    assert few.population == 64
    assert isinstance(few.cost_model, SharedModel)
    assert few.cost_model.fewest == 48
    assert len(few.cost_model.records) == 8
    many = with_shared_model(ts.Evolution(), (), 50)
    assert isinstance(many, ts.Evolution)
    assert isinstance(many.cost_model, SharedModel)
    assert many.cost_model.fewest == 192
    for own in (ts.Random(), ts.Evolution(cost_model=None), ts.Evolution(cost_model=ts.TreeGru())):
        assert with_shared_model(own, (), 2) is own
