"""Networks tuned with one budget: who is measured when, what is stored, how runs end and go on. The
seconds come from functions; one test measures real kernels.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.errors import MeasureError
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.ir.forms import form_of
from tilesmith.measure import protocol
from tilesmith.measure.protocol import Upcoming
from tilesmith.ops.elementwise import relu
from tilesmith.ops.matmul import matmul
from tilesmith.testing.measurers import FakeMeasurer, FakeRun, seconds_by_digest
from tilesmith.tune import compile_model as compile_model_module
from tilesmith.tune import network_run, run_state, task_tuner
from tilesmith.tune import tune_model as tune_model_module
from tilesmith.tune.build_request import PLAIN_POINTS, BuildRequest, drafts_of, points
from tilesmith.tune.network_table import NetworkTable
from tilesmith.tune.scheduler import known_steps

ONE_CORE = ts.cpu(1)
pytestmark = pytest.mark.usefixtures("built_here")


def network(*widths: int, name: str = "net") -> ts.Graph:
    """Dense layers of these widths, one behind the other."""
    rng = np.random.default_rng(0)
    b = GraphBuilder(name)
    x = b.input("x", (8, widths[0]), "float32")
    for m, n in pairwise(widths):
        weights = rng.standard_normal((m, n)).astype(np.float32)
        x = b.add(relu, b.add(matmul, x, b.constant(weights)))
    return b.finish({"y": x})


NET = network(8, 16, 32, 16, 32, 16)  # 8 to 16 once; 16 to 32 and 32 to 16 twice each


def tune(graph: Any = NET, **settings: Any) -> Any:
    given = {
        "budget": ts.Budget(trials=60), "measurer": FakeMeasurer(), "strategy": ts.Random(),
        "quiet": True, "cache": None, **settings,
    }  # fmt: skip
    return ts.tune_model(graph, ONE_CORE, **given)


@dataclass(frozen=True)
class Watched(FakeMeasurer):
    """Remembers the batches. It fails before batch number `fails`, with `error`."""

    batches: list[list[ts.Candidate]] = field(default_factory=list)
    fails: float = inf
    error: BaseException = field(default_factory=KeyboardInterrupt)
    opened: list[ts.Task] = field(default_factory=list)

    def open(self, task: ts.Task) -> FakeRun:
        self.opened.append(task)
        return WatchedRun(self)


class WatchedRun(FakeRun):
    def __init__(self, settings: Watched) -> None:
        super().__init__(settings)
        self.settings = settings

    def measure(
        self,
        candidates: Sequence[ts.Candidate],
        upcoming: Upcoming | None = None,
        seconds: float | None = None,
    ) -> list[ts.Measurement]:
        if len(self.settings.batches) == self.settings.fails:
            raise self.settings.error
        self.settings.batches.append(list(candidates))
        return super().measure(candidates, upcoming, seconds)


def is_right(model: ts.Model, graph: ts.Graph = NET) -> bool:
    (x,) = graph.inputs
    feeds = {x: np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)}
    got, wanted = model(feeds), evaluate_graph(graph, feeds)
    return all(np.allclose(got[n], wanted[n], rtol=1e-4, atol=1e-4) for n in wanted)


def test_every_task_is_measured_first_and_the_model_is_right() -> None:
    watched = Watched()
    model = tune(measurer=watched)
    assert isinstance(model, ts.Model)
    assert is_right(model)
    assert len(watched.opened) == 1
    first = [batch[0].task.key for batch in watched.batches[:3]]
    assert len(set(first)) == 3
    # What compile_model would take is known before the search of a task starts, except for tasks
    # that are too small for a draft.
    small = [points(b[0].task.func) <= PLAIN_POINTS for b in watched.batches[:3]]
    assert [len(b) for b in watched.batches[:3]] == [2 if s else 1 for s in small]
    for batch in watched.batches[:3]:
        assert batch[0].trace in drafts_of(batch[0].task)
    candidates = [c for b in watched.batches for c in b]
    assert len(set(candidates)) == len(candidates) == 60
    tuning = model.tuning
    assert tuning is not None
    assert tuning.trials == 60
    assert sorted(t.weight for t in tuning.tasks) == [1, 2, 2]
    assert {k.origin.kind for e in model.executors for k in e.kernels} == {"record"}


def test_the_latency_over_time() -> None:
    tuning = tune().tuning
    seconds, latency = zip(*tuning.latency, strict=True)
    assert list(seconds) == sorted(seconds)
    assert list(latency) == sorted(latency, reverse=True)
    assert tuning.estimate == latency[-1] == pytest.approx(sum(t.latency for t in tuning.tasks))
    assert all(t.gain >= 1 for t in tuning.tasks)
    assert "estimated latency" in repr(tuning)


def test_drafts_are_built_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the time is: every task has a kernel, and one derivation serves a form."""
    watched = Watched()
    spaces = import_module("tilesmith.space.spaces")
    derive, derived = spaces.derive, []

    def counted(task: ts.Task, *rest: Any) -> Any:
        derived.append(task.key)
        return derive(task, *rest)

    monkeypatch.setattr(spaces, "derive", counted)
    net = network(48, 32, 40, 56, 72)
    model = tune(net, measurer=watched, budget=ts.Budget(seconds=1e-3))
    assert not watched.batches
    kernels = [k for e in model.executors for k in e.kernels]
    assert {k.origin.kind for k in kernels} <= {"draft", "naive"}
    tasks = model.tuning.tasks
    assert model.tuning.unmeasured == len(tasks)
    forms = {form_of(t.task.func) for t in tasks if points(t.task.func) > PLAIN_POINTS}
    assert len(set(derived)) == len(forms) < len(tasks)


