"""The parts of `bench.ablation` that tune: a real run whose steps are recorded, and runs on
recorded operators with one part of tuning left out each.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

import tilesmith as ts
from bench.dataset import load
from tests.support.recorded_runs import RecordedTask, write_run
from tilesmith.base.process import noticed
from tilesmith.measure import protocol
from tilesmith.measure.replay import ReplayMeasurer, ReplayRun
from tilesmith.search.gbdt import Gbdt
from tilesmith.search.protocol import Predictor
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.search.shared_model import SharedModel
from tilesmith.search.training import groups_of
from tilesmith.tune import network_run, run_state, task_tuner
from tilesmith.tune.network_run import NetworkProgress, NetworkRun
from tilesmith.tune.network_tasks import NetworkTask, SimilarTask, similar_tasks, structure
from tilesmith.tune.scheduler import Scheduler, TaskStep
from tilesmith.tune.task_tuner import TaskTuner

Curves = dict[str, list[list[tuple[float, float]]]]  # (seconds, latency), by contestant and seed
_TRIAL_SECONDS = 0.06  # of measuring a candidate, beside building it


def record_run(model: str, seconds: float, path: Path) -> None:
    steps: dict[int, list[TaskStep]] = {}
    tasks: Sequence[ts.TaskTuning] = ()

    def note(p: NetworkProgress) -> None:
        nonlocal tasks
        tasks = p.tasks
        if p.current is not None:
            t = p.tasks[p.current]
            if isfinite(t.best):
                steps.setdefault(p.current, []).append(TaskStep(t.seconds, t.trials, t.best))

    ts.tune_model(
        ts.load_onnx(model), ts.cpu(1), budget=ts.Budget(seconds=seconds), observers=[note],
        scheduler=ts.round_robin(), cache=None,
    )  # fmt: skip
    recorded = [
        RecordedTask(
            t.task.func.name, t.weight, t.task.func.flops, t.bound, structure(t.task.func),
            tuple(steps[k]),
        )
        for k, t in enumerate(tasks) if k in steps
    ]  # fmt: skip
    machine = ts.cpu(1).model or ts.cpu(1).cpu
    write_run(path, recorded, f"{Path(model).stem}, one core of {machine}, {seconds:.0f} s")


@dataclass
class Clock:
    """Time passes only when something is measured."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


@contextmanager
def replaced_time(clock: Clock) -> Iterator[None]:
    modules: Sequence[Any] = (protocol, run_state, task_tuner, network_run)
    kept = [m.time for m in modules]
    for m in modules:
        m.time = clock
    try:
        yield
    finally:
        for m, time in zip(modules, kept, strict=True):
            m.time = time


class TimedReplay(ReplayRun):
    """Takes as long as building and measuring the candidates took."""

    def __init__(self, settings: ReplayMeasurer, clock: Clock) -> None:
        super().__init__(settings)
        self._clock = clock

    def measure(self, candidates: Any, upcoming: Any = None, seconds: Any = None) -> Any:
        measured = super().measure(candidates, upcoming)
        self._clock.now += sum(m.build_seconds + _TRIAL_SECONDS for m in measured)
        return measured


@dataclass(frozen=True)
class Contestant:
    scheduler: Callable[[], Scheduler]
    shared: bool = True  # one model for all tasks
    transfer: bool = True  # records and suggestions of similar tasks


CONTESTANTS = {
    "gradient": Contestant(ts.gradient),
    "round robin": Contestant(ts.round_robin),
    "no shared model": Contestant(ts.gradient, shared=False),
    "no transfer": Contestant(ts.gradient, transfer=False),
}
# Tuned before, in the database; the others, of the same operators, are tuned.
KNOWN = ("matmul_512", "conv2d_28_64_64", "depthwise_56_64", "scores_96_8_48", "softmax_256_768")
KNOWN_TRIALS = 96  # records of each of them


def compare_models(seeds: int, trials: int, most: int) -> Curves:
    """Curves of (seconds, latency) by contestant and seed. Of each operator's records the first
    `most` are used: fitting a simulator takes time by the cube of their number.
    """
    data = {name: ms[:most] for name, ms in load().items()}
    measurer = ReplayMeasurer([m for ms in data.values() for m in ms], "model")
    curves: Curves = {name: [] for name in CONTESTANTS}
    for seed in range(seeds):
        for name, contestant in CONTESTANTS.items():
            curves[name].append(_run(contestant, data, measurer, seed, trials))
            print(f"seed {seed}, {name}: {1e3 * curves[name][-1][-1][1]:.4g} ms", flush=True)
    _show(curves)
    return curves


