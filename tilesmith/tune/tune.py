"""Spend a budget on one task: ask the strategy, measure, record, tell, until it is spent. What was
measured is in the database before the strategy or an observer hears of it, so that a run that is
interrupted or fails loses nothing.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from functools import partial

import numpy as np

from tilesmith.base.errors import MeasureError, RecordsError
from tilesmith.base.target import Target, cpu
from tilesmith.ir.function import Function
from tilesmith.measure.local import LocalMeasurer
from tilesmith.measure.protocol import Judging, Measurer, Measuring, Reporting
from tilesmith.records.database import Database
from tilesmith.search.evolution import Evolution
from tilesmith.search.protocol import Search, Strategy
from tilesmith.space.spaces import SketchSpace, Space, require_sketches
from tilesmith.task.task import Budget, Candidate, Task
from tilesmith.tune.events import Observer
from tilesmith.tune.inputs import (
    require_budget,
    require_candidates,
    require_database,
    require_function,
    require_observers,
    require_part,
    require_search,
    require_seed,
    require_target,
)
from tilesmith.tune.run import Result, Run
from tilesmith.tune.terminal import Terminal

_DEFAULT = Budget(seconds=60)


def tune(
    func: Function,
    target: Target | None = None,
    *,
    budget: Budget = _DEFAULT,
    database: Database | None = None,
    space: Space | None = None,
    strategy: Strategy | None = None,
    measurer: Measurer | None = None,
    seed: int = 0,
    observers: Sequence[Observer] = (),
    quiet: bool = False,
) -> Result:
    """The fastest kernel that the budget finds. With a database, what it knows counts towards the
    trials and is not measured again, except for its best: that is the first incumbent, so that the
    result has won against it side by side.

    Ctrl-C ends a run early, with the best so far. So does an error of the measurer or the database
    (see `Result.error`). An exception of a strategy or an observer is raised, with a note of what
    was measured and stored until then.
    """
    require_function(func)
    require_target(target, "tune")
    require_budget(budget)
    require_database(database, "tune")
    require_part(space, "sketches", "space", "ts.SketchSpace()", "space/spaces.py")
    require_part(strategy, "start", "strategy", "ts.Evolution()", "search/protocol.py")
    require_part(measurer, "open", "measurer", "ts.LocalMeasurer()", "measure/protocol.py")
    require_seed(seed)
    require_observers(observers)
    task = Task(func, cpu() if target is None else target)
    run = Run(task, budget, database, [*observers] if quiet else [Terminal(), *observers])
    try:
        if not run.spent:
            _measure(run, space or SketchSpace(), strategy or Evolution(), measurer, seed)
    except KeyboardInterrupt:
        run.interrupted = True
        if not run.rescue():
            raise
    except (MeasureError, RecordsError) as error:
        run.error = error
        if not run.rescue():
            raise
        warnings.warn(f"tuning of {func.name} ended early: {error}", stacklevel=2)
    except BaseException as error:  # of a strategy, a space, a cost model or an observer
        run.rescue()
        if run.trials:
            error.add_note(run.account())
        raise
    return run.result()


def _measure(
    run: Run, space: Space, strategy: Strategy, measurer: Measurer | None, seed: int
) -> None:
    # Opened first: its processes start while sketches are derived.
    with (measurer or LocalMeasurer()).open(run.task) as measuring:
        if isinstance(measuring, Reporting):
            measuring.report_to(run.hear)
        sketches = require_sketches(space.sketches(run.task), run.task, type(space).__name__)
        search = strategy.start(run.task, sketches, np.random.default_rng(seed))
        require_search(search, strategy)
        search.tell(run.known)
        run.restore(search)
        _spend(run, search, measuring)


def _spend(run: Run, search: Search, measuring: Measuring) -> None:
    """The search is asked for the next batch while the present one is measured, so that it is told
    of each one batch late. It ends when the budget is spent, or the space; but one kernel is better
    than none, however long it took to think of it.
    """
    batch: list[Candidate] = []
    while (known := run.to_defend()) is not None:
        _measure_batch(run, search, measuring, [known], batch, 0 if batch else run.batch())
    batch = batch or _ask(run, search, run.batch())
    while batch:
        following: list[Candidate] = []
        _measure_batch(run, search, measuring, batch, following, run.batch(len(batch)))
        if run.spent:
            break
        batch = following or _ask(run, search, run.batch())  # time may be left after all


def _measure_batch(
    run: Run, search: Search, measuring: Measuring, batch: list[Candidate],
    following: list[Candidate], n: int,
) -> None:  # fmt: skip
    """Measures, stores, and then tells; meanwhile up to n more are put into `following`."""
    upcoming = partial(_ask, run, search, n, following)
    measured = measuring.measure(batch, upcoming, run.until)
    run.end_batch(measured, measuring.best(run.task) if isinstance(measuring, Judging) else None)
    search.tell(measured)
    run.keep(search)
    run.report(tuple(measured))


def _ask(run: Run, search: Search, n: int, to: list[Candidate] | None = None) -> list[Candidate]:
    """Up to n candidates, which are also put into `to`."""
    if not n:
        return []
    start = time.monotonic()
    found = search.ask(n)
    require_candidates(found, search)
    run.asked(time.monotonic() - start)
    if to is not None:
        to += found
    return found
