"""The contract suite of measurers: subclass it and set `measurer`. And FakeMeasurer, for tests of
later stages, whose seconds come from a function.

class TestMine(MeasurerContract):
    measurer = MyMeasurer()
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import MeasureError, TilesmithError
from tilesmith.base.identity import digest
from tilesmith.base.target import cpu
from tilesmith.expr.dsl import compute, placeholder
from tilesmith.ir.lower import function
from tilesmith.measure.protocol import Listener, Measurer, Measuring, Upcoming
from tilesmith.schedule.kinds import Unroll
from tilesmith.schedule.loops import Split
from tilesmith.schedule.trace import Trace
from tilesmith.task.task import FAILURES, Candidate, Failure, Measurement, Task


def seconds_by_digest(candidate: Candidate) -> float:
    """Between a microsecond and a millisecond, by the digest of the candidate's key."""
    return float(1e-6 * 1000 ** (int(digest(candidate.key)[:8], 16) / 2**32))


@dataclass(frozen=True)
class FakeMeasurer:
    """Runs nothing: `cost` returns the seconds of a candidate, or its failure. A trace that does
    not apply fails as with other measurers.
    """

    cost: Callable[[Candidate], float | Failure] = seconds_by_digest
    num_samples: int = 3

    def open(self, task: Task) -> FakeRun:
        return FakeRun(self)


class FakeRun:
    def __init__(self, settings: FakeMeasurer) -> None:
        self._settings = settings
        self._closed = False
        self._best: dict[str, float] = {}
        self._listener: Listener | None = None
        self.measured: list[Candidate] = []  # in order of measurement

    def report_to(self, listener: Listener) -> None:
        self._listener = listener

    def measure(
        self,
        candidates: Sequence[Candidate],
        upcoming: Upcoming | None = None,
        seconds: float | None = None,
    ) -> list[Measurement]:
        if self._closed:
            raise MeasureError("this run of a measurer is closed; open another one")
        self.measured.extend(candidates)
        if upcoming is not None:
            upcoming()
        measured = []
        for c in candidates:
            measured.append(self._one(c))
            if self._listener is not None:
                self._listener(measured[-1:])
        return measured

    def _one(self, c: Candidate) -> Measurement:
        try:
            c.trace.apply(c.task.func)
        except TilesmithError as error:
            return Measurement(c, failure=Failure("schedule", str(error)), when=0.0)
        cost = self._settings.cost(c)
        if isinstance(cost, Failure):
            return Measurement(c, failure=cost, when=0.0)
        wins = cost < self._best.get(c.task.key, float("inf"))
        if wins:
            self._best[c.task.key] = cost
        return Measurement(c, (cost,) * self._settings.num_samples, confirmed=wins, when=0.0)

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def small_task(size: int = 96) -> Task:
    x = placeholder((size,), name="X")
    y = compute((size,), lambda i: x[i] * 2 + 1, name="Y")
    return Task(function([x, y], name=f"double{size}"), cpu(1))


def split_by(part: int, task: Task) -> Candidate:
    """A candidate of `small_task`, a different one for each `part` from 2 on."""
    return Candidate(task, Trace((Split("Y.i", (None, part)), Unroll("Y.i.1"))))


