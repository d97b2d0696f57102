"""What the page of a database computes: predictions, the curves of networks, names of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, log2
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.records.database import TaskSummary
from tilesmith.records.networks import LayerUse, NetworkUse
from tilesmith.report import predictions as predictions_module
from tilesmith.report.network_view import TaskHistory, history_of, networks_of
from tilesmith.report.predictions import Predictions, predictions_of
from tilesmith.report.records_page import records_json
from tilesmith.report.records_view import POINTS, records_view
from tilesmith.report.roofs import roof_of
from tilesmith.report.task_view import TaskViews, cut
from tilesmith.search.gbdt import Gbdt
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.search.training import rank_correlation
from tilesmith.space.variant import reopen
from tilesmith.task.task import Moment, Ranking, TuningRun


def task_of(n: int = 64) -> ts.Task:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    return ts.Task(ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="mm"), ts.cpu(1))


def candidates(task: ts.Task, count: int) -> list[ts.Candidate]:
    rng = np.random.default_rng(0)
    variant = next(iter(ts.variants(task, ts.SketchSpace().sketches(task)[0])))
    rows = np.unique(variant.sample(rng, 4 * count), axis=0)
    return [variant.candidate(rows[k]) for k in rng.permutation(len(rows))[:count]]


def by_score(task: ts.Task, candidates: Sequence[ts.Candidate]) -> list[ts.Measurement]:
    """Times that are what the analytic score says, times 3."""
    predictor, out = ScoreByTarget(), []
    for k, c in enumerate(candidates):
        variant, row = reopen(c)
        score = predictor.predict(variant, np.array([row], np.int32))[0]
        # No two are equal: candidates with the same samples count as one program.
        out.append(ts.Measurement(c, (3e-6 * 2.0**-score * (1 + 1e-6 * k),)))
    return out


def predicted(measured: Sequence[ts.Measurement]) -> Predictions | None:
    return predictions_of(measured, Ranking(measured).ranked, 512)


def test_times_that_follow_the_score_are_predicted() -> None:
    task = task_of()
    measured = by_score(task, candidates(task, 60))
    found = predicted(measured)
    assert found is not None
    assert found.total == len(found.measured) == 60
    assert found.analytic == pytest.approx(found.measured, rel=1e-2)
    assert found.analytic_correlation == pytest.approx(1, abs=1e-3)
    assert all(p is None for p in found.learned[:32])
    assert all(p is not None for p in found.learned[32:])
    assert found.learned_correlation is not None
    assert found.learned_correlation > 0.8


def test_a_model_has_seen_only_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the same program under another schedule counts once: its samples are the same."""
    task = task_of()
    measured = by_score(task, candidates(task, 100))
    learned_from: list[list[str]] = []

    class Watched(Gbdt):
        def fit(self, measurements: Sequence[ts.Measurement]) -> Any:
            learned_from.append([m.candidate.key for m in measurements])
            return super().fit(measurements)

    monkeypatch.setattr(predictions_module, "Gbdt", Watched)
    twice = replace(measured[90], seconds=measured[3].seconds)
    failed = replace(measured[5], seconds=(), failure=ts.Failure("crash", ""))
    found = predicted([*measured[:90], twice, *measured[91:], failed])
    assert found is not None
    assert found.total == 98  # without the failure and the double
    order = [m.candidate.key for m in measured]
    assert [len(keys) for keys in learned_from] == [32, 48, 72]
    for keys in learned_from:
        assert keys == order[: len(keys)]
    assert order[90] not in learned_from[-1]


def test_too_few_records_have_no_predictions() -> None:
    task = task_of()
    measured = by_score(task, candidates(task, 20))
    assert predicted([]) is None
    assert predicted(measured[:7]) is None
    failures = [replace(m, seconds=(), failure=ts.Failure("build", "")) for m in measured]
    assert predicted(failures) is None
    few = predicted(measured)
    assert few is not None
    assert few.learned_correlation is None
    assert few.analytic_correlation is not None


