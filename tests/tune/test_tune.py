"""The loop for one task: budgets, resuming, interruption, failures, and a small run for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.testing.measurers import FakeMeasurer
from tilesmith.tune.progress import Terminal


def matmul(n: int = 48) -> ts.Function:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    return ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="matmul")


def fake(func: ts.Function, **settings: Any) -> ts.Result:
    settings.setdefault("measurer", FakeMeasurer())
    settings.setdefault("budget", ts.Budget(trials=30))
    return ts.tune(func, ts.cpu(1), quiet=True, **settings)


class Refusing:
    def open(self, task: ts.Task) -> Any:
        raise AssertionError("nothing is left to measure")


def test_trials_are_honoured_and_events_come() -> None:
    seen: list[ts.Progress] = []
    result = fake(matmul(), observers=[seen.append])
    assert result.trials == 30
    assert seen[-1].finished
    assert [p.trials for p in seen] == sorted(p.trials for p in seen)
    costs = [cost for _, _, cost in result.curve]
    assert costs == sorted(costs, reverse=True)
    assert result.best.cost == costs[-1]
    assert 0 < result.near <= result.curve[-1][0]
    assert [cost for t, _, cost in result.curve if t < result.near] == [
        cost for cost in costs if cost > 1.1 * costs[-1]
    ]


def test_resume_repeats_nothing_and_a_warm_database_answers_at_once(tmp_path: Path) -> None:
    func = matmul()
    with ts.open_database(str(tmp_path / "t.db")) as db:
        first = fake(func, database=db, budget=ts.Budget(trials=20))
        second = fake(func, database=db, budget=ts.Budget(trials=50), seed=1)
        assert (first.trials, second.trials) == (20, 30)
        known = [m.candidate.key for m in db.of(ts.Task(func, ts.cpu(1)))]
        assert len(known) == len(set(known)) == 50
        assert second.best.cost <= first.best.cost
        warm = fake(func, database=db, budget=ts.Budget(trials=50), measurer=Refusing())
        assert (warm.trials, warm.near) == (0, 0.0)
        assert warm.best.candidate.key == second.best.candidate.key


def test_a_run_in_which_nothing_works_fails_loudly() -> None:
    broken = FakeMeasurer(cost=lambda c: ts.Failure("crash", "signal 11 in the first call"))
    with pytest.raises(ts.TuneError, match="crash: signal 11 in the first call"):
        fake(matmul(), measurer=broken)


def test_failures_are_counted_with_their_first_text() -> None:
    def cost(c: ts.Candidate) -> float | ts.Failure:
        return ts.Failure("wrong", f"{c.key}") if int(c.key, 16) % 3 == 0 else 1e-3

    result = fake(matmul(), measurer=FakeMeasurer(cost=cost))
    count, text = result.failures["wrong"]
    assert 0 < count < 30
    assert text


def test_tune_for_real_gives_a_checked_kernel(tmp_path: Path) -> None:
    func = matmul()
    with ts.open_database(str(tmp_path / "t.db")) as db:
        result = ts.tune(func, ts.cpu(1), budget=ts.Budget(trials=12), database=db, quiet=True)
        again = ts.build(func, ts.cpu(1), database=db)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((48, 48), dtype=np.float32) for _ in range(2))
    for kernel in (result.kernel, again):
        np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-4, atol=1e-4)


def test_build_without_a_record_takes_a_decent_schedule(tmp_path: Path) -> None:
    func = matmul(64)
    with ts.open_database(str(tmp_path / "empty.db")) as db:
        kernel = ts.build(func, ts.cpu(1), database=db)
    a = np.eye(64, dtype=np.float32)
    np.testing.assert_array_equal(kernel(a, 2 * a), 2 * a)
    assert "x float>" in kernel.source  # vectors, not the naive loops


def test_plain_lines_and_a_curve_where_there_is_no_terminal(capsys: Any) -> None:
    fake(matmul(), budget=ts.Budget(trials=60), observers=[Terminal()])
    said = capsys.readouterr().err
    assert "60 trials  " in said
    assert "GFLOP/s 0 s" in said
    assert "\r" not in said


def test_the_state_of_the_search_goes_with_the_records(tmp_path: Path) -> None:
    func = matmul()
    task = ts.Task(func, ts.cpu(1))
    sketches = ts.SketchSpace().sketches(task)
    strategy = ts.Evolution(population=64, generations=1, cost_model=None)
    with ts.open_database(str(tmp_path / "t.db")) as db:
        ts.tune(
            func, ts.cpu(1), budget=ts.Budget(trials=24), database=db, strategy=strategy,
            measurer=FakeMeasurer(), quiet=True, seed=3,
        )  # fmt: skip
        state = db.load_state(task, "search")
        assert state is not None
        known = db.of(task)
    proposals = []
    for seed in (0, 1):  # the state says how chance goes on, not the seed
        search = strategy.start(task, sketches, np.random.default_rng(seed))
        search.tell(known)
        search.resume(state)
        proposals.append([c.key for c in search.ask(8)])
    assert proposals[0] == proposals[1]
    search.resume(b"not a state")  # ignored


def test_a_function_without_decisions_is_tuned() -> None:
    x = ts.placeholder((8,), name="x")
    func = ts.function([x, ts.compute((8,), lambda i: x[i] + 1, name="y")], name="increment")
    result = ts.tune(
        func, ts.cpu(1), budget=ts.Budget(trials=4), measurer=FakeMeasurer(), quiet=True
    )
    assert result.trials >= 1


def test_a_result_says_what_was_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    result = fake(matmul(), budget=ts.Budget(trials=4))
    assert result.left_out == 0
    assert "not searched" not in repr(result)
    for name in ("_MOST_STRUCTURES", "_MOST_PER_SKETCH"):
        monkeypatch.setattr(f"tilesmith.search.population.{name}", 1)
    task = ts.Task(matmul(), ts.cpu(1))
    sketches = ts.SketchSpace().sketches(task)
    every = sum(len(list(ts.variants(task, sketch))) for sketch in sketches)
    result = fake(matmul(), budget=ts.Budget(trials=4))
    assert result.left_out >= every - len(sketches) > 0
    assert f"{result.left_out} structures not searched" in repr(result)
    assert "structures not searched" in result._repr_html_()
