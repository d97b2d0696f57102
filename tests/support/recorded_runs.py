"""Tasks whose steps were recorded in a real run, to compare schedulers without measuring."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from tilesmith.testing.schedulers import TuningTask, simulate
from tilesmith.tune.scheduler import Scheduler, TaskState, TaskStep, gradient, round_robin

_EVER = 1 << 20  # steps


@dataclass(frozen=True)
class RecordedTask:
    """A task whose steps were recorded in a real run. Then it is finished."""

    name: str
    weight: int
    flops: float
    bound: float
    structure: str
    history: tuple[TaskStep, ...]

    @property
    def steps(self) -> int:
        return len(self.history)

    def after(self, steps: int) -> TaskStep:
        return self.history[steps - 1]

    @property
    def state(self) -> TaskState:
        return TaskState(
            self.name, self.weight, self.weight, self.flops, self.bound, self.structure
        )  # fmt: skip


def read_run(path: Path) -> list[RecordedTask]:
    """The tasks of a run that `write_run` stored."""
    return [
        RecordedTask(
            t["name"], t["weight"], t["flops"], t["bound"], t["structure"],
            tuple(TaskStep(*s) for s in t["steps"]),
        )
        for t in json.loads(path.read_text())["tasks"]
    ]  # fmt: skip


def write_run(path: Path, tasks: Sequence[RecordedTask], about: str) -> None:
    rows = [
        {
            "name": t.name, "weight": t.weight, "flops": t.flops, "bound": t.bound,
            "structure": t.structure, "steps": [[s.seconds, s.trials, s.best] for s in t.history],
        }
        for t in tasks
    ]  # fmt: skip
    path.write_text(json.dumps({"about": about, "tasks": rows}) + "\n")


def network_of(tasks: Sequence[RecordedTask], seed: int, count: int) -> list[RecordedTask]:
    """A network of some of the recorded tasks, with weights of its own."""
    rng = random.Random(seed)
    chosen = sorted(rng.sample(range(len(tasks)), count))
    return [replace(tasks[k], weight=rng.choice((1, 1, 2, 3, 4))) for k in chosen]


def share_of_time(
    tasks: Sequence[TuningTask], scheduler: Scheduler, steps: int | None = None
) -> float:
    """When the scheduler is as far as round robin is after so many steps, as a share of its time.
    Without `steps` it is after half of the time that was recorded.
    """
    plain = simulate(round_robin(), tasks, _EVER if steps is None else steps)
    limit = plain.seconds[-1] / (2 if steps is None else 1)
    other = simulate(scheduler, tasks, _EVER if steps is None else 2 * steps)
    return other.time_to(plain.latency_at(limit)) / limit


def merged(a: Sequence[RecordedTask], b: Sequence[RecordedTask]) -> list[RecordedTask]:
    """The tasks of both networks, each once."""
    by_history = {t.history: t for t in a}
    out = dict(by_history)
    for t in b:
        known = by_history.get(t.history)
        out[t.history] = t if known is None else _heavier(known, t.weight)
    return list(out.values())


def _heavier(t: RecordedTask, weight: int) -> RecordedTask:
    return RecordedTask(t.name, t.weight + weight, t.flops, t.bound, t.structure, t.history)


def cost_of_sharing(a: Sequence[RecordedTask], b: Sequence[RecordedTask]) -> float:
    """The time of one run for both networks over that of a run for each, at the same latencies."""
    spent, goals = 0.0, []
    for net in (a, b):
        alone = simulate(gradient(), net, _EVER)
        limit = alone.seconds[-1] / 2
        spent += limit
        goals.append(alone.latency_at(limit))
    tasks = merged(a, b)
    weights = [_weights(tasks, net) for net in (a, b)]
    both = simulate(gradient(), tasks, _EVER)
    for seconds, costs in zip(both.seconds, both.costs, strict=True):
        latencies = (sum(w * c for w, c in zip(ws, costs, strict=True) if w) for ws in weights)
        if all(x <= goal * (1 + 1e-9) for x, goal in zip(latencies, goals, strict=True)):
            return seconds / spent
    return inf


def _weights(tasks: Sequence[RecordedTask], net: Sequence[RecordedTask]) -> list[int]:
    own = {t.history: t.weight for t in net}
    return [own.get(t.history, 0) for t in tasks]
