"""The curve of a run, and how soon it was near its best, are on one scale."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilesmith as ts
from tilesmith.task.task import Budget
from tilesmith.testing.databases import measured, task_of
from tilesmith.tune.run_state import RunState

TASK = task_of()


def test_what_a_slow_moment_took_is_not_late(monkeypatch):
    """The machine was three times as slow at first: the same kernel took three times as long."""
    run = RunState(TASK, Budget(trials=9), None, [])
    slow = replace(measured(TASK, 1, (3e-3,)), references=(3e-4,))
    fast = replace(measured(TASK, 2, (0.99e-3,)), references=(1e-4,))
    run.end_batch([slow], None)
    first = run.bests[0][0]
    run.end_batch([fast], None)
    result = run.result(False, None)
    assert result.near == first
    assert [cost for *_, cost in result.curve] == pytest.approx([1e-3, 0.99e-3])


def test_the_last_cost_of_the_curve_is_that_of_the_best():
    run = RunState(TASK, Budget(trials=9), None, [])
    run.end_batch([replace(measured(TASK, 1, (3e-3,)), references=(3e-4,))], None)
    result = run.result(False, None)
    assert result.curve[-1][2] == pytest.approx(result.best.cost)
    assert result.best.cost == 3e-3


def test_known_times_without_references_are_no_point_of_a_curve_with_them():
    with ts.open_database(":memory:") as db:
        db.add([measured(TASK, 1, (1e-9,))])
        run = RunState(TASK, Budget(trials=9), db, [])
        run.end_batch([replace(measured(TASK, 2, (2e-3,)), references=(1e-4,))], None)
        result = run.result(False, None)
    assert result.best.candidate == measured(TASK, 2).candidate
    assert len(result.curve) == 1
    assert result.near == result.curve[0][0] > 0


def test_a_time_that_is_none_is_never_the_best():
    run = RunState(TASK, Budget(trials=9), None, [])
    run.end_batch(
        [measured(TASK, k, (s,)) for k, s in enumerate((0.0, -1.0, float("nan"), 5.0))], None
    )
    result = run.result(False, None)
    assert result.best.cost == 5.0
    assert result.gflops > 0