def test_tasks_without_a_time_have_no_row_in_the_table() -> None:
    plain = io.StringIO()
    tune(budget=ts.Budget(trials=1), observers=[NetworkTable(plain)])
    lines = plain.getvalue().splitlines()
    assert "2 of 3 tasks use drafts" in lines[-3]
    assert lines[-1].split()[0] == "matmul_relu"
    assert lines[-2].split()[0] == "task"


def test_a_budget_too_small_for_all_tasks_leaves_drafts_and_says_so() -> None:
    model = tune(budget=ts.Budget(trials=1))
    assert is_right(model)
    tuning = model.tuning
    assert tuning.unmeasured == 2
    assert "2 of the tasks not measured: they use drafts" in repr(tuning)
    assert "inf" not in repr(tuning)


def test_the_scheduler_decides() -> None:
    seen: list[Sequence[ts.TaskState]] = []

    def only_the_second(states: Sequence[ts.TaskState]) -> int:
        seen.append(states)
        return next((k for k, s in enumerate(states) if not s.history), 1)

    watched = Watched()
    tune(scheduler=only_the_second, measurer=watched)
    keys = [b[0].task.key for b in watched.batches]
    assert len(set(keys[:3])) == 3
    assert len(set(keys[3:])) == 1
    last = seen[-1][1]
    assert [s.trials for s in last.history] == sorted(s.trials for s in last.history)
    assert last.best <= last.history[0].best
    assert last.slope == last.weight == 2


def test_the_budget_goes_to_the_task_that_matters() -> None:
    def cost(c: ts.Candidate) -> float:
        return seconds_by_digest(c) * (1000 if c.task.func.flops > 8000 else 1)

    net = network(8, 16, 8, 32, 64)  # the last layer has most operations
    watched = Watched(cost)
    tune(net, measurer=watched, budget=ts.Budget(trials=120), scheduler=ts.gradient(epsilon=0))
    count = Counter(c.task.func.flops for b in watched.batches for c in b)
    assert count.most_common(1)[0][1] > 60


@dataclass(frozen=True)
class Listening:
    """A strategy whose searches write down what is suggested to them."""

    heard: dict[str, list[ts.Candidate]] = field(default_factory=dict)

    def start(self, task: ts.Task, sketches: Any, rng: Any) -> Any:
        search = ts.Random().start(task, sketches, rng)
        search.suggest = self.heard.setdefault(task.key, []).extend  # type: ignore[attr-defined]
        return search


def test_what_is_fast_is_suggested_to_tasks_of_the_same_structure() -> None:
    listening = Listening()
    model = tune(network(8, 16, 32, 16), strategy=listening, scheduler=ts.round_robin())
    tasks = {t.task.key for t in model.tuning.tasks}
    assert listening.heard.keys() == tasks
    assert sum(map(bool, listening.heard.values())) >= 2  # all but the first
    for key, heard in listening.heard.items():
        assert len(set(heard)) == len(heard)
        assert {c.task.key for c in heard} <= tasks - {key}


