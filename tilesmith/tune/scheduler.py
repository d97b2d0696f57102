"""Schedulers: which task of a network gets the next batch of measurements.

A scheduler is a function of the states of all tasks that returns the number of one of them. Every
scheduler should pass the suite in `tilesmith.testing.schedulers`.
"""

from __future__ import annotations

import random
import statistics
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from itertools import islice, pairwise
from math import inf, isfinite
from typing import Protocol, runtime_checkable

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.given import checks_given
from tilesmith.task.task import Measurement

# A task that has had so many steps more than its like, and is still slower, is not like it.
_MORE_STEPS = 5
# So many tasks of a structure tell how far its bounds can be trusted, and so many that are further
# along tell what a task will gain. More tasks and more of their steps are not looked at.
_MIN_ALIKE, _MIN_AHEAD, _MAX_PEERS, _MAX_STEPS = 3, 2, 8, 12
# The weight of a bound beside what was seen: as that of promises of so much of a task's time, and
# as that of so many tasks further along.
_TRUST, _BOUND_WEIGHT = 0.3, 2.0
FIRST = 2  # trials of a task's first step on a CPU, so that soon every task has a kernel
_KNOWN_STEP = 16  # trials of a step, for those that a database knew
BETTER = 1e-3  # the relative gain from which on a task has not stalled


@checks_given(error=TuneError)
@dataclass(frozen=True, slots=True)
class TaskStep:
    """A task after one of its steps: the seconds and the trials spent on it so far, and the seconds
    of its best kernel (infinite if none ran).

    What a database knew from before counts as trials that took no time.
    """

    seconds: float
    trials: int
    best: float


@checks_given(error=TuneError)
@dataclass(frozen=True, slots=True)
class TaskState:
    """What a scheduler knows of a task.

    `weight` is how often the networks run it. `slope` is by how much the objective falls for each
    second that the task gets faster: the weight, if the objective is the total latency. `bound` is
    a time in seconds that no kernel of it beats, 0 if unknown. Tasks of the same `structure` differ
    in their sizes only. A task that is `finished` has nothing left to measure.
    """

    name: str
    weight: float
    slope: float
    flops: float
    bound: float = 0.0
    structure: str = ""
    history: tuple[TaskStep, ...] = field(default=(), repr=False)
    finished: bool = False

    @property
    def best(self) -> float:
        """Seconds; infinite until a kernel has run."""
        return self.history[-1].best if self.history else inf

    @property
    def trials(self) -> int:
        return self.history[-1].trials if self.history else 0

    @property
    def is_dead(self) -> bool:
        """Whether it was measured, and none of its kernels ran."""
        return bool(self.history) and not isfinite(self.best)

    @property
    def work(self) -> float:
        """What its speed is measured by: its bound, or its operations where that is unknown."""
        return self.bound or self.flops

    @property
    def pace(self) -> float:
        """Seconds per trial; 0 if unknown. The first step of a run is left out, because it includes
        what is done once for a task.
        """
        first = next((s for s in self.history if s.seconds > 0), None)
        if first is None or self.trials <= first.trials:
            return 0.0
        last = self.history[-1]
        return (last.seconds - first.seconds) / (last.trials - first.trials)


Scheduler = Callable[[Sequence[TaskState]], int]


@checks_given(error=TuneError)
@dataclass(frozen=True, slots=True)
class TaskChoice:
    """The number of a task, and why it has the next step. `gain` is by how many seconds a call of
    it is expected to get faster in that step; None if nothing is known.
    """

    task: int
    reason: str = ""
    gain: float | None = None


@runtime_checkable
class ReasoningScheduler(Protocol):
    """A scheduler that also tells why."""

    def choose(self, tasks: Sequence[TaskState]) -> TaskChoice: ...


@runtime_checkable
class Seeded(Protocol):
    """A scheduler that chooses by chance."""

    def with_seed(self, seed: int) -> Scheduler: ...