def children(parent: int | None = None) -> set[int]:
    """The ids of child processes, of this process by default, that were not waited for yet."""
    pids: set[int] = set()
    for thread in Path(f"/proc/{parent or os.getpid()}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            pids.update(map(int, (thread / "children").read_text().split()))
    return pids


def _optional(run: Measuring, method: str) -> Any:
    """A method that a run need not have."""
    if not hasattr(run, method):
        pytest.skip(f"this measurer has no {method}")
    return getattr(run, method)


class MeasurerContract:
    measurer: Measurer

    def test_an_empty_batch(self) -> None:
        with self.measurer.open(small_task()) as run:
            assert run.measure([]) == []

    def test_one_measurement_each_in_order(self) -> None:
        task = small_task()
        candidates = [split_by(n, task) for n in (8, 2, 6, 4)]
        with self.measurer.open(task) as run:
            measured = run.measure(candidates)
        assert [m.candidate for m in measured] == candidates
        for m in measured:
            assert m.failure is None, m.failure
            assert m.seconds
            assert all(s > 0 for s in m.seconds)

    def test_a_failure_is_a_value_and_harms_no_other(self) -> None:
        task = small_task()
        wrong = Candidate(task, Trace((Split("Y.nowhere", (None, 4)),)))
        with self.measurer.open(task) as run:
            left, middle, right = run.measure([split_by(2, task), wrong, split_by(4, task)])
            (after,) = run.measure([split_by(3, task)])
        assert middle.failure is not None
        assert middle.failure.kind in FAILURES
        assert "nowhere" in middle.failure.text
        assert middle.seconds == ()
        assert middle.cost == float("inf")
        assert left.seconds
        assert right.seconds
        assert after.seconds

    def test_the_same_candidate_twice(self) -> None:
        task = small_task()
        with self.measurer.open(task) as run:
            first, second = run.measure([split_by(4, task), split_by(4, task)])
            (third,) = run.measure([split_by(4, task)])
        assert first.candidate == second.candidate == third.candidate
        assert first.seconds
        assert second.seconds
        assert third.seconds

    def test_a_winner_is_confirmed(self) -> None:
        task = small_task()
        with self.measurer.open(task) as run:
            measured = run.measure([split_by(n, task) for n in (2, 4, 8)])
        assert any(m.confirmed or m.contended for m in measured)
        assert not any(m.confirmed and (m.contended or m.failure) for m in measured)

    def test_tasks_by_turns(self) -> None:
        tasks = small_task(), small_task(60)
        with self.measurer.open(tasks[0]) as run:
            for part in (2, 4, 6):
                for task in tasks:
                    (m,) = run.measure([split_by(part, task)])
                    assert m.candidate == split_by(part, task)
                    assert m.seconds

    def test_candidates_of_another_task(self) -> None:
        task, other = small_task(), small_task(60)
        candidates = [split_by(2, task), split_by(2, other), split_by(4, task), split_by(4, other)]
        with self.measurer.open(task) as run:
            measured = run.measure(candidates)
        assert [m.candidate for m in measured] == candidates
        assert all(m.seconds for m in measured)

    def test_upcoming_is_called_once(self) -> None:
        task = small_task()
        asked = []

        def upcoming() -> list[Candidate]:
            asked.append(1)
            return [split_by(3, task), split_by(6, task)]

        with self.measurer.open(task) as run:
            first = run.measure([split_by(2, task)], upcoming)
            second = run.measure([split_by(6, task), split_by(3, task)])  # in another order
            run.measure([split_by(4, task)], upcoming)
            other = run.measure([split_by(8, task)])  # not the upcoming one
        assert len(asked) == 2
        assert [m.candidate for m in (*first, *second, *other)] == [
            split_by(n, task) for n in (2, 6, 3, 8)
        ]
        assert all(m.seconds for m in (*first, *second, *other))

    def test_an_error_of_upcoming_is_raised(self) -> None:
        task = small_task()

        def upcoming() -> list[Candidate]:
            raise LookupError("no more ideas")

        with self.measurer.open(task) as run:
            with pytest.raises(LookupError, match="no more ideas"):
                run.measure([split_by(2, task)], upcoming)
            (after,) = run.measure([split_by(4, task)])
        assert after.seconds

    def test_candidates_not_reached_in_time_are_left_out(self) -> None:
        task = small_task()
        candidates = [split_by(n, task) for n in (2, 4, 8)]
        with self.measurer.open(task) as run:
            late = [m.candidate for m in run.measure(candidates, seconds=-1.0)]
            assert late == [c for c in candidates if c in late]  # some of them, in order
            again = run.measure(candidates, seconds=600.0)
        assert [m.candidate for m in again] == candidates
        assert all(m.seconds for m in again)

    def test_each_measurement_is_reported_once_before_it_is_returned(self) -> None:
        task = small_task()
        candidates = [split_by(n, task) for n in (2, 4, 8)]
        wrong = Candidate(task, Trace((Split("Y.nowhere", (None, 4)),)))
        heard: list[Measurement] = []
        with self.measurer.open(task) as run:
            _optional(run, "report_to")(heard.extend)
            measured = run.measure([*candidates, wrong])
            assert sorted(m.candidate.key for m in heard) == sorted(
                m.candidate.key for m in measured
            )
            assert all(m in heard for m in measured)
            heard.clear()
            again = run.measure([split_by(3, task)])
        assert heard == again

    def test_no_measurement_is_reported_twice_when_the_batch_fails(self) -> None:
        task = small_task()
        candidates = [split_by(n, task) for n in (2, 4, 8)]
        heard: list[Measurement] = []

        def upcoming() -> list[Candidate]:
            raise LookupError("no more ideas")

        with self.measurer.open(task) as run:
            _optional(run, "report_to")(heard.extend)
            with pytest.raises(LookupError):
                run.measure(candidates, upcoming)
            keys = [m.candidate.key for m in heard]
            assert len(keys) == len(set(keys))
            assert set(keys) <= {c.key for c in candidates}
            heard.clear()
            assert run.measure([split_by(3, task)]) == heard

    def test_the_best_is_one_of_those_measured(self) -> None:
        task = small_task()
        with self.measurer.open(task) as run:
            best_of = _optional(run, "best")
            assert best_of(task) is None
            measured = run.measure([split_by(n, task) for n in (2, 4, 8)])
            assert best_of(task) in measured
            assert best_of(small_task(60)) is None

    def test_two_runs_at_once(self) -> None:
        task = small_task()
        with self.measurer.open(task) as one, self.measurer.open(task) as two:
            (a,) = one.measure([split_by(4, task)])
            (b,) = two.measure([split_by(4, task)])
        assert a.seconds
        assert b.seconds

    def test_closing_leaves_nothing_behind(self) -> None:
        task = small_task()
        before = children()
        run = self.measurer.open(task)
        run.measure([split_by(4, task)])
        run.close()
        run.close()
        assert children() <= before
        with pytest.raises(TilesmithError):
            run.measure([split_by(4, task)])
