"""Who is asked and told when: the search runs one batch ahead, budgets hold on a clock of our own,
and a seed says all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

import tilesmith as ts
from tilesmith.measure import protocol
from tilesmith.measure.protocol import Results, Upcoming
from tilesmith.search.protocol import Search
from tilesmith.testing.measurers import FakeMeasurer, FakeRun, seconds_by_digest
from tilesmith.tune import run_state, task_tuner
from tilesmith.tune.run_state import Clock as RunClock


def matmul(n: int = 48) -> ts.Function:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    return ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="matmul")


@dataclass(frozen=True)
class Watched:
    """A strategy whose questions and answers are written down."""

    inner: Any
    said: list[tuple[str, list[str]]] = field(default_factory=list)

    def start(self, *given: Any) -> Search:
        search = self.inner.start(*given)

        def ask(n: int) -> list[ts.Candidate]:
            found = search.ask(n)
            self.said.append(("ask", [c.key for c in found]))
            return found

        def tell(measurements: Sequence[ts.Measurement]) -> None:
            self.said.append(("tell", [m.candidate.key for m in measurements]))
            search.tell(measurements)

        return SimpleNamespace(ask=ask, tell=tell)


def tune(**settings: Any) -> ts.Result:
    settings.setdefault("measurer", FakeMeasurer())
    settings.setdefault("budget", ts.Budget(trials=100))
    return ts.tune(matmul(), ts.cpu(1), quiet=True, **settings)


def test_the_search_is_asked_a_batch_ahead_and_told_a_batch_late() -> None:
    watched = Watched(ts.Evolution())
    assert tune(strategy=watched).trials == 100
    words = [word for word, _ in watched.said]
    assert words == ["tell", "ask", *["ask", "tell"] * 5, "tell"]
    asked = [keys for word, keys in watched.said if word == "ask"]
    told = [keys for word, keys in watched.said if word == "tell"][1:]
    assert asked == told
    assert [len(keys) for keys in asked] == [4, 8, 16, 16, 32, 24]


class Postponing(FakeMeasurer):
    """Leaves out the last candidate of a batch, if it may and others come."""

    def open(self, task: ts.Task) -> FakeRun:
        return PostponingRun(self)


class PostponingRun(FakeRun):
    capacity = 0
    _left: Sequence[ts.Candidate] = ()

    def prepare(self, task: ts.Task) -> None:
        assert not self.measured

    def submit(self, candidates: Sequence[ts.Candidate]) -> None:
        assert not {c.key for c in self._left} - {c.key for c in candidates}
        self._batch = candidates

    def results(
        self, task: ts.Task, until: float | None, upcoming: Upcoming | None, every: bool
    ) -> Results:
        coming = upcoming() if upcoming is not None else ()
        self._left = self._batch[-1:] if coming and not every else ()
        yield from self.measure(self._batch[: len(self._batch) - len(self._left)])

    def left(self, task: ts.Task) -> Sequence[ts.Candidate]:
        return self._left

    def winner(self, task: ts.Task) -> None:
        return None


def test_what_a_measurer_postpones_is_measured_in_the_next_batch() -> None:
    watched = Watched(ts.Evolution())
    assert tune(strategy=watched, measurer=Postponing()).trials == 100
    asked = [key for word, keys in watched.said if word == "ask" for key in keys]
    told = [key for word, keys in watched.said if word == "tell" for key in keys]
    assert sorted(asked) == sorted(told)
    assert len(told) == 100
    assert [len(keys) for word, keys in watched.said if word == "tell"][1:4] == [3, 8, 16]


def test_the_size_of_a_batch_is_an_argument() -> None:
    watched = Watched(ts.Evolution())
    assert tune(strategy=watched, budget=ts.Budget(trials=25), batch_size=10).trials == 25
    assert [len(keys) for word, keys in watched.said if word == "ask"] == [10, 10, 5]


@pytest.mark.parametrize("strategy", [ts.Evolution(), ts.Random()])
def test_the_same_seed_and_measurements_give_the_same_run(strategy: Any) -> None:
    runs = []
    for _ in range(2):
        watched = Watched(strategy)
        tune(strategy=watched, seed=3)
        runs.append(watched.said)
    assert runs[0] == runs[1]


@dataclass
class Clock:
    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


@dataclass(frozen=True)
class Slow(FakeMeasurer):
    """Each candidate takes time on the clock; those after the end are left out."""

    clock: Clock = field(default_factory=Clock)
    each: float = 0.1

    def open(self, task: ts.Task) -> FakeRun:
        self.clock.now += 2.0
        return SlowRun(self)


class SlowRun(FakeRun):
    def __init__(self, settings: Slow) -> None:
        super().__init__(settings)
        self._slow = settings

    def measure(
        self,
        candidates: Sequence[ts.Candidate],
        upcoming: Upcoming | None = None,
        seconds: float | None = None,
    ) -> list[ts.Measurement]:
        assert seconds is not None
        until = self._slow.clock.now + seconds
        super().measure([], upcoming)
        out = []
        for c in candidates:
            if self._slow.clock.now < until:
                self._slow.clock.now += self._slow.each
                out += super().measure([c])
        return out


@pytest.mark.parametrize("each", [0.03, 0.1, 0.7, 3.0])
def test_seconds_are_honoured_and_used(each: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    for module in (run_state, protocol):
        monkeypatch.setattr(module, "time", clock)
    watched = Watched(ts.Random())
    result = tune(
        strategy=watched, measurer=Slow(clock=clock, each=each), budget=ts.Budget(seconds=20)
    )
    assert 20 - 2 * each - 0.5 <= result.seconds <= 20 + each
    assert abs(result.trials - 18 / each) <= max(2, 0.1 * 18 / each)
    asked = sum(len(keys) for word, keys in watched.said if word == "ask")
    assert asked - result.trials <= 32  # little is proposed in vain


def test_a_slow_search_is_not_asked_at_the_last_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is being searched for when time is up has to be waited for."""
    clock = Clock()
    for module in (run_state, task_tuner, protocol):
        monkeypatch.setattr(module, "time", clock)

    @dataclass(frozen=True)
    class Thoughtful:
        def start(self, *given: Any) -> Search:
            search = ts.Random().start(*given)

            def ask(n: int) -> list[ts.Candidate]:
                clock.now += 4.0
                return search.ask(n)

            return SimpleNamespace(ask=ask, tell=search.tell)

    result = tune(strategy=Thoughtful(), measurer=Slow(clock=clock), budget=ts.Budget(seconds=30))
    assert 22 <= result.seconds <= 30.1