def seeded(scheduler: Scheduler, seed: int) -> Scheduler:
    """With the seed of the run, if it chooses by chance and has none of its own."""
    return scheduler.with_seed(seed) if isinstance(scheduler, Seeded) else scheduler


def choice_of(scheduler: Scheduler, tasks: Sequence[TaskState]) -> TaskChoice:
    """With a reason, if the scheduler has one."""
    if isinstance(scheduler, ReasoningScheduler):
        return scheduler.choose(tasks)
    return TaskChoice(scheduler(tasks))


def live(tasks: Sequence[TaskState]) -> list[int]:
    """The numbers of the tasks that have something left to measure."""
    return [k for k, t in enumerate(tasks) if not t.finished]


def unmeasured(tasks: Sequence[TaskState]) -> int | None:
    """The heaviest of the tasks that were never measured."""
    new = [k for k in live(tasks) if not tasks[k].history]
    return max(new, key=lambda k: tasks[k].slope * tasks[k].work, default=None)


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """The task that had the fewest steps."""

    def __call__(self, tasks: Sequence[TaskState]) -> int:
        return self.choose(tasks).task

    def choose(self, tasks: Sequence[TaskState]) -> TaskChoice:
        task = min(live(tasks), key=lambda k: len(tasks[k].history))
        return TaskChoice(task, f"no task has had fewer steps than its {len(tasks[task].history)}")


@dataclass(frozen=True, slots=True)
class _Promise:
    """Seconds that a call is expected to get faster for each second of tuning, and why."""

    rate: float
    reason: str


