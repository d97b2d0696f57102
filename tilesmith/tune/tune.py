"""`tune`: finds the fastest kernel of a Function within a budget. Measurements are stored in the
database before the strategy or an observer sees them, so a run that is interrupted or fails loses
nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import TypedDict

from tilesmith.base.errors import MeasureError, RecordsError, TuneError
from tilesmith.base.given import checks_given
from tilesmith.base.process import noticed
from tilesmith.base.target import Target, cpu
from tilesmith.ir.function import Function
from tilesmith.measure.local import LocalMeasurer
from tilesmith.measure.protocol import Measurer
from tilesmith.records.accurate import AccurateRecords
from tilesmith.records.database import Database, with_parts
from tilesmith.schedule.trace import Parts
from tilesmith.search.evolution import Evolution
from tilesmith.search.protocol import Strategy
from tilesmith.search.shared_model import with_shared_model
from tilesmith.space.spaces import Space, default_space
from tilesmith.task.task import Budget, Task, require_accuracy
from tilesmith.tune.build_request import first_draft
from tilesmith.tune.network_tasks import alone, fastest_of, similar_tasks
from tilesmith.tune.open_tune import tune_open
from tilesmith.tune.precision import of_operator
from tilesmith.tune.progress import Observer, Terminal
from tilesmith.tune.result import Result
from tilesmith.tune.run_state import require_finite
from tilesmith.tune.task_tuner import TaskTuner

_DEFAULT = Budget(seconds=60)


class TuneOptions(TypedDict, total=False):
    """The arguments that `tune` and `tune_model` have in common, for those who pass them on."""

    budget: Budget
    database: Database | None
    space: Space | None
    accuracy: float | None
    strategy: Strategy | None
    measurer: Measurer | None
    parts: Parts | None
    seed: int
    batch_size: int | None
    quiet: bool


@checks_given(error=TuneError)
def tune(
    func: Function,
    target: Target | None = None,
    *,
    budget: Budget = _DEFAULT,
    database: Database | None = None,
    space: Space | None = None,
    accuracy: float | None = None,
    precision: str = "float32",
    strategy: Strategy | None = None,
    measurer: Measurer | None = None,
    parts: Parts | None = None,
    seed: int = 0,
    observers: Sequence[Observer] = (),
    quiet: bool = False,
    batch_size: int | None = None,
) -> Result:
    """Searches for the fastest kernel of a Function within a budget.

    - `func`: what `ts.function` made. With open sizes (`ts.size`), it is tuned at each of their
      samples, and `result.portfolio` says which kernels cover the range.
    - `target`: the machine, by default `ts.cpu()`, all cores of this one.
    - `budget`: the limits of the run, by default 60 seconds.
    - `database`: where measurements are kept. Its records of the task count towards the trials and
      are not measured again, except for the best. That is the first incumbent, so the result has
      won against it side by side. From its records of similar tasks (the same structure, other
      sizes) the cost model learns, and what is fast in those is tried early.
    - `space`: the programs to search, by default `ts.SketchSpace()`; `ts.TemplateSpace` is one of
      your own.
    - `accuracy`: the relative error that a layer may have because it is computed in another way
      than it is stated; by default 1e-5, and 5e-3 for sums of float16. A `space` of your own has
      its own.
    - `precision`: "tf32" lets tensor cores of a GPU multiply float32, of which they read 11 binary
      digits: the error of a layer is at most 1e-3 (see schedule/rounding.py), which `accuracy` is
      then by default.
    - `strategy`: what to measure next, by default `ts.Evolution()`.
    - `measurer`: where and how, by default `ts.LocalMeasurer()`; `ts.FleetMeasurer` uses many
      machines.
    - `parts`: your own primitives, intrinsics and back ends, see `ts.Parts`; by default those that
      the database was opened with.
    - `seed`: of everything random in the search.
    - `observers`: functions that get a `ts.Progress` after each batch.
    - `quiet`: no progress display.
    - `batch_size`: how many candidates are proposed and measured at a time; by default few at
      first, for an early kernel, and more later. A search learns of each batch one batch late.

    Ctrl-C ends a run early, with the best so far. So does an error of the measurer or the database
    (see `Result.error`). An exception of a strategy or an observer is raised, with a note of what
    was measured and stored until then.

    Example:

        result = ts.tune(func, budget=ts.Budget(trials=200, seconds=30), seed=0)
        print(result.best, result.trials, result.failures)
        out = result.kernel(a, b)
    """
    require_accuracy(accuracy)
    require_finite(budget)
    machine = cpu() if target is None else target
    accuracy = of_operator(precision, machine, accuracy, "tune")
    if database is not None:
        parts, database = with_parts(parts, database)
    if func.sizes:
        if not func.declared:
            func.require_closed("ts.tune", TuneError)

        def search(fixed: Function, share: Budget) -> Result:
            return tune(
                fixed, machine, budget=share, database=database, space=space, accuracy=accuracy,
                strategy=strategy, measurer=measurer, parts=parts, seed=seed, observers=observers,
                quiet=quiet, batch_size=batch_size,
            )  # fmt: skip

        return tune_open(func, machine, parts, budget, search, accuracy, database)
    task = Task(func, machine, parts)
    known = None if database is None else AccurateRecords(database, accuracy)
    similar = [] if known is None else similar_tasks(known, [alone(task)])
    others = [m for s in similar for m in s.records]
    tuner = TaskTuner(
        task,
        budget=budget,
        database=known,
        space=default_space(machine, accuracy, parts) if space is None else space,
        strategy=with_shared_model(strategy or Evolution(), others, 1) if others else strategy,
        seed=seed,
        observers=[*observers] if quiet else [Terminal(), *observers],
        # So that even a short run ends with no slower a kernel than ts.build has without one.
        drafts=partial(first_draft, accuracy) if space is None and strategy is None else None,
        batch_size=batch_size,
    )
    tuner.suggest(fastest_of(similar))
    try:
        if not tuner.finished:
            # Opened first: its processes start while sketches are derived.
            opened = (measurer or LocalMeasurer()).open(tuner.task)
            with opened as measuring, noticed() as interrupts:
                while not tuner.finished:
                    tuner.step(measuring)
                    interrupts.check()
    except KeyboardInterrupt:
        if tuner.best is None:
            raise
        return tuner.result(interrupted=True)
    except (MeasureError, RecordsError) as error:
        if tuner.best is None:
            raise
        warnings.warn(f"tuning of {func.name} ended early: {error}", stacklevel=2)
        return tuner.result(error=error)
    except BaseException as error:  # of a strategy, a space, a cost model or an observer
        if tuner.trials:
            error.add_note(tuner.summary())
        raise
    return tuner.result()
