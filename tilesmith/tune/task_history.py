"""The history of a task in a run for a network: from records, while a step is under way, and for
how long nothing was gained.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

from tilesmith.task.task import Measurement, Task
from tilesmith.tune.run_state import least_batch
from tilesmith.tune.scheduler import TaskState, TaskStep

FIRST = 2  # trials of a task's first step on a CPU, so that soon every task has a kernel
_KNOWN_STEP = 16  # trials of a step, for those that a database knew
BETTER = 1e-3  # the relative gain from which on a task has not stalled


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


def first_trials(task: Task) -> int:
    """The trials of a task's first step: few, so that soon every task has a kernel. On a GPU they
    are a whole first batch, because all cores compile while the search of the next task runs.
    """
    return FIRST if task.target.kind == "cpu" else least_batch(task.target)


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
