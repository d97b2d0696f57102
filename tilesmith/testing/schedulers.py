"""The contract suite of schedulers: subclass it and set `scheduler`. And simulated tasks, which get
faster as they would when tuned, so that schedulers can be compared without measuring anything.

class TestMine(SchedulerContract):
    scheduler = staticmethod(my_scheduler)
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Protocol

from tilesmith.base.dataclass import dataclass
from tilesmith.tune.scheduler import Scheduler, TaskState, TaskStep


class TuningTask(Protocol):
    """A task as a simulation needs it: how it is before the first step, and after so many."""

    @property
    def state(self) -> TaskState: ...

    @property
    def steps(self) -> float:
        """How many it has."""

    def after(self, steps: int) -> TaskStep: ...


@dataclass(frozen=True)
class SimulatedTask:
    """Starts with `first` seconds, ends with `last`, and is halfway between after `half` steps.
    With `last` infinite, no kernel ever runs. `steps` are possible, then it is finished.
    """

    name: str = "task"
    weight: int = 1
    first: float = 1e-3
    last: float = 5e-4
    half: float = 4.0
    bound: float = 0.0
    structure: str = ""
    step_seconds: float = 1.0
    steps: float = inf

    def best(self, steps: int) -> float:
        if self.last == inf:
            return inf
        return self.last + (self.first - self.last) * self.half / (self.half + steps - 1)

    def after(self, steps: int) -> TaskStep:
        return TaskStep(steps * self.step_seconds, 16 * steps, self.best(steps))

    @property
    def state(self) -> TaskState:
        flops = 0.0 if self.last == inf else 1e10 * self.last
        return TaskState(self.name, self.weight, self.weight, flops, self.bound, self.structure)


@dataclass(frozen=True)
class Simulation:
    """After each step: the number of the task chosen, the time, the total latency, and the seconds
    of every task.
    """

    chosen: list[int]
    seconds: list[float]
    latency: list[float]
    costs: list[tuple[float, ...]]

    def time_to(self, latency: float) -> float:
        """The seconds until the latency was as low as this."""
        return next(
            (t for t, x in zip(self.seconds, self.latency, strict=True) if x <= latency), inf
        )

    def latency_at(self, seconds: float) -> float:
        pairs = zip(self.seconds, self.latency, strict=True)
        return min((x for t, x in pairs if t <= seconds), default=inf)

    def reached(self, latency: float) -> int:
        """The number of steps until the latency was as low as this."""
        return next((k + 1 for k, x in enumerate(self.latency) if x <= latency), 1 << 60)


def simulate(scheduler: Scheduler, tasks: Sequence[TuningTask], steps: int) -> Simulation:
    states = [t.state for t in tasks]
    out = Simulation([], [], [], [])
    now = 0.0
    for _ in range(steps):
        if all(s.finished for s in states):
            break
        k = scheduler(tuple(states))
        assert not states[k].finished, f"task {k} was chosen, which has nothing left"
        task, state = tasks[k], states[k]
        count = len(state.history) + 1
        step = task.after(count)
        now += step.seconds - (state.history[-1].seconds if state.history else 0.0)
        states[k] = replace(state, history=(*state.history, step), finished=count >= task.steps)
        out.chosen.append(k)
        out.seconds.append(now)
        done = all(s.history for s in states)
        out.latency.append(sum(s.weight * s.best for s in states if not s.is_dead) if done else inf)
        out.costs.append(tuple(s.best for s in states))
    return out


def simulated_network(seed: int, count: int = 24) -> list[SimulatedTask]:
    """Tasks as those of a network: most of the time is in some of them, some occur often, and some
    are far from their best at first or take long to get there.
    """
    rng = random.Random(seed)
    tasks = []
    for k in range(count):
        first = 10 ** rng.uniform(-5.0, -2.0)
        last = first * rng.uniform(0.3, 0.95)
        tasks.append(
            SimulatedTask(
                f"task{k}", rng.choice((1, 1, 1, 2, 3, 4, 6)), first, last,
                half=rng.choice((1.0, 2.0, 4.0, 8.0, 16.0)), bound=last * rng.uniform(0.5, 1.0),
                structure=rng.choice("abcde"), step_seconds=rng.uniform(0.5, 2.0),
            )
        )  # fmt: skip
    return tasks


class SchedulerContract:
    scheduler: Scheduler

    def test_every_task_has_a_step_before_one_has_two(self) -> None:
        tasks = simulated_network(0, 30)
        chosen = simulate(self.scheduler, tasks, 30).chosen
        assert sorted(chosen) == list(range(30))

    def test_one_task_gets_everything(self) -> None:
        assert simulate(self.scheduler, [SimulatedTask()], 20).chosen == [0] * 20

    def test_equal_tasks_get_equal_shares(self) -> None:
        count = Counter(simulate(self.scheduler, [SimulatedTask()] * 4, 400).chosen)
        assert max(count.values()) - min(count.values()) <= 40

    def test_what_is_finished_is_not_chosen(self) -> None:
        tasks = [SimulatedTask(steps=2), SimulatedTask(), SimulatedTask(steps=5)]
        count = Counter(simulate(self.scheduler, tasks, 50).chosen)
        assert count == {0: 2, 1: 43, 2: 5}

    def test_all_that_there_is_gets_measured(self) -> None:
        tasks = [SimulatedTask(steps=3), SimulatedTask(last=inf, steps=2), SimulatedTask(steps=1)]
        assert len(simulate(self.scheduler, tasks, 50).chosen) == 6

    def test_a_dead_task_does_not_stop_the_rest(self) -> None:
        tasks = [SimulatedTask(last=inf), SimulatedTask(first=1e-2), SimulatedTask()]
        done = simulate(self.scheduler, tasks, 60)
        assert {1, 2} <= set(done.chosen[3:])
        assert done.latency[-1] < done.latency[2]

    def test_only_dead_tasks(self) -> None:
        chosen = simulate(self.scheduler, [SimulatedTask(last=inf)] * 3, 30).chosen
        assert len(chosen) == 30

    def test_the_same_states_give_the_same_choice(self) -> None:
        tasks = simulated_network(1)
        first, again = (simulate(self.scheduler, tasks, 200).chosen for _ in range(2))
        assert first == again

    def test_tasks_that_a_database_knew_and_no_clock(self) -> None:
        known = TaskStep(0.0, 40, 1e-3)
        states = [replace(SimulatedTask().state, history=(known,)) for _ in range(3)]
        assert self.scheduler(states) in range(3)

    def test_tasks_without_arithmetic_and_at_their_bound(self) -> None:
        tasks = [
            replace(t.state, flops=0, history=(TaskStep(1.0, 4, 1e-4),), structure="copy", bound=b)
            for t, b in ((SimulatedTask(), 0.0), (SimulatedTask(), 1e-4), (SimulatedTask(), 1.0))
        ]
        assert self.scheduler(tasks) in range(3)

    def test_hundreds_of_tasks(self) -> None:
        done = simulate(self.scheduler, simulated_network(2, 300), 340)
        assert sorted(done.chosen[:300]) == list(range(300))
        assert done.latency[-1] < done.latency[299]