def test_two_networks_share_their_tasks() -> None:
    other = network(8, 16, 32, name="other")
    watched = Watched()
    models = tune([NET, other], measurer=watched)
    assert [m.name for m in models] == ["net", "other"]
    assert is_right(models[0])
    assert is_right(models[1], other)
    assert len({c.task.key for b in watched.batches for c in b}) == 3
    first, second = (m.tuning for m in models)
    assert sorted(t.weight for t in second.tasks) == [1, 1]
    shared = {t.task.key: t.best for t in first.tasks}
    assert all(shared[t.task.key] == t.best for t in second.tasks)
    assert tune([NET])[0].name == "net"


def test_an_objective_that_is_met_ends_the_run() -> None:
    model = tune(objective=ts.latency_targets([1.0]), budget=ts.Budget(trials=1000))
    assert model.tuning.trials == 4  # the first steps
    watched = Watched(lambda c: 1e-3)  # nothing ever gets faster
    tune(measurer=watched, objective=ts.early_stopping(2), budget=ts.Budget(trials=10_000))
    steps = Counter(b[0].task.key for b in watched.batches)
    assert set(steps.values()) <= {3, 4}  # the first one, two in vain, perhaps one under way


def test_patience() -> None:
    model = tune(measurer=Watched(lambda c: 1e-3), budget=ts.Budget(trials=1000, patience=20))
    assert 20 <= model.tuning.trials < 70


@dataclass
class Clock:
    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