def test_the_rank_correlation_is_spearmans() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal(50), rng.standard_normal(50)
    ranks = [np.argsort(np.argsort(x)) for x in (a, b)]
    assert rank_correlation(a, b) == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert rank_correlation(a, -np.exp(a)) == pytest.approx(-1)
    with_ties = rank_correlation(np.array([1.0, 2, 2, 3]), np.array([1.0, 2, 3, 4]))
    assert with_ties == pytest.approx(0.9486833)  # as SciPy has it
    assert rank_correlation(np.arange(2.0), np.arange(2.0)) is None
    assert rank_correlation(np.ones(5), np.arange(5.0)) is None


def history(bests: Sequence[tuple[float, float]], uses: Sequence[NetworkUse]) -> TaskHistory:
    trials = {u.run: tuple(w for w, _ in bests) for u in uses}
    return TaskHistory(tuple(bests), trials, tuple(uses))


def test_the_latency_of_a_network_adds_up_its_tasks() -> None:
    one = history([(90.0, 5e-6), (101.0, 4e-6), (106.0, 1e-6)], [
        NetworkUse("n", 3, 100.0, "r1"), NetworkUse("m", 1, 100.0, "r1")])  # fmt: skip
    two = history([(103.0, 10e-6), (104.0, 8e-6)], [NetworkUse("n", 1, 100.0, "r2")])
    never = history([], [NetworkUse("n", 2, 100.0, "r3")])
    alone = history([(102.0, 1.0)], [])
    by_name = {n.name: n for n in networks_of([alone, one, two, never])}
    n = by_name["n"]
    assert [(u.task, u.weight) for u in n.uses] == [(1, 3), (2, 1), (3, 2)]
    assert n.missing == 1
    many = history([(103.0, 1e-6)], [NetworkUse("k", 1, 100.0, "r2", (), 5)])
    assert networks_of([many])[0].missing == 4  # the budget reached one of five
    (curve,) = n.curves
    assert curve.seconds == (3.0, 4.0, 6.0)  # from when both have a time
    assert curve.best == pytest.approx((22.0, 20.0, 11.0))
    assert curve.trials == (3, 4, 5)
    (curve,) = by_name["m"].curves
    assert curve.seconds == (0.0, 1.0, 6.0)  # what was known before counts from the start
    assert curve.best == pytest.approx((5.0, 4.0, 1.0))
    assert networks_of([]) == ()


def test_layers_in_narrow_numbers_have_the_time_of_their_kernels() -> None:
    """Two layers of one kernel share its time; each kernel of a task has that of the task."""
    one, two = LayerUse("a", "int8", 0.01, 0.75), LayerUse("b", "float32", why="too large")
    three = LayerUse("c", "int8", None, None)
    places = (("a", "b", "relu"), ("c",))
    uses = [NetworkUse("n", 2, 100.0, "r1", places, 1, (one, two, three))]
    (view,) = networks_of([history([(101.0, 8e-6)], uses)])
    assert [(r.name, r.precision, r.time, r.error, r.share, r.why) for r in view.precision] == [
        ("a", "int8", 4.0, 0.01, 0.75, ""), ("b", "float32", 4.0, None, None, "too large"),
        ("c", "int8", 8.0, None, None, ""),
    ]  # fmt: skip
    (view,) = networks_of([history([], uses)])
    assert [r.time for r in view.precision] == [None] * 3


def test_a_history_follows_the_best_and_forgets_what_fails_later() -> None:
    task = task_of(16)
    first, second = candidates(task, 2)
    run = TuningRun("r", "x", "", 0, ts.Budget(), 100.0, "m")
    when = [
        ts.Measurement(first, (4e-6,), when=50.0),
        ts.Measurement(second, (2e-6,), moment=Moment(run, 1.0, 1)),
        ts.Measurement(second, failure=ts.Failure("wrong", ""), moment=Moment(run, 2.0, 2)),
    ]
    found = history_of(when, [])
    assert found.bests == ((50.0, pytest.approx(4e-6)),)
    assert found.trials == {"r": (101.0, 102.0)}
    assert history_of(when[:2], []).bests[-1] == (101.0, pytest.approx(2e-6))
    assert history_of([], []).best_at(1e9) is None


