"""One run of tuning networks: the tuners of all tasks share a measurer, and a scheduler chooses
which of them has the next step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, isfinite

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import RecordsError, TilesmithError, TuneError
from tilesmith.base.given import checks_given
from tilesmith.base.process import Interrupts
from tilesmith.measure.protocol import Measuring
from tilesmith.measure.this_machine import usable_cores
from tilesmith.task.network import ModelTuning, TaskTuning
from tilesmith.task.task import Budget, Task
from tilesmith.tune.network_tasks import MOST_SUGGESTED, NetworkTask, RivalTasks, SimilarTask
from tilesmith.tune.objectives import NetworkCosts, Objective, slopes
from tilesmith.tune.partition_choice import WIN
from tilesmith.tune.run_state import least_batch
from tilesmith.tune.scheduler import (
    BETTER,
    FIRST,
    Scheduler,
    TaskChoice,
    TaskState,
    TaskStep,
    after_a_step_in_vain,
    choice_of,
    known_steps,
    stalled,
)
from tilesmith.tune.task_tuner import TaskTuner

# Trials of any other step, so that the scheduler is asked every few seconds. GPUs measure faster.
_MOST, _MOST_GPU = 32, 64
_RIVAL_TRIALS = 16  # of each of two ways to divide the same work, before they are compared
_RIVAL_SHARE = 0.01  # of the latency, from which on another way is tried


@checks_given(error=TuneError)
@dataclass(frozen=True)
class NetworkProgress:
    """What observers receive after every step. `latency` is the estimate of each network, infinite
    while a task has no kernel. `current` is the number of the task that had the step, `following`
    the choice of the next one.
    """

    networks: tuple[str, ...]
    tasks: tuple[TaskTuning, ...]
    latency: tuple[float, ...]
    seconds: float
    trials: int
    budget: Budget
    current: int | None = None
    finished: bool = False
    following: TaskChoice | None = None


NetworkObserver = Callable[[NetworkProgress], None]


class NetworkRun:
    def __init__(
        self,
        networks: Sequence[str],
        tasks: Sequence[NetworkTask],
        tuners: Sequence[TaskTuner],
        scheduler: Scheduler,
        objective: Objective,
        budget: Budget,
        start: float,
        observers: Sequence[NetworkObserver] = (),
        similar: Sequence[SimilarTask] = (),
        rivals: Sequence[RivalTasks] = (),
        finishing_seconds: float = 0.0,
    ) -> None:
        """`finishing_seconds` of the budget are left for what comes after the run."""
        self.networks, self.tasks, self.tuners = tuple(networks), list(tasks), tuners
        self.scheduler, self.objective, self.budget = scheduler, objective, budget
        self.start, self.observers = start, observers
        self.similar = similar  # tasks of other networks, whose best are suggested
        self.divided: list[RivalTasks] = []  # those whose parts were faster
        self._rivals = list(rivals)  # those that are not decided yet
        self.until = None if budget.seconds is None else start + budget.seconds - finishing_seconds
        self.errors: dict[int, TilesmithError] = {}  # of tasks that cannot be tuned
        self._alone: set[int] = set()  # tasks one of which fails; each has its steps by itself
        self._resting: set[int] = set()  # tasks for which too little time is left
        self._histories = [known_steps(t.known, t.best_cost) for t in tuners]
        self._known = [len({m.candidate.key for m in t.known}) for t in tuners]
        self._suggested: list[set[str]] = [set() for _ in tuners]  # programs of other tasks
        self._first = [t.best_cost for t in tuners]
        self._curve: list[tuple[float, tuple[float, ...]]] = []
        self._chosen: TaskChoice | None = None  # the step after the one that is under way
        self._best_trials = 0  # the trials when the estimate last improved
        self._note_latency()

    @property
    def trials(self) -> int:
        """Of this run."""
        return sum(t.trials for t in self.tuners)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    def run(self, measuring: Measuring, interrupts: Interrupts) -> None:
        """Until the budget is spent, nothing is left to measure, or the objective gains nothing."""
        current = self._choose()
        while current is not None and not self._is_spent:
            if self._compare_rivals(measuring, interrupts):
                current = self._choose()  # other tasks count now
                continue
            following = self._choose(current)
            self._step(measuring, current, following)
            interrupts.check()
            if following is None or self._is_done(following) or not self._helps(following):
                following = self._choose()
            current = following
        for k, tuner in enumerate(self.tuners):  # what no other step of its task has taken
            if tuner.num_postponed and self.tasks[k].weight and not self._is_spent:
                self._chosen = TaskChoice(k, "some of its candidates were left for the end")
                self._step(measuring, k, None, tuner.num_postponed)
                interrupts.check()

    def tuning(
        self, network: int | None, interrupted: bool = False,
        error: TilesmithError | None = None, sizes: str = "",
    ) -> ModelTuning:  # fmt: skip
        """The outcome for one of the networks, which was tuned for these sizes; None: for all of
        them together.
        """
        part = slice(None) if network is None else slice(network, network + 1)
        tasks = [self._task_tuning(k, sum(t.weights[part])) for k, t in enumerate(self.tasks)]
        own = tuple(t for t in tasks if t.weight)
        curve: list[tuple[float, float]] = []
        for seconds, each in self._curve:
            latency = sum(each[part])
            if not curve or curve[-1][1] != latency:
                curve.append((seconds, latency))
        return ModelTuning(
            self.seconds, sum(t.trials for t in own), tuple(curve), own, interrupted, error, sizes
        )

    def report(self, current: int | None = None, finished: bool = False) -> None:
        tasks = tuple(self._task_tuning(k, t.weight) for k, t in enumerate(self.tasks))
        latency = self._latency() or (inf,) * len(self.networks)
        progress = NetworkProgress(
            self.networks, tasks, latency, self.seconds, self.trials, self.budget, current,
            finished, None if finished else self._chosen,
        )  # fmt: skip
        for observe in self.observers:
            observe(progress)

    @property
    def _is_spent(self) -> bool:
        b, trials = self.budget, self.trials
        if b.trials is not None and trials + sum(self._known) >= b.trials:
            return True
        if b.patience is not None and trials - self._best_trials >= b.patience:
            return True
        return self.until is not None and time.monotonic() >= self.until

    def _is_done(self, k: int) -> bool:
        idle = self.tuners[k].finished or k in self.errors or k in self._resting
        return idle or not self.tasks[k].weight

    def _helps(self, k: int) -> bool:
        """Whether the objective gains if this task gets faster."""
        return not self._histories[k] or self._slopes()[k] > 0

    def _choose(self, in_flight: int | None = None) -> int | None:
        """The scheduler's choice, while a step of the task `in_flight` is under way. None if
        nothing is left, or nothing that is left would help.
        """
        states = self._states(in_flight)
        left = [k for k, s in enumerate(states) if not s.finished]
        if not any(states[k].slope > 0 or not states[k].history for k in left):
            return None
        self._chosen = choice_of(self.scheduler, states)
        choice = self._chosen.task
        if choice not in left:
            raise TuneError(
                f"the scheduler chose {choice!r}; it gives the number of a task that is not "
                f"finished, one of {left[:10]}{'...' if len(left) > 10 else ''}"
            )
        return choice

    def _states(self, in_flight: int | None) -> tuple[TaskState, ...]:
        each = self._slopes()
        states = []
        for k, (t, tuner) in enumerate(zip(self.tasks, self.tuners, strict=True)):
            state = TaskState(
                tuner.task.func.name, t.weight, each[k], tuner.task.func.flops, t.bound,
                t.structure, self._histories[k], self._is_done(k),
            )  # fmt: skip
            states.append(after_a_step_in_vain(state) if k == in_flight else state)
        return tuple(states)

    def _slopes(self) -> tuple[float, ...]:
        """Weights while a task has not been measured."""
        if self._latency() is None:
            return tuple(float(t.weight) for t in self.tasks)
        reached = tuple(t.best_cost if isfinite(t.best_cost) else 0.0 for t in self.tuners)
        in_vain = tuple(map(stalled, self._histories))
        return slopes(
            self.objective,
            [
                NetworkCosts(
                    name, tuple(t.weights[k] for t in self.tasks), reached, reached, in_vain
                )
                for k, name in enumerate(self.networks)
            ],
        )

    def _compare_rivals(self, measuring: Measuring, interrupts: Interrupts) -> bool:
        """Measures the parts of a task that has had some trials, and takes them in its place if
        they are faster together. Whether there was such a task.
        """
        latency = self._latency()
        if not self._rivals or latency is None:
            return False
        for r in self._rivals:
            whole, tuner = self.tasks[r.whole], self.tuners[r.whole]
            trials = self._known[r.whole] + tuner.trials
            if not isfinite(tuner.best_cost) or (trials < _RIVAL_TRIALS and not tuner.finished):
                continue
            self._rivals.remove(r)
            least = sum(self.tasks[k].bound for k in r.parts)
            if whole.weight * tuner.best_cost < _RIVAL_SHARE * sum(latency):
                return False
            if least >= WIN * tuner.best_cost:
                return False
            for k in r.parts:
                self._try_out(measuring, interrupts, k)
            if sum(self.tuners[k].best_cost for k in r.parts) < WIN * tuner.best_cost:
                self._divide(r)
            self._note_latency()
            return True
        return False

    def _try_out(self, measuring: Measuring, interrupts: Interrupts, k: int) -> None:
        """Some trials of a task that no network runs yet."""
        tuner = self.tuners[k]
        while not (self._is_spent or tuner.finished or k in self.errors or k in self._resting):
            if self._known[k] + tuner.trials >= _RIVAL_TRIALS:
                return
            self._chosen = TaskChoice(k, "it may replace a part of a task that does more at once")
            self._step(measuring, k, None)
            interrupts.check()

    def _divide(self, r: RivalTasks) -> None:
        """The networks run the parts from now on."""
        whole = self.tasks[r.whole]
        for k in r.parts:
            both = zip(self.tasks[k].weights, whole.weights, strict=True)
            self.tasks[k] = replace(self.tasks[k], weights=tuple(a + b for a, b in both))
        self.tasks[r.whole] = replace(whole, weights=(0,) * len(whole.weights))
        self.divided.append(r)

    def _step(
        self, measuring: Measuring, k: int, following: int | None, rest: int | None = None
    ) -> None:
        """One step of a task, while the search of the `following` one runs; `rest`: only of so many
        candidates that were left, at the end.
        """
        tuner = self.tuners[k]
        most = tuner.batch_size or (_MOST if tuner.task.target.kind == "cpu" else _MOST_GPU)
        if not self._histories[k]:
            most = _first_trials(tuner.task)
        if rest is not None:
            most = rest
        if self.budget.trials is not None:
            most = min(most, self.budget.trials - self.trials - sum(self._known))
        overlaps = following is not None and not self._alone & {k, following}
        searching = following if overlaps and following is not None else k
        after = self.tuners[searching]
        for number in {k, searching}:
            self._suggest(number)
        try:
            if self._known[k] and not tuner.trials:  # the best known is measured again, alone
                tuner.step(measuring, most, until=self.until)
            measured = tuner.step(
                measuring, most, until=self.until, following=after, ahead=rest is None
            )
        except RecordsError:
            raise
        except TilesmithError as error:
            self._failed(k, following if overlaps else None, error)
            return
        if not measured and not tuner.finished:
            self._resting.add(k)
        if measured:
            step = TaskStep(tuner.seconds, self._known[k] + tuner.trials, tuner.best_cost)
            self._histories[k] += (step,)
            if not isfinite(self._first[k]):
                self._first[k] = tuner.best_cost
        self._note_latency()
        self.report(k)

    def _suggest(self, k: int) -> None:
        """Tells the search of a task what is fast in tasks of the same structure."""
        alike = [
            (s.slowness, s.best) for s in self.similar if s.structure == self.tasks[k].structure
        ]
        alike += [
            (tuner.best_cost / (t.bound or t.task.func.flops or 1.0), tuner.best.candidate)
            for t, tuner in zip(self.tasks, self.tuners, strict=True)
            if t.structure == self.tasks[k].structure
            and tuner is not self.tuners[k]
            and tuner.best is not None
        ]
        alike.sort(key=lambda pair: pair[0])
        fresh = [c for _, c in alike[:MOST_SUGGESTED] if c.key not in self._suggested[k]]
        self._suggested[k].update(c.key for c in fresh)
        self.tuners[k].suggest(fresh)

    def _failed(self, k: int, following: int | None, error: TilesmithError) -> None:
        """A task that cannot be measured does not stop the others. Either of two tasks may have
        failed, if the search of one ran while the other was measured.
        """
        if self.until is not None and time.monotonic() >= self.until:
            return
        if following is not None and following != k:
            self._alone |= {k, following}
            return
        self.errors[k] = error
        if len(self.errors) == len(self.tasks):
            raise error

    def _latency(self) -> tuple[float, ...] | None:
        """The estimate of each network. None while there are tasks that were not measured."""
        if any(
            not h and k not in self.errors and self.tasks[k].weight
            for k, h in enumerate(self._histories)
        ):
            return None
        costs = [t.best_cost if isfinite(t.best_cost) else 0.0 for t in self.tuners]
        return tuple(
            sum(t.weights[k] * c for t, c in zip(self.tasks, costs, strict=True))
            for k in range(len(self.networks))
        )

    def _note_latency(self) -> None:
        latency = self._latency()
        if latency is None or not any(latency):
            return
        if not self._curve or sum(latency) < (1 - BETTER) * sum(self._curve[-1][1]):
            self._best_trials = self.trials
        if not self._curve or latency != self._curve[-1][1]:
            self._curve.append((self.seconds, latency))

    def _task_tuning(self, k: int, weight: float) -> TaskTuning:
        tuner = self.tuners[k]
        return TaskTuning(
            tuner.task, weight, self._first[k], tuner.best_cost, self.tasks[k].bound, tuner.trials,
            tuner.seconds, self.tasks[k].places,
        )  # fmt: skip


def _first_trials(task: Task) -> int:
    """The trials of a task's first step: few, so that soon every task has a kernel. On a GPU there
    is one for each core of the machine, because all of them compile while others are measured.
    """
    if task.target.kind == "cpu":
        return FIRST
    return max(FIRST, min(least_batch(task.target), len(usable_cores())))