@dataclass(frozen=True, slots=True)
class Gradient:
    """The task whose next step promises most: the objective's slope times the seconds that the task
    is expected to gain, for each second of tuning.

    Once every task has had a step, that expectation is a mean of two. With weight `alpha` it is
    what the last `window` steps gained. With weight 1 - `alpha` it is the more optimistic of two
    guesses: that spending as much again as was spent so far reaches the task's bound; and that the
    next step reaches 1 / `beta` of the speed of the fastest task of the same structure. A task that
    has had many more steps than that one, and is still slower, is no longer compared with it.

    Bounds of some structures are far too low, and some tasks improve only after a number of trials.
    So the first guess is corrected by what was seen: it is scaled by how much of such promises came
    true for tasks of the same structure, relative to all tasks; and it is averaged with what tasks
    of that structure that are further along gained from the same number of trials on.

    A share `epsilon` of the steps goes to tasks at random: which steps, and to which tasks, is
    drawn from `seed` (None: the seed of the run) and the number of steps so far, so a run that
    resumes goes on as it would have. Among equal ones the task with the fewest steps is chosen.
    """

    alpha: float = 0.2
    beta: float = 2.0
    window: int = 3
    epsilon: float = 0.05
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, ok, what in (
            ("alpha", 0 <= self.alpha <= 1, "a share from 0 to 1"),
            ("beta", 0 < self.beta < inf, "a factor above 0"),
            ("window", self.window >= 1, "a number of steps from 1 on"),
            ("epsilon", 0 <= self.epsilon <= 1, "a share from 0 to 1"),
            ("seed", self.seed is None or self.seed >= 0, "a whole number from 0 on"),
        ):
            if not ok:
                raise TuneError(f"gradient({name}={getattr(self, name)!r}): it takes {what}")

    def with_seed(self, seed: int) -> Scheduler:
        return self if self.seed is not None else replace(self, seed=seed)

    def __call__(self, tasks: Sequence[TaskState]) -> int:
        return self.choose(tasks).task

    def choose(self, tasks: Sequence[TaskState]) -> TaskChoice:
        first = unmeasured(tasks)
        if first is not None:
            return TaskChoice(first, "it has not been measured yet")
        left = live(tasks)
        # The same states give the same choice. A text, because seeds that are numbers next to each
        # other give first draws that are correlated.
        rng = random.Random(f"{self.seed or 0}, step {sum(len(t.history) for t in tasks)}")
        if rng.random() < self.epsilon:
            return TaskChoice(rng.choice(left), f"by chance, as {self.epsilon:.0%} of all steps")
        similar = _by_structure(tasks)
        trusted = _credibility(tasks)
        paces = {k: tasks[k].pace for k in left}
        # A task of which too little is known is taken to be like the others.
        usual = statistics.median([p for p in paces.values() if p] or [1.0])

        promises = {
            k: self._promise(
                tasks[k], paces[k] or usual, similar, trusted.get(tasks[k].structure, 1.0)
            )
            for k in left
        }

        def per_second(k: int) -> tuple[float, int]:
            return tasks[k].slope * promises[k].rate, -len(tasks[k].history)

        task = max(left, key=per_second)
        seconds = (paces[task] or usual) * _next_trials(tasks[task])
        most = max(0.0, tasks[task].best - tasks[task].bound)
        return TaskChoice(task, promises[task].reason, min(most, seconds * promises[task].rate))

    def _promise(
        self, task: TaskState, pace: float, similar: dict[str, list[TaskState]], trust: float
    ) -> _Promise:
        if task.is_dead or task.slope <= 0:
            return _Promise(0.0, "no other task is left")
        alike = similar.get(task.structure, [])
        recent = self.alpha * self._recent(task, pace)
        optimistic = self._optimistic(task, pace, alike, trust)
        rest = (1 - self.alpha) * optimistic.rate
        reason = "its last steps have gained most" if recent > rest else optimistic.reason
        return _Promise(recent + rest, reason)

    def _recent(self, task: TaskState, pace: float) -> float:
        """Seconds gained per second in the last steps."""
        last = task.history[-1]
        ran = [s for s in task.history[-1 - self.window : -1] if isfinite(s.best)]
        if not ran or last.trials <= ran[0].trials:
            return 0.0
        return max(0.0, ran[0].best - last.best) / (pace * (last.trials - ran[0].trials))

    def _optimistic(
        self, task: TaskState, pace: float, similar: list[TaskState], trust: float
    ) -> _Promise:
        reason = "most can be gained between its best and its lower bound"
        gain = trust * max(0.0, task.best - task.bound) / max(1, task.trials)
        ahead = _gains_ahead(task, similar)
        if len(ahead) >= _MIN_AHEAD:
            seen = task.best * sum(ahead)
            if seen > _BOUND_WEIGHT * gain:
                reason = "tasks like it have gained after as many trials"
            gain = (_BOUND_WEIGHT * gain + seen) / (_BOUND_WEIGHT + len(ahead))
        peer = next(
            (
                t
                for t in similar
                if t is not task and len(task.history) <= len(t.history) + _MORE_STEPS
            ),
            None,
        )
        if peer is None or not task.work:
            return _Promise(gain / pace, reason)
        reach = task.best - self.beta * task.work * (peer.best / peer.work)
        if reach / _next_trials(task) > gain:
            reason = "a task like it is much faster for its size"
        return _Promise(max(gain, reach / _next_trials(task)) / pace, reason)


def _credibility(tasks: Sequence[TaskState]) -> dict[str, float]:
    """How much of what bounds promised came true, by structure, relative to all tasks. A step
    promises the part of the distance to the bound that it has of the trials before it.
    """
    promised: dict[str, float] = {}
    gained: dict[str, float] = {}
    members: dict[str, int] = {}
    for t in tasks:
        members[t.structure] = members.get(t.structure, 0) + 1
        for a, b in pairwise(t.history[-_MAX_STEPS:]):
            if isfinite(a.best) and a.trials:
                share = min(1.0, (b.trials - a.trials) / a.trials)
                promise = max(0.0, 1 - t.bound / a.best) * share
                promised[t.structure] = promised.get(t.structure, 0.0) + promise
                gained[t.structure] = gained.get(t.structure, 0.0) + max(0.0, 1 - b.best / a.best)
    usual = (sum(gained.values()) + _TRUST / 10) / (sum(promised.values()) + _TRUST)
    return {
        s: (gained.get(s, 0.0) / usual + _TRUST) / (promised.get(s, 0.0) + _TRUST)
        for s, count in members.items()
        if s and count >= _MIN_ALIKE
    }