def test_a_history_never_rises() -> None:
    first, second = candidates(task_of(16), 2)
    found = history_of(
        [
            ts.Measurement(first, (4e-6,), when=1.0),
            ts.Measurement(second, (1e-6,), when=2.0),
            ts.Measurement(second, (3e-6,), when=3.0, confirmed=True),
        ],
        [],
    )
    assert found.bests == (
        (1.0, pytest.approx(4e-6)), (2.0, pytest.approx(3e-6)), (3.0, pytest.approx(3e-6))
    )  # fmt: skip


def test_roofs_are_of_this_machine() -> None:
    roof = roof_of(ts.cpu(1), task_of().func.outputs[0].dtype)
    assert roof is not None
    assert roof.gflops > 0
    assert 0 < roof.memory < roof.l2
    for name in ("nvidia-h200", "skylake-avx512"):
        target = ts.Target.named(name)
        if target.fingerprint != ts.cpu().with_cores(target.num_cores).fingerprint:
            assert roof_of(target, task_of().func.outputs[0].dtype) is None


def test_unchanged_tasks_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with ts.open_database(":memory:") as d:
        small, large = task_of(16), task_of(32)
        for t in (small, large):
            d.add([ts.Measurement(c, (1e-6,)) for c in candidates(t, 2)])
        views, read = TaskViews(), []
        of = d.of
        monkeypatch.setattr(d, "of", lambda task: read.append(task.key) or of(task))
        first = records_view(d, "x", views=views)
        assert sorted(read) == sorted([small.key, large.key])
        read.clear()
        assert records_view(d, "x", views=views).tasks == first.tasks
        assert read == []
        d.add([ts.Measurement(candidates(large, 3)[2], (1e-7,))])
        again = records_view(d, "x", views=views)
        assert read == [large.key]
        assert min(t.best for t in again.tasks if t.best) == pytest.approx(0.1)


def test_what_json_cannot_hold_is_left_out() -> None:
    """A time may be so short that a rate is infinite."""
    with ts.open_database(":memory:") as d:
        task = task_of(16)
        d.add(
            [
                ts.Measurement(c, (t,))
                for c, t in zip(candidates(task, 2), (5e-324, 1e300), strict=True)
            ]
        )
        view = records_view(d, "x")
    strange = replace(view.tasks[0], best=inf, intensity=float("nan"))
    text = records_json(replace(view, tasks=(strange,)))
    assert '"best":null' in text
    assert '"intensity":null' in text


def test_long_texts_are_cut() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("abcd", 3) == "abc... (4 characters)"


class Many:
    """A database of 100,000 records, which are made when they are asked for."""

    def __init__(self, tasks: Sequence[ts.Task], each: int) -> None:
        self._by_key = {t.key: t for t in tasks}
        self._each = each

    def tasks(self) -> list[Any]:
        return [
            TaskSummary(t, t.key, "2", self._each, 0, (t.func.name,), 1e-6)
            for t in self._by_key.values()
        ]

    def of(self, task: ts.Task) -> list[ts.Measurement]:
        few = candidates(task, 40)
        run = TuningRun("r", "many", "", 0, ts.Budget(), 0.0, "m")
        return [
            ts.Measurement(
                few[k % len(few)], (1e-3 / log2(k + 2),), moment=Moment(run, 0.1 * k, k + 1), when=k
            )
            for k in range(self._each)
        ]

    def load_state(self, task: ts.Task, name: str) -> None:
        return None


def test_100_000_records_stay_small() -> None:
    """What is on the page is counted: it does not grow with the number of records."""
    tasks = [task_of(n) for n in (16, 24, 32, 48, 64)]
    sizes = []
    for each in (2_000, 20_000):
        db: Any = Many(tasks[: 1 if each == 2_000 else 5], each)
        view = records_view(db, "many.db")
        assert sum(t.measured for t in view.tasks) == len(view.tasks) * each
        sizes.append(len(records_json(view)) / len(view.tasks))
        assert sum(len(t.decisions.times) for t in view.tasks) <= POINTS
        assert sum(len(c.best) for t in view.tasks for c in t.curves) <= POINTS
        assert all(len(t.predictions.measured) <= 512 for t in view.tasks if t.predictions)
    assert sizes[1] < 1.5 * sizes[0]
    assert sizes[1] * 5 < 5e6  # plotly.js is the other 5 MB