def test_a_search_that_takes_all_the_time_still_has_its_first_batch_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    for module in (run_state, task_tuner, protocol):
        monkeypatch.setattr(module, "time", clock)

    @dataclass(frozen=True)
    class Endless:
        def start(self, *given: Any) -> Search:
            search = ts.Random().start(*given)

            def ask(n: int) -> list[ts.Candidate]:
                clock.now += 50.0
                return search.ask(n)

            return SimpleNamespace(ask=ask, tell=search.tell)

    result = tune(strategy=Endless(), budget=ts.Budget(seconds=30))
    assert result.trials == 4


def test_both_budgets_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    for module in (run_state, protocol):
        monkeypatch.setattr(module, "time", clock)
    budget = ts.Budget(trials=37, seconds=20)
    result = tune(measurer=Slow(clock=clock), budget=budget)
    assert result.trials == 37
    result = tune(measurer=Slow(clock=clock), budget=ts.Budget(trials=3700, seconds=20))
    assert result.seconds <= 20.1


def test_an_exhausted_space_ends_the_run() -> None:
    x = ts.placeholder((2,), name="X")
    func = ts.function([x, ts.compute((2,), lambda i: x[i] + 1, name="Y")], name="tiny")
    result = ts.tune(
        func, ts.cpu(1), quiet=True, strategy=ts.Random(), measurer=FakeMeasurer(),
        budget=ts.Budget(trials=100_000),
    )  # fmt: skip
    assert 0 < result.trials < 100_000


def test_progress_says_what_is_left_and_what_failed() -> None:
    def cost(c: ts.Candidate) -> float | ts.Failure:
        kind = int(c.key, 16) % 5
        if kind < 2:
            return ts.Failure(("wrong", "crash")[kind], "words")
        return seconds_by_digest(c)

    seen: list[ts.Progress] = []
    result = tune(measurer=FakeMeasurer(cost=cost), observers=[seen.append])
    last = seen[-1]
    assert last.finished
    assert last.failures == {kind: count for kind, (count, _) in result.failures.items()}
    assert set(last.failures) == {"wrong", "crash"}
    left = [p.seconds_left for p in seen]
    assert all(x is not None for x in left)
    assert left[-1] == 0.0
    assert last.gflops == pytest.approx(result.gflops)


def test_one_slow_question_does_not_end_a_run() -> None:
    """The first fit of a model loads a library; two slow ones in a row are the rule."""
    run = RunClock(ts.Budget(seconds=1000), ts.cpu(1))
    run.note_ask(0.1)
    run.note_ask(900.0)
    assert run.ask_seconds == 0.1
    run.note_ask(800.0)
    assert run.ask_seconds == 800.0