def _gains_ahead(task: TaskState, similar: list[TaskState]) -> list[float]:
    """What tasks like this one gained after they had had as many trials: the share of their time
    per trial, until the step up to which they gained most.
    """
    rates = []
    for t in islice(similar, _MAX_PEERS + 1):
        if t is task or t.trials <= task.trials:
            continue
        at = bisect_right(t.history, task.trials, key=lambda s: s.trials)
        if at and isfinite(t.history[at - 1].best):
            start = t.history[at - 1]
            later = t.history[at : at + _MAX_STEPS]
            rate = max((1 - s.best / start.best) / (s.trials - start.trials) for s in later)
            rates.append(max(0.0, rate))
    return rates


def _next_trials(task: TaskState) -> int:
    """The trials of the next step, as many as the last one had."""
    before = task.history[-2].trials if len(task.history) > 1 else 0
    return max(1, task.trials - before)


def _by_structure(tasks: Sequence[TaskState]) -> dict[str, list[TaskState]]:
    """Tasks that ran, by structure, the fastest for their size first."""
    out: dict[str, list[TaskState]] = {}
    for t in tasks:
        if t.structure and t.history and isfinite(t.best) and t.work:
            out.setdefault(t.structure, []).append(t)
    for alike in out.values():
        alike.sort(key=lambda t: t.best / t.work)
    return out


@checks_given(error=TuneError)
def gradient(
    alpha: float = 0.2, beta: float = 2.0, window: int = 3, epsilon: float = 0.05,
    seed: int | None = None,
) -> Scheduler:  # fmt: skip
    """Gives the next batch to the task that promises most for the objective.

    - `alpha`: the weight of what the last `window` steps gained; the rest has the optimistic guess.
    - `beta`: a task is expected to reach 1 / `beta` of the speed of the fastest one like it.
    - `epsilon`: the share of steps that goes to tasks at random, drawn from `seed`, by default the
      seed of the run.
    """
    return Gradient(alpha, beta, window, epsilon, seed)


@checks_given(error=TuneError)
def round_robin() -> Scheduler:
    """Gives every task the same number of batches."""
    return RoundRobin()


def known_steps(known: Sequence[Measurement], best: float) -> tuple[TaskStep, ...]:
    """The history of a task that a database knows; none if it never ran."""
    if not isfinite(best):
        return ()
    steps: list[TaskStep] = []
    seen: set[str] = set()
    least = inf
    for m in known:
        seen.add(m.candidate.key)
        least = min(least, m.cost)
        trials = steps[-1].trials if steps else 0
        if len(seen) >= trials + _KNOWN_STEP and isfinite(least):
            # The fastest may have been timed badly: the best is what a careful ranking says.
            steps.append(TaskStep(0.0, len(seen), max(least, best)))
    return (
        (*steps[:-1], TaskStep(0.0, len(seen), best))
        if steps
        else (TaskStep(0.0, len(seen), best),)
    )


def after_a_step_in_vain(state: TaskState) -> TaskState:
    """The state of a task whose step is under way, as if that gained nothing. Otherwise a scheduler
    that has just chosen it would choose it again.
    """
    h = state.history
    if h:
        n = max(1, h[-1].trials - h[-2].trials if len(h) > 1 else h[-1].trials)
        step = TaskStep(h[-1].seconds + n * state.pace, h[-1].trials + n, h[-1].best)
    else:
        step = TaskStep(0.0, FIRST, inf)
    return TaskState(
        state.name, state.weight, state.slope, state.flops, state.bound, state.structure,
        (*h, step), state.finished,
    )  # fmt: skip


def stalled(history: tuple[TaskStep, ...]) -> int:
    """The number of steps since the task got faster."""
    if not history:
        return 0
    best = history[-1].best
    slower = (k for k in range(len(history)) if history[-1 - k].best > (1 + BETTER) * best)
    return next(slower, len(history)) - 1
