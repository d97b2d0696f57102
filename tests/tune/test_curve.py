"""The curve of a run, and how soon it was near its best, are on one scale."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilesmith as ts
from tilesmith.task.task import Budget, Moment, Ranking, TuningRun, curve_of
from tilesmith.testing.landscape import MANY, matmul_task, seconds_by_tiles
from tilesmith.testing.measurements import measured, task_of
from tilesmith.testing.measurers import FakeMeasurer
from tilesmith.tune.task_tuner import TaskTuner

TASK = task_of()


def tuned(database, *batches):
    """The result of a run in which these were measured, a batch after the other."""
    tuner = TaskTuner(TASK, budget=Budget(trials=9), database=database)
    for batch in batches:
        tuner._settle([tuner._store(m) for m in batch], None)
    return tuner.result()


def test_what_a_slow_moment_took_is_not_late(monkeypatch):
    """The machine was three times as slow at first: the same kernel took three times as long."""
    slow = replace(measured(TASK, 1, (3e-3,)), references=(3e-4,))
    fast = replace(measured(TASK, 2, (0.99e-3,)), references=(1e-4,))
    result = tuned(None, [slow], [fast])
    assert result.near == result.curve[0][0]
    assert [cost for *_, cost in result.curve] == pytest.approx([1e-3, 0.99e-3])


def test_the_last_cost_of_the_curve_is_that_of_the_best():
    result = tuned(None, [replace(measured(TASK, 1, (3e-3,)), references=(3e-4,))])
    assert result.curve[-1][2] == pytest.approx(result.best.cost)
    assert result.best.cost == 3e-3


def test_known_times_without_references_are_no_point_of_a_curve_with_them():
    with ts.open_database(":memory:") as db:
        db.add([measured(TASK, 1, (1e-9,))])
        result = tuned(db, [replace(measured(TASK, 2, (2e-3,)), references=(1e-4,))])
    assert result.best.candidate == measured(TASK, 2).candidate
    assert len(result.curve) == 1
    assert result.near == result.curve[0][0] > 0


def test_the_best_time_so_far_never_rises():
    """The fastest turned out to be slower when it was measured with care. If it still is the best,
    it counts with that time from the start; if it is not, it never was.
    """
    run = TuningRun("r", "x", "", 0, Budget(), 0.0, "m")

    def curve(*times):
        every = [
            replace(measured(TASK, k, (s,)), confirmed=sure, moment=Moment(run, 1.0 * n, n))
            for n, (k, s, sure) in enumerate(times, 1)
        ]
        return curve_of(every), Ranking(every).best.cost

    points, best = curve((1, 9.0, False), (2, 1.0, False), (3, 8.0, False), (2, 2.0, True))
    assert points == ((1.0, 1, 9.0), (2.0, 2, 2.0), (4.0, 4, 2.0))
    assert best == 2.0
    points, best = curve((1, 9.0, False), (2, 1.0, False), (3, 5.0, True), (2, 7.0, True))
    assert points == ((1.0, 1, 9.0), (2.0, 2, 5.0), (3.0, 3, 5.0))
    assert best == 5.0


def test_a_time_that_is_none_is_never_the_best():
    times = enumerate((0.0, -1.0, float("nan"), 5.0))
    result = tuned(None, [measured(TASK, k, (s,)) for k, s in times])
    assert result.best.cost == 5.0
    assert result.gflops > 0


@pytest.mark.parametrize("strategy", [ts.Random(), ts.Evolution()])
def test_the_database_gives_the_curve_of_every_run(strategy, tmp_path):
    """Also of one that resumes, of one in which candidates fail, and after an export."""
    task = matmul_task()

    def cost(c):
        return ts.Failure("crash") if int(c.key, 16) % 4 == 0 else seconds_by_tiles(c)

    results = []
    with ts.open_database(tmp_path / "t.db") as db, ts.open_database(":memory:") as copy:
        slower = FakeMeasurer(lambda c: 1.01 * seconds_by_tiles(c))
        for trials, measurer in ((30, FakeMeasurer(cost)), (80, slower)):
            results.append(
                ts.tune(
                    task.func, task.target, budget=ts.Budget(trials=trials, patience=1000),
                    space=MANY, strategy=strategy, measurer=measurer, database=db, quiet=True,
                    seed=trials,
                )
            )  # fmt: skip
        db.export(tmp_path / "t.jsonl")
        copy.import_(tmp_path / "t.jsonl")
        for d in (db, copy):
            runs = d.runs(task)
            assert [r.run for r in runs] == [r.run for r in results]
            assert [r.curve for r in runs] == [r.curve for r in results]
            assert [r.trials for r in runs] == [r.trials for r in results]
            for run, result in zip(runs, results, strict=True):
                assert 0 < run.seconds <= result.seconds
                assert run.curve[-1][2] == result.best.cost
    assert [r.run.seed for r in results] == [30, 80]
    assert results[0].run.budget == ts.Budget(trials=30, patience=1000)
    assert results[0].run.strategy == type(strategy).__name__
    assert results[0].run.settings.startswith(f"{type(strategy).__name__}(")