def _run(
    c: Contestant, data: dict[str, list[ts.Measurement]], measurer: ReplayMeasurer, seed: int,
    trials: int,
) -> list[tuple[float, float]]:  # fmt: skip
    rng = random.Random(seed)
    new = {name: ms for name, ms in data.items() if name not in KNOWN}
    tasks = []
    for ms in new.values():
        task = ms[0].candidate.task
        tasks.append(NetworkTask(task, (rng.choice((1, 1, 2, 4, 8)),), 0.0, structure(task.func)))
    clock, curve = Clock(), list[tuple[float, float]]()

    def note(p: NetworkProgress) -> None:
        if isfinite(p.latency[0]):
            curve.append((p.seconds, p.latency[0]))

    with ts.open_database(":memory:") as db, replaced_time(clock):
        similar: Sequence[SimilarTask] = ()
        if c.transfer:
            for name in KNOWN:
                db.add(rng.sample(data[name], KNOWN_TRIALS))
            similar = similar_tasks(db, tasks)
        shared = SharedModel([m for s in similar for m in s.records])
        strategy = ts.Evolution(cost_model=shared if c.shared else Gbdt())
        spaces = (ts.RecordedSpace(ms) for ms in new.values())
        tuners = [
            TaskTuner(t.task, space=space, strategy=strategy, seed=seed)
            for t, space in zip(tasks, spaces, strict=True)
        ]
        run = NetworkRun(
            ["network"], tasks, tuners, c.scheduler(), ts.total_latency, ts.Budget(trials=trials),
            clock.now, [note], similar,
        )  # fmt: skip
        if not c.transfer:
            run._suggest = lambda k: None  # type: ignore[method-assign]
        with noticed() as interrupts:
            run.run(TimedReplay(measurer, clock), interrupts)
    return curve


def _show(curves: Curves) -> None:
    """Latency over that of the full contestant at the end, and when each is as far as round robin
    is in the end, as a share of its time.
    """
    full = [c[-1][1] for c in curves["gradient"]]
    plain = [c[-1] for c in curves["round robin"]]
    for name, runs in curves.items():
        ends = [run[-1][1] / end for run, end in zip(runs, full, strict=True)]
        times = [
            next((t for t, x in run if x <= latency), run[-1][0] * 2) / seconds
            for run, (seconds, latency) in zip(runs, plain, strict=True)
        ]
        print(
            f"{name:16} end {statistics.median(ends):.3f} of gradient's, round robin's latency "
            f"after {statistics.median(times):.2f} of its time"
        )


ACCURACY_COUNTS = (8, 16, 32, 64, 128)
_TOP = 8


def compare_accuracy(seeds: int, most: int = 700) -> dict[int, dict[str, float]]:
    """How fast the eight programs are that a model likes best among those never measured: the
    median of the eight over the fastest, in the geometric mean over tasks and seeds. By the number
    of programs that were measured of each task, the best by the analytic score with some noise.
    """
    data = {name: ms[:most] for name, ms in load().items()}
    found: dict[int, dict[str, list[float]]] = {}
    for seed in range(seeds):
        halves = {name: _halves(ms, seed) for name, ms in data.items()}
        for count in ACCURACY_COUNTS:
            every = [m for train, _ in halves.values() for m in train[:count]]
            shared = Gbdt().fit(every)
            for train, test in halves.values():
                own = Gbdt().fit(train[:count])
                for name, model in (("analytic", None), ("own", own), ("shared", shared)):
                    values = found.setdefault(count, {}).setdefault(name, [])
                    values.append(_speed_of_top(model or ScoreByTarget(), test))
    means = {
        count: {name: statistics.geometric_mean(v) for name, v in by_name.items()}
        for count, by_name in found.items()
    }
    for count, by_name in means.items():
        each = ", ".join(f"{n} {x:.3f}" for n, x in by_name.items())
        print(f"{count:4} programs of each task: {each}", flush=True)
    return means


def _halves(
    records: Sequence[ts.Measurement], seed: int
) -> tuple[list[ts.Measurement], list[ts.Measurement]]:
    """Programs to measure, in the order in which a search might, and programs to choose from."""
    rng = np.random.default_rng(seed)
    order = [records[k] for k in rng.permutation(len(records))]
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    scores = _scores(ScoreByTarget(), train) + 0.3 * rng.standard_normal(len(train))
    return [train[k] for k in np.argsort(-scores)], test


def _scores(model: Predictor, records: Sequence[ts.Measurement]) -> Any:
    scores = np.full(len(records), -np.inf)
    for g in groups_of(records):
        scores[g.at] = model.predict(g.variant, g.rows)
    return scores


def _speed_of_top(model: Predictor, records: Sequence[ts.Measurement]) -> float:
    costs = np.array([m.cost for m in records])
    top = np.argsort(-_scores(model, records), kind="stable")[:_TOP]
    return float(costs.min() / np.median(costs[top]))
