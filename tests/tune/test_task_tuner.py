"""Tuners that others drive: several tasks share a measurer and a database, a user's scheduler
decides which is next, and each step leaves all that a scheduler needs to know.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import pytest

import tilesmith as ts
from tilesmith.measure.protocol import Upcoming
from tilesmith.testing.landscape import MANY, matmul_task, seconds_by_tiles
from tilesmith.testing.measurers import FakeMeasurer, FakeRun

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "two_tasks.py"
ONE, OTHER = matmul_task(), ts.Task(matmul_task().func, ts.cpu(2))


def two_tasks() -> Any:
    spec = importlib.util.spec_from_file_location("two_tasks", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Watched(FakeMeasurer):
    """Remembers what was measured, and what was announced meanwhile."""

    cost: Any = seconds_by_tiles
    batches: list[tuple[list[ts.Candidate], list[ts.Candidate]]] = field(default_factory=list)

    def open(self, task: ts.Task) -> FakeRun:
        return WatchedRun(self)


class WatchedRun(FakeRun):
    def __init__(self, settings: Watched) -> None:
        super().__init__(settings)
        self.batches = settings.batches

    def measure(
        self,
        candidates: Sequence[ts.Candidate],
        upcoming: Upcoming | None = None,
        seconds: float | None = None,
    ) -> list[ts.Measurement]:
        announced: list[ts.Candidate] = []
        if upcoming is not None:
            thread = threading.Thread(target=lambda: announced.extend(upcoming()))
            thread.start()
            thread.join()
        self.batches.append((list(candidates), announced))
        return super().measure(candidates)


def tuner(task: ts.Task, **settings: Any) -> ts.TaskTuner:
    settings = {"space": MANY, "strategy": ts.Random(), **settings}
    return ts.TaskTuner(task, **settings)


def task_of(batch: list[ts.Candidate]) -> ts.Task:
    (task,) = {c.task for c in batch}
    return task


def test_a_users_scheduler_decides_which_task_is_next() -> None:
    tuners = [tuner(ONE), tuner(OTHER)]
    wanted = [0, 0, 1, 0, 1, 1, 1, 0]
    turns = iter(wanted)

    def scheduler(given: Sequence[ts.TaskTuner]) -> ts.TaskTuner | None:
        assert given is tuners
        turn = next(turns, None)
        return None if turn is None else given[turn]

    measurer = Watched()
    two_tasks().tune_tasks(tuners, scheduler, measurer, 600.0)
    assert [task_of(batch) for batch, _ in measurer.batches] == [(ONE, OTHER)[k] for k in wanted]
    for batch, _ in measurer.batches:
        assert batch
    for n, t in enumerate(tuners):
        batches = [batch for batch, _ in measurer.batches if task_of(batch) == t.task]
        assert t.trials == sum(map(len, batches))
        assert [len(batch) for batch in batches] == [4, 8, 16, 16][: wanted.count(n)]


def test_the_next_task_is_searched_and_announced_while_this_one_is_measured() -> None:
    tuners = [tuner(ONE), tuner(OTHER)]
    measurer = Watched()
    turns = iter([0, 1, 1, 0, 0])
    two_tasks().tune_tasks(
        tuners, lambda given: None if (k := next(turns, None)) is None else given[k], measurer, 600
    )
    for (_, announced), (following, _) in zip(
        measurer.batches[:-1], measurer.batches[1:], strict=True
    ):
        assert announced == following


def test_tuners_in_turns_find_what_each_finds_alone() -> None:
    """With the same seed: neither the measurer nor the database mixes tasks up."""

    def alone(task: ts.Task) -> list[ts.Measurement]:
        with ts.open_database(":memory:") as db:
            one = tuner(task, database=db, budget=ts.Budget(trials=40))
            with FakeMeasurer(seconds_by_tiles).open(task) as measuring:
                while not one.finished:
                    one.step(measuring)
            return db.of(task)

    with ts.open_database(":memory:") as db:
        tuners = [tuner(t, database=db, budget=ts.Budget(trials=40)) for t in (ONE, OTHER)]
        module = two_tasks()
        module.tune_tasks(tuners, module.greedy, FakeMeasurer(seconds_by_tiles), 600.0)
        assert all(t.finished for t in tuners)
        for task in (ONE, OTHER):
            assert {m.candidate for m in db.of(task)} == {m.candidate for m in alone(task)}
        assert db.count() == 80


def test_a_step_leaves_what_a_scheduler_needs() -> None:
    t = tuner(ONE, budget=ts.Budget(trials=30))
    assert (t.trials, t.best, t.best_cost, t.curve, t.seconds) == (0, None, inf, (), 0.0)
    with pytest.raises(ts.TuneError, match="could be measured"):
        t.result()
    costs = []
    with FakeMeasurer(seconds_by_tiles).open(ONE) as measuring:
        while not t.finished:
            before = t.trials
            measured = t.step(measuring)
            assert t.trials == before + len(measured)
            costs.append(t.best_cost)
    assert costs == sorted(costs, reverse=True)
    assert t.trials == 30
    assert t.curve[-1][2] == t.best_cost
    assert [n for _, n, _ in t.curve] == sorted(n for _, n, _ in t.curve)
    assert t.seconds > 0
    assert t.step(measuring) == []  # finished: the closed measurer is not even asked
    assert t.result().best == t.best


@pytest.mark.parametrize("n", [1, 3, 100])
def test_a_step_measures_as_many_as_asked_for_and_loses_no_proposal(n: int) -> None:
    measurer, whole = Watched(), Watched()
    with measurer.open(ONE) as measuring, whole.open(ONE) as other:
        t, reference = tuner(ONE), tuner(ONE)
        sizes = [len(t.step(measuring, n)) for _ in range(6)]
        reference.step(other)
        reference.step(other)
    assert max(sizes) <= n
    assert sizes[0] == min(n, 4)
    stepped = [c for batch, _ in measurer.batches for c in batch]
    assert len(set(stepped)) == len(stepped) == sum(sizes)
    if n == 1:  # the same proposals, one after the other
        assert stepped == [c for batch, _ in whole.batches for c in batch][: len(stepped)]


def test_a_step_whose_time_is_up_does_not_finish_the_tuner() -> None:
    t = tuner(ONE)
    with FakeMeasurer(seconds_by_tiles).open(ONE) as measuring:
        for _ in range(3):
            t.step(measuring)
        before = t.trials
        t.step(measuring, until=time.monotonic() - 1.0)  # may still measure what is pending
        assert t.step(measuring, until=time.monotonic() - 1.0) == []
        assert not t.finished
        assert t.step(measuring)
    assert t.trials > before


def test_an_exhausted_space_finishes_the_tuner() -> None:
    x = ts.placeholder((2,), name="X")
    func = ts.function([x, ts.compute((2,), lambda i: x[i] + 1, name="Y")], name="tiny")
    t = ts.TaskTuner(ts.Task(func, ts.cpu(1)), strategy=ts.Random())
    with FakeMeasurer().open(t.task) as measuring:
        while not t.finished:
            t.step(measuring)
    assert t.trials > 0


def test_what_was_measured_is_stored_when_a_step_is_interrupted() -> None:
    def cost(c: ts.Candidate) -> float:
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(c)
        return seconds_by_tiles(c)

    seen: list[ts.Candidate] = []
    with ts.open_database(":memory:") as db:
        t = tuner(ONE, database=db)
        with FakeMeasurer(cost).open(ONE) as measuring, pytest.raises(KeyboardInterrupt):
            t.step(measuring)
        assert [m.candidate for m in db.of(ONE)] == seen
        assert t.best is not None
        assert t.result(interrupted=True).interrupted


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"task": matmul_task().func}, r"it takes a task, as ts\.Task"),
        ({"budget": 5}, r"budget=5"),
        ({"seed": -1}, r"seed=-1"),
        ({"strategy": ts.Random}, "give an object of the class"),
        ({"space": "all"}, "space='all'"),
        ({"observers": print}, "it takes a list"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ts.TuneError, match=says):
        ts.TaskTuner(**{"task": ONE, **settings})