@pytest.mark.parametrize("scheduler", [ts.gradient(), ts.round_robin()])
def test_a_budget_of_seconds_is_kept(
    scheduler: ts.Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock of our own: a candidate takes 0.1 s, and those after the end are left out."""
    clock = Clock()
    for module in (run_state, task_tuner, protocol, network_run, tune_model_module):
        monkeypatch.setattr(module, "time", clock)

    class Slow(FakeRun):
        def measure(self, candidates: Any, upcoming: Any = None, seconds: Any = None) -> Any:
            reached, until = [], clock.now + seconds
            for c in candidates:
                if clock.now + 0.1 > until:
                    break
                clock.now += 0.1
                reached.append(c)
            clock.now += 0.01
            return super().measure(reached, upcoming)

    @dataclass(frozen=True)
    class SlowMeasurer(FakeMeasurer):
        def open(self, task: ts.Task) -> FakeRun:
            return Slow(self)

    tuning = tune(measurer=SlowMeasurer(), budget=ts.Budget(seconds=30), scheduler=scheduler).tuning
    assert 29 <= tuning.seconds <= 30.5
    assert 250 <= tuning.trials <= 300


def test_a_draft_that_was_measured_as_wrong_is_not_in_the_model() -> None:
    b = GraphBuilder("one")
    graph = b.finish({"y": b.add(ts.ops.softmax, b.input("x", (300, 500), "float32"))})
    broken = FakeMeasurer(cost=lambda c: ts.Failure("wrong", "y is off"))
    model = tune(graph, measurer=broken, budget=ts.Budget(trials=2))
    (kernel,) = (k for e in model.executors for k in e.kernels)
    assert "wrong when it was measured" in kernel.origin.why


def test_a_space_that_is_exhausted_ends_the_run() -> None:
    b = GraphBuilder("tiny")
    graph = b.finish({"y": b.add(relu, b.input("x", (2,), "float32"))})
    model = tune(graph, budget=ts.Budget(seconds=600))
    assert model.tuning.trials > 0
    assert model.tuning.seconds < 300


def test_ctrl_c_gives_the_best_model_so_far() -> None:
    model = tune(measurer=Watched(fails=5))
    assert model.tuning.interrupted
    assert model.tuning.trials > 6
    assert is_right(model)
    nothing = tune(measurer=Watched(fails=0))
    assert nothing.tuning.interrupted
    assert nothing.tuning.estimate == inf
    assert is_right(nothing)
    assert "record" not in {k.origin.kind for e in nothing.executors for k in e.kernels}


def test_a_dead_task_does_not_stop_the_rest() -> None:
    def cost(c: ts.Candidate) -> float | ts.Failure:
        if c.task.func.flops == 2 * 8 * 8 * 16 + 8 * 16:
            return ts.Failure("crash", "signal 11")
        return seconds_by_digest(c)

    model = tune(measurer=FakeMeasurer(cost))
    assert is_right(model)
    dead = [t for t in model.tuning.tasks if t.best == inf]
    assert len(dead) == 1
    assert model.tuning.latency
    assert all(t.trials > 4 for t in model.tuning.tasks if t not in dead)


def test_a_task_that_cannot_be_measured_does_not_stop_the_rest() -> None:
    @dataclass(frozen=True)
    class Choosy(FakeMeasurer):
        def open(self, task: ts.Task) -> FakeRun:
            return ChoosyRun(self)

    class ChoosyRun(FakeRun):
        def measure(self, candidates: Any, upcoming: Any = None, seconds: Any = None) -> Any:
            if candidates[0].task.func.flops < 4000:
                raise MeasureError("the oracle says no")
            return super().measure(candidates, upcoming, seconds)

    with pytest.warns(UserWarning, match="is not tuned: the oracle says no"):
        model = tune(measurer=Choosy())
    assert is_right(model)
    assert sum(t.best == inf for t in model.tuning.tasks) == 1
    assert model.tuning.trials == 60


def test_when_nothing_can_be_measured_the_error_is_told() -> None:
    with pytest.warns(UserWarning, match="ended early: the machine is gone"):
        model = tune(measurer=Watched(fails=0, error=MeasureError("the machine is gone")))
    assert "gone" in str(model.tuning.error)
    assert is_right(model)


def test_what_the_database_knows_is_where_a_run_starts(tmp_path: Path) -> None:
    with ts.open_database(tmp_path / "r.db") as db:
        first = tune(database=db, budget=ts.Budget(trials=60))
        known = db.count()
        watched = Watched()
        again = tune(database=db, budget=ts.Budget(trials=100), measurer=watched)
        assert again.tuning.trials == 40
        assert again.tuning.latency[0][1] == pytest.approx(first.tuning.estimate)
        assert again.tuning.estimate <= first.tuning.estimate
        tasks = [t.task for t in again.tuning.tasks]
        assert sum(len({m.candidate for m in db.of(t)}) for t in tasks) == known + 40
        assert not tune(database=db, budget=ts.Budget(trials=100)).tuning.trials


def test_the_history_of_a_task_from_its_records() -> None:
    with ts.open_database(":memory:") as db:
        tuning = tune(database=db, budget=ts.Budget(trials=100)).tuning
        for t in tuning.tasks:
            steps = known_steps(db.of(t.task), t.best)
            assert steps[-1].trials == t.trials
            assert steps[-1].best == t.best
            bests = [s.best for s in steps]
            assert bests == sorted(bests, reverse=True)
    assert known_steps([], inf) == ()


KILLED = """
import sys, tilesmith as ts
sys.path.insert(0, {folder!r})
from test_tune_model import NET, tune
with ts.open_database({file!r}) as db:
    watch = lambda p: print(p.trials, flush=True)
    tune(database=db, budget=ts.Budget(trials=100000), observers=[watch])
"""


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    file = str(tmp_path / "r.db")
    code = KILLED.format(folder=str(Path(__file__).parent), file=file)
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    for line in run.stdout:
        if int(line) > 40:
            break
    run.kill()
    run.wait()
    run.stdout.close()
    with ts.open_database(file) as db:
        known = db.count()
        assert known > 40
        before = {m.candidate.key for s in db.tasks() for m in db.of(s.task)}
        watched = Watched()
        model = tune(database=db, budget=ts.Budget(trials=len(before) + 30), measurer=watched)
        assert model.tuning.trials == 30
        measured = [c.key for b in watched.batches for c in b]
        assert len(before & set(measured)) <= 3  # the best of each task, which are defended
        assert is_right(model)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_table_on_a_terminal_and_lines_elsewhere() -> None:
    screen, plain = Screen(), io.StringIO()
    tune(observers=[NetworkTable(screen), NetworkTable(plain)])
    last = screen.getvalue().rsplit("\x1b[J", 1)[1].splitlines()
    assert last[0].startswith("net ")
    assert "60 trials" in last[0]
    assert last[1].split() == ["task", "weight", "share", "best", "trials", "gain"]
    assert len(last) == 5
    assert sum(float(line.split()[-6]) for line in last[2:]) == pytest.approx(100, abs=0.3)
    lines = plain.getvalue().splitlines()
    assert "\x1b" not in plain.getvalue()
    assert "2 of 3 tasks not measured yet  1 trials" in lines[0]
    # Without a terminal nothing is cut: shapes, dtype and nodes follow the operator.
    assert [line.split()[-7:] for line in lines[-3:]] == [line.split()[-7:] for line in last[2:]]
    assert all(" -> 8x" in line and " float32  matmul, relu" in line for line in lines[-3:])


def test_what_was_tuned_is_told_by_task() -> None:
    tuning = tune().tuning
    assert tuning is not None
    first, head, *rows = str(tuning).splitlines()
    assert first == repr(tuning)
    assert head.split() == ["us", "times", "share", "trials", "gain", "task"]
    assert len(rows) == len(tuning.tasks)
    slowest = max(tuning.tasks, key=lambda t: t.latency)
    assert rows[0].endswith(slowest.label)
    assert all(" -> 8x" in row and " float32  matmul, relu" in row for row in rows)
    few = tune(budget=ts.Budget(trials=1)).tuning
    assert sum("draft" in row for row in str(few).splitlines()[2:]) == 2


def test_a_model_without_tasks_is_no_error() -> None:
    b = GraphBuilder("views")
    x = b.input("x", (2, 4), "float32")
    plain = io.StringIO()
    model = tune(b.finish({"y": x}), observers=[NetworkTable(plain)])
    assert model.tuning is not None
    assert model.tuning.tasks == ()
    assert "views" in plain.getvalue()


def test_a_table_longer_than_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ts.NetworkProgress] = []
    net = network(8, 4, 5, 6, 7, 9, 10, 11, 12, 13)
    tune(net, observers=[seen.append], budget=ts.Budget(trials=20))
    monkeypatch.setattr(NetworkTable, "_size", (39, 9))
    screen = Screen()
    NetworkTable(screen)(seen[-2])
    lines = screen.getvalue().splitlines()
    assert len(lines) == 8
    assert lines[-1] == "and 4 more"
    assert max(map(len, lines)) <= 39


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"graph": "model.onnx"}, "takes what ts.load_onnx or ts.from_torch returns"),
        ({"graph": []}, "takes what ts.load_onnx or ts.from_torch returns"),
        ({"graph": [NET, 5]}, "a list with the int 5; it takes what ts.load_onnx or ts.from_torch"),
        ({"budget": ts.Budget()}, "never ends"),
        ({"scheduler": ts.gradient}, "call it: gradient"),
        ({"scheduler": 5}, "it takes a function"),
        ({"scheduler": lambda states: 17}, "the scheduler chose 17"),
        ({"objective": ts.early_stopping}, "call it: early_stopping"),
        ({"objective": lambda networks: None}, "gave None"),
        ({"seed": -1}, "seed=-1"),
        ({"database": "x.db"}, "open it"),
        ({"measurer": ts.LocalMeasurer}, "give an object of the class"),
    ],
)
def test_mistakes_are_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ts.TilesmithError, match=says):
        tune(**given)


def test_with_real_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the drafts nothing is built, by this process or by the next one. On a noisy machine the
    winner, which was compared side by side, may have a slower record than another candidate; the
    next process then builds that one.
    """
    cache = tmp_path / "cache"
    build_all, built = compile_model_module.build_all, []

    def once(requests: list[BuildRequest], *rest: Any) -> Any:
        assert not built, "a kernel is built again"
        built.append(len(requests))
        return build_all(requests, *rest)

    with ts.open_database(tmp_path / "r.db") as db:
        with monkeypatch.context() as patch:
            patch.setattr(compile_model_module, "build_all", once)
            model = ts.tune_model(
                NET, ONE_CORE, budget=ts.Budget(trials=12), database=db, quiet=True, cache=cache
            )
            best = (db.best(t.task) for t in db.tasks())
            known = {m.candidate.key for m in best if m is not None}
            if not known <= {k.origin.record for k in model.executors[0].kernels}:
                built.clear()
            again = ts.compile_model(NET, ONE_CORE, database=db, cache=cache)
        assert model.tuning is not None
        assert model.tuning.trials == 12
        assert model.tuning.latency
        assert is_right(model)
        assert is_right(again)
        assert db.count() >= 12
        for m in (model, again):
            kernel = m.executors[0].kernels[0]
            assert kernel.origin.kind == "record"
            assert "define" in kernel.source  # generated again: the measurer keeps none
            assert kernel.assembly
