"""Two tuners of one task on one database share their records while they run."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

import tilesmith as ts
from tilesmith.measure.protocol import Upcoming
from tilesmith.task.task import Moment
from tilesmith.testing.measurements import measured, task_of, tuning_run
from tilesmith.testing.measurers import FakeMeasurer, FakeRun
from tilesmith.tune import run_state
from tilesmith.tune.task_tuner import TaskTuner

A, B = ts.placeholder((32, 32), name="A"), ts.placeholder((32, 32), name="B")
TASK = ts.Task(ts.function([A, B, ts.ops.matmul(A, B, name="C")], name="matmul"), ts.cpu(1))


class InTurns(FakeMeasurer):
    """Two tuners measure their batches at the same time."""

    def open(self, task: ts.Task) -> FakeRun:
        return InTurnsRun(self)


class InTurnsRun(FakeRun):
    both = threading.Barrier(2)

    def measure(
        self,
        candidates: Sequence[ts.Candidate],
        upcoming: Upcoming | None = None,
        seconds: float | None = None,
    ) -> list[ts.Measurement]:
        with suppress(threading.BrokenBarrierError):  # the other one has finished
            self.both.wait(300.0)
        return super().measure(candidates, upcoming, seconds)


def test_they_share_the_work(new_place: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_state, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(InTurnsRun, "both", threading.Barrier(2))
    place = new_place()
    ts.open_database(place).close()
    results: dict[int, ts.Result] = {}

    def tuner(seed: int) -> None:
        own = ts.open_database(place)
        try:
            results[seed] = ts.tune(
                TASK.func, TASK.target, measurer=InTurns(), database=own, quiet=True,
                budget=ts.Budget(trials=60), strategy=ts.Random(), seed=seed,
            )  # fmt: skip
        finally:
            own.close()
            InTurnsRun.both.abort()

    threads = [threading.Thread(target=tuner, args=(seed,)) for seed in (1, 2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    database = ts.open_database(place)
    records = database.of(TASK)
    database.close()
    one, two = results[1], results[2]
    own = [m for m in records if m.moment is not None and m.moment.trial > 0]
    keys = Counter(m.candidate.key for m in own)
    assert min(one.trials, two.trials) >= 12
    # The budget counts what both have measured. The last batches are under way at the same time.
    assert 60 <= one.trials + two.trials <= 60 + 2 * 32
    assert max(one.trials, two.trials) < 60
    assert len(keys) >= 0.8 * (one.trials + two.trials)
    fastest = min(m.cost for m in records)
    assert min(one.best.cost, two.best.cost) == fastest


def test_what_others_have_added_since_a_mark(new_place: Callable[[], str]) -> None:
    place = new_place()
    database, other = ts.open_database(place), ts.open_database(place)
    settings = {"measurer": FakeMeasurer(), "strategy": ts.Random(), "quiet": True}
    _, start = database.since(TASK, None)
    assert database.since(TASK, start) == ([], start)
    first = ts.tune(TASK.func, TASK.target, database=other, budget=ts.Budget(trials=4), **settings)
    found, mark = database.since(TASK, start)
    assert found == database.of(TASK)
    assert len(found) == 4
    assert database.since(TASK, start, first.run.key)[0] == []
    ts.tune(TASK.func, TASK.target, database=other, budget=ts.Budget(trials=6), **settings)
    more, _ = database.since(TASK, mark)
    assert more == database.of(TASK)[4:]
    for d in (database, other):
        d.close()


def test_a_better_one_that_could_not_be_measured_is_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another tuner improves twice between two batches: the first is measured beside our best, the
    second is kept for later, and it is the result if the budget ends before.
    """
    monkeypatch.setattr(run_state, "_LOOK_SECONDS", 0.0)
    task = task_of()
    other = tuning_run(number=1)
    with ts.open_database(":memory:") as database:
        tuner = TaskTuner(task, database=database)

        def measure(k: int, seconds: float) -> None:
            tuner._settle([tuner._store(measured(task, k, (seconds,)))], None)
            tuner._ledger.save()

        measure(1, 5e-3)
        for k, seconds in ((2, 4e-3), (3, 3e-3)):
            moment = Moment(other, 1.0, k)
            database.add([replace(measured(task, k, (seconds,)), moment=moment)])
            told: list[ts.Measurement] = []
            tuner._learn_of_others(SimpleNamespace(tell=told.extend))
            assert [m.cost for m in told] == [seconds]
            asked = tuner._incumbent.next_defender()
            assert asked == (measured(task, k).candidate if k == 2 else None)
            if asked is not None:
                measure(k, seconds)
        assert tuner.best is not None
        assert tuner.best.cost == 4e-3
        assert tuner.result().best.cost == 3e-3
