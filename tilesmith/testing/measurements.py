"""Tasks, measurements and tuning runs for tests. Each derives from a number, so that two with the
same number are equal.
"""

from __future__ import annotations

from tilesmith.base.target import Target
from tilesmith.expr.dsl import compute, placeholder
from tilesmith.expr.functions import maximum
from tilesmith.ir.lower import function
from tilesmith.schedule.kinds import Vectorize
from tilesmith.schedule.loops import Split
from tilesmith.schedule.trace import Trace
from tilesmith.task.task import (
    Budget,
    Candidate,
    Failure,
    Measurement,
    Task,
    TuningRun,
)


def task_of(
    size: int = 8, target: str = "haswell", names: tuple[str, str, str, str, str] | None = None
) -> Task:
    """A small task, a different one for each size; `names` are those of its input, its output, the
    two axes and the Function.
    """
    a, b, *axes, func = names or ("x", "y", "i", "j", f"clip{size}")
    x = placeholder((size, 4), name=a)
    y = compute((size, 4), lambda i, j: maximum(x[i, j], 0.5), name=b, axes=axes)
    return Task(function([x, y], name=func), Target.named(target))


def measured(
    task: Task,
    number: int,
    seconds: tuple[float, ...] = (1e-3,),
    failure: Failure | None = None,
    contended: bool = False,
    confirmed: bool = False,
) -> Measurement:
    """A measurement whose candidate and time derive from `number`."""
    trace = Trace((Split("y.i", (None, number + 1)), Vectorize("y.j")))
    at = 1.7e9 + number / 7
    return Measurement(
        Candidate(task, trace), seconds, failure, contended, confirmed, number / 3, at
    )


_NINE = Budget(trials=9)


def tuning_run(budget: Budget = _NINE, number: int = 0) -> TuningRun:
    """A run that derives from `number`."""
    settings = f"Random(best={number}, 'größer')"
    return TuningRun(f"run{number}", "Random", settings, 2**70, budget, 1.7e9 - number, "a machine")
