"""Several Functions tuned with one budget: who is measured when, what each gets, how failures,
Ctrl-C and resuming go. The seconds come from functions; one test measures real kernels.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.testing.measurers import FakeMeasurer, FakeRun, seconds_by_digest
from tilesmith.tune.network_table import NetworkTable
from tilesmith.tune.scheduler import TaskStep

ONE_CORE = ts.cpu(1)


def product(n: int, m: int, k: int, name: str | None = None) -> ts.Function:
    A, B = ts.placeholder((n, k), name="A"), ts.placeholder((k, m), name="B")
    return ts.function([A, B, ts.ops.matmul(A, B)], name=name or f"matmul_{n}_{m}_{k}")


def scaled(n: int, factor: float = 2.0) -> ts.Function:
    X = ts.placeholder((n,), name="X")
    return ts.function([X, ts.compute((n,), lambda i: X[i] * factor)], name=f"scaled{n}")


SMALL, LARGE, COPY = product(8, 16, 8), product(24, 40, 16), scaled(96)


@dataclass(frozen=True)
class Watched(FakeMeasurer):
    """Remembers what was measured, and raises `error` after so many candidates."""

    seen: list[ts.Candidate] = field(default_factory=list)
    fails: float = inf
    error: BaseException = field(default_factory=KeyboardInterrupt)

    def open(self, task: ts.Task) -> FakeRun:
        return WatchedRun(self)


class WatchedRun(FakeRun):
    def __init__(self, settings: Watched) -> None:
        super().__init__(settings)
        self.settings = settings

    def measure(self, candidates: Sequence[ts.Candidate], *args: Any) -> list[ts.Measurement]:
        if len(self.settings.seen) >= self.settings.fails:
            raise self.settings.error
        self.settings.seen.extend(candidates)
        return super().measure(candidates, *args)


def tune(funcs: Any = (SMALL, LARGE, COPY), **settings: Any) -> ts.TasksResult:
    given = {
        "budget": ts.Budget(trials=60), "measurer": FakeMeasurer(), "strategy": ts.Random(),
        "quiet": True, **settings,
    }  # fmt: skip
    return ts.tune_tasks(list(funcs), ONE_CORE, **given)


def test_each_function_has_a_result_within_one_budget() -> None:
    watched = Watched()
    results = tune(measurer=watched)
    assert len(results) == 3
    assert [r.task.func for r in results] == [SMALL, LARGE, COPY]
    assert sum(r.trials for r in results) == len(set(watched.seen)) == 60 == results.tuning.trials
    for r in results:
        own = [c for c in watched.seen if c.task.key == r.task.key]
        assert r.best.cost == min(map(seconds_by_digest, own))
    assert results.errors == {}
    assert results[-1] is results[2]
    assert results[:2] == [results[0], results[1]]


def test_real_kernels_compute_what_was_stated() -> None:
    """And several outputs, a rank of 0, and odd extents are nothing special."""
    V = ts.placeholder((37,), name="V")
    n = ts.reduce_axis(37, name="n")
    total = ts.compute((), lambda: ts.sum(V[n] * V[n], axis=n), name="total")
    rest = ts.compute((37,), lambda i: V[i] - total[()], name="rest")
    norm = ts.function([V, total, rest], name="centred")
    funcs = [norm, (product(13, 7, 5), 2.5)]
    results = ts.tune_tasks(funcs, ONE_CORE, budget=ts.Budget(trials=8), quiet=True)
    v = np.random.default_rng(0).random(37, np.float32)
    one, other = results[0].kernel(v)
    np.testing.assert_allclose(one, v @ v, rtol=1e-5)
    np.testing.assert_allclose(other, v - v @ v, rtol=1e-5)
    a = np.random.default_rng(1).random((13, 5), np.float32)
    b = np.random.default_rng(2).random((5, 7), np.float32)
    np.testing.assert_allclose(results[1].kernel(a, b), a @ b, rtol=1e-5)


def test_the_total_is_weighted() -> None:
    results = tune([(SMALL, 3), (LARGE, 0.5), COPY])
    want = 3 * results[0].best.cost + 0.5 * results[1].best.cost + results[2].best.cost
    assert results.tuning.estimate == pytest.approx(want)
    assert sorted(t.weight for t in results.tuning.tasks) == [0.5, 1, 3]
    assert "0.5" in str(results)


def test_equal_functions_are_tuned_once() -> None:
    again = product(24, 40, 16, name="another_name")
    watched = Watched()
    results = tune([SMALL, LARGE, again], measurer=watched)
    assert len({c.task.key for c in watched.seen}) == 2
    assert results[1] is results[2]
    assert sorted(t.weight for t in results.tuning.tasks) == [1, 2]


def test_the_scheduler_decides() -> None:
    def last(states: Sequence[ts.TaskState]) -> int:
        return max(k for k, s in enumerate(states) if not s.finished)

    watched = Watched()
    results = tune(measurer=watched, scheduler=last)
    assert {c.task.key for c in watched.seen} == {results[2].task.key}
    assert set(results.errors) == {0, 1}
    with pytest.raises(ts.TuneError, match="no candidate of matmul_8_16_8 could be measured"):
        _ = results[0]
    steps: list[int | None] = []
    tune(scheduler=ts.round_robin(), observers=[lambda p: steps.append(p.current)])
    assert steps[:9] == [0, 1, 2] * 3


@pytest.mark.parametrize(
    "objective",
    [
        ts.latency_targets([1.0, 1e-9, 1.0]),
        lambda costs: costs[1].latency,
    ],
)
def test_objectives_see_each_function_as_a_network(objective: Any) -> None:
    """The second one only has something to gain."""
    results = tune(objective=objective, scheduler=ts.gradient(epsilon=0))
    first = [results[0].trials, results[2].trials]
    assert results[1].trials == 60 - sum(first) > 5 * max(first)


def test_speedups_of_each_function_count() -> None:
    results = tune(objective=ts.geomean_speedup([1e-3, 1e-3, 1e-3]))
    assert results.tuning.trials == 60
    with pytest.raises(ts.TuneError, match="1 times, but there are 3 networks"):
        tune(objective=ts.geomean_speedup([1e-3]))


def fails_for(name: str, cost: Any = seconds_by_digest) -> Any:
    def cost_of(candidate: ts.Candidate) -> float | ts.Failure:
        if candidate.task.func.name == name:
            return ts.Failure("crash", "it stops here")
        return float(cost(candidate))

    return cost_of


def test_a_function_that_cannot_be_measured_does_not_stop_the_others() -> None:
    results = tune(measurer=FakeMeasurer(fails_for(LARGE.name)))
    assert set(results.errors) == {1}
    assert results.results[1] is None
    assert results.failures[1]["crash"][1] == "it stops here"
    assert results.failures[1]["crash"][0] >= 1
    assert results.failures[0] == {}
    assert results[0].trials
    assert results[2].trials
    assert "1 without a kernel" in repr(results)
    assert "it stops here" in str(results)
    with pytest.raises(ts.TuneError, match=r"matmul_24_40_16 could be measured: crash: it stops"):
        list(results)


def test_a_run_without_any_kernel_fails_loudly() -> None:
    dead = FakeMeasurer(lambda _: ts.Failure("crash", "it stops here"))
    with pytest.raises(ts.TuneError, match=r"any of 3 tasks could be measured.*it stops here"):
        tune(measurer=dead)
    with pytest.raises(ts.TuneError, match=r"no candidate of scaled96 could be measured: crash"):
        tune([COPY], measurer=dead)


def test_it_goes_on_where_a_database_ended() -> None:
    with ts.open_database(":memory:") as db:
        first = tune(database=db, budget=ts.Budget(trials=30))
        assert db.count() == 30
        second = Watched()
        both = tune(database=db, budget=ts.Budget(trials=50), measurer=second)
        assert both.tuning.trials == 20
        known = {m.candidate for r in first for m in db.of(r.task)}
        assert len(known) == 50
        assert all(b.best.cost <= a.best.cost for a, b in zip(first, both, strict=True))
        assert tune(database=db, budget=ts.Budget(trials=50)).tuning.trials == 0
        assert ts.build(SMALL, ONE_CORE, database=db, strict=True).origin.kind == "record"


def test_ctrl_c_keeps_what_was_found() -> None:
    with ts.open_database(":memory:") as db:
        results = tune(measurer=Watched(fails=30), database=db)
        assert results.tuning.interrupted
        assert all(r.interrupted for r in results)
        assert db.count() == results.tuning.trials < 60
    with pytest.raises(KeyboardInterrupt):
        tune(measurer=Watched(fails=0))


def test_an_error_of_the_measurer_keeps_what_was_found() -> None:
    broken = ts.MeasureError("the cable is out")
    with pytest.warns(UserWarning, match="ended early: the cable is out"):
        results = tune(measurer=Watched(fails=30, error=broken))
    assert results.tuning.error is broken
    assert results[0].error is broken
    with (
        pytest.raises(ts.MeasureError, match="the cable is out"),
        pytest.warns(UserWarning, match="ended early"),
    ):
        tune(measurer=Watched(fails=0, error=broken))


def test_the_same_seed_measures_the_same() -> None:
    """With a scheduler that does not ask how long each step took."""
    runs = []
    for seed in (3, 3, 4):
        watched = Watched()
        tune(measurer=watched, seed=seed, scheduler=ts.round_robin())
        runs.append([c.key for c in watched.seen])
    assert runs[0] == runs[1] != runs[2]


def state(steps: int, best: float, slope: float = 1.0) -> ts.TaskState:
    history = tuple(TaskStep(float(k), 8 * k, best) for k in range(1, steps + 1))
    return ts.TaskState("t", 1, slope, 1e6, history=history)


def chances(seed: int, scheduler: Any = None) -> list[int]:
    """The steps at which a task that promises nothing is chosen."""
    chosen = (scheduler or ts.gradient(epsilon=0.2)).with_seed(seed)
    tasks = [(state(k, 1e-3), state(1, 1e-9)) for k in range(1, 300)]
    return [k for k, t in enumerate(tasks) if chosen(t) == 1]


def test_chance_is_drawn_from_the_seed_of_the_run() -> None:
    """Half of the random steps go to each of two tasks."""
    each = [chances(seed) for seed in range(6)]
    assert all(10 < len(c) < 55 for c in each)
    assert len({tuple(c) for c in each}) == 6
    assert chances(2) == each[2]
    assert len(set(each[0]) & set(each[1])) < 0.5 * len(each[0])
    own = ts.gradient(epsilon=0.2, seed=1)
    assert chances(5, own) == each[1]  # its own seed is kept


def test_a_run_gives_its_seed_to_the_scheduler() -> None:
    def order(seed: int) -> list[str]:
        watched = Watched()
        tune(measurer=watched, seed=seed, scheduler=ts.gradient(epsilon=1), strategy=Fixed())
        return [c.task.func.name for c in watched.seen]

    assert order(1) == order(1)
    assert order(1) != order(2)


@dataclass(frozen=True)
class Fixed:
    """A strategy that does not depend on the seed."""

    def start(self, task: ts.Task, sketches: Any, rng: Any) -> Any:
        return ts.Random().start(task, sketches, np.random.default_rng(0))


def test_open_sizes_get_a_portfolio() -> None:
    n = ts.size("n", range=(1, 24), samples={4: 1, 16: 3})
    X = ts.placeholder((n, 12), name="X")
    W = ts.placeholder((12, 20), name="W")
    dense = ts.function([X, W, ts.ops.matmul(X, W)], name="dense")
    watched = Watched()
    with ts.open_database(":memory:") as db:
        results = tune([COPY, (dense, 4)], measurer=watched, database=db)
        assert {t.weight for t in results.tuning.tasks} == {1, 3}
        assert len({c.task.key for c in watched.seen}) == 3
        assert results[1].portfolio is not None
    w = np.random.default_rng(0).random((12, 20), np.float32)
    for rows in (1, 7, 24):
        x = np.random.default_rng(rows).random((rows, 12), np.float32)
        kernel = results[1].kernel
        np.testing.assert_allclose(kernel(x, kernel.pack("W", w)), x @ w, rtol=1e-4)


def test_one_display_shows_all() -> None:
    shown = io.StringIO()
    last: list[ts.NetworkProgress] = []
    table = NetworkTable(shown, notebook=None)
    tune([SMALL, (LARGE, 2.5), COPY, scaled(33)], observers=[table, last.append])
    text = shown.getvalue()
    assert text.startswith("all 4 ") or "\nall 4 " in text
    assert "matmul_24_40_16" in text
    assert "   2.5 " in text
    assert (last[-1].finished, last[-1].trials) == (True, 60)
    counts = Counter(p.current for p in last if p.current is not None)
    assert set(counts) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("funcs", "settings", "text"),
    [
        ([], {}, "tune_tasks is given an empty list"),
        ([(SMALL, 0)], {}, "matmul_8_16_8' has the weight 0; it is how often"),
        ([(SMALL, inf)], {}, "has the weight inf"),
        ([SMALL, "matmul"], {}, "with the text 'matmul'; it takes"),
        ([(SMALL, "2")], {}, r"tune_tasks\(funcs="),
        ([SMALL], {"budget": ts.Budget()}, "never ends"),
        ([SMALL], {"seed": -1}, "seed=-1"),
        ([SMALL], {"scheduler": ts.gradient}, "scheduler is given gradient; call it"),
        ([SMALL], {"objective": ts.early_stopping}, "objective is given early_stopping; call it"),
        ([SMALL], {"database": "tune.db"}, "open it, as ts.open_database"),
    ],
)
def test_mistakes_are_named(funcs: Any, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ts.TuneError, match=text):
        tune(funcs, **settings)


def test_gradients_with_other_seeds_are_not_equal() -> None:
    assert replace(ts.gradient(), seed=1) == ts.gradient(seed=1) != ts.gradient()  # type: ignore
    with pytest.raises(ts.TuneError, match=r"gradient\(seed=-1"):
        ts.gradient(seed=-1)
