"""A run begins with a task while the search thinks of its first candidates."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import planted
import pytest

import tilesmith as ts
from tilesmith.search.evolution import Evolution
from tilesmith.testing.measurers import FakeMeasurer, children, small_task, split_by


def test_the_oracle_is_asked_once() -> None:
    task = small_task()
    with ts.LocalMeasurer().open(task) as run:
        run.prepare(task)
        (measured,) = run.measure([split_by(8, task)])
        assert measured.failure is None
        run.prepare(task)
        run.measure([split_by(4, task)])
        assert run.spent.evaluations == 1


def test_another_task_may_be_measured_first() -> None:
    first, second = small_task(), small_task(64)
    with ts.LocalMeasurer().open(first) as run:
        run.prepare(second)
        for task in (first, second):
            (measured,) = run.measure([split_by(8, task)])
            assert measured.failure is None
        assert run.spent.evaluations == 2


def test_closing_does_not_wait_for_it() -> None:
    before = children()
    run = ts.LocalMeasurer().open(task := small_task())
    run.prepare(task)
    run.close()
    deadline = time.monotonic() + 300
    while children() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not children() - before
    with pytest.raises(ts.MeasureError, match="closed"):
        run.measure([split_by(8, task)])


def test_what_goes_wrong_is_tried_again_by_measure() -> None:
    with ts.LocalMeasurer().open(task := small_task()) as run:
        assert run._pool.fork_server is not None
        run._pool.fork_server.kill()
        run.prepare(task)
        (measured,) = run.measure([split_by(8, task)])
        assert measured.failure is None


def test_it_waits_for_no_batch() -> None:
    """While a batch is measured, nothing is begun; afterwards it is."""
    task = planted.task()
    with ts.LocalMeasurer().open(task) as run:
        with run._lock:
            run.prepare(task)
            assert run._pool.fork_server is not None
            run._pool.fork_server.wait_until_up()
            time.sleep(0.3)  # in which it would begin
            assert not run._pool._oracles
        deadline = time.monotonic() + 300
        while not run._pool._oracles and time.monotonic() < deadline:
            time.sleep(0.01)
        assert task.statement in run._pool._oracles


class Watching(Evolution):
    """Notes when its search starts."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        object.__setattr__(self, "events", events)

    def start(self, *arguments: Any) -> Any:
        self.events.append("search")  # type: ignore[attr-defined]
        return super().start(*arguments)


def test_a_tuner_prepares_before_it_searches() -> None:
    events: list[str] = []
    task = small_task()
    tuner = ts.TaskTuner(task, strategy=Watching(events), budget=ts.Budget(trials=4))
    run: Any = FakeMeasurer().open(task)
    measure = run.measure

    def prepare(of: ts.Task) -> None:
        assert of == task
        events.append("prepare")

    def noted(candidates: Sequence[ts.Candidate], *arguments: Any) -> Any:
        events.append("measure")
        return measure(candidates, *arguments)

    run.prepare, run.measure = prepare, noted
    tuner.step(run, 2)
    tuner.step(run, 2)
    assert events == ["prepare", "search", "measure", "measure"]
