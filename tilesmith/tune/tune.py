"""Spend a budget on one task: ask the strategy, measure, tell, record, until it is spent. What was
measured is in the database after every batch, so that an interrupted run loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tilesmith.base.errors import TuneError
from tilesmith.base.target import Target, cpu
from tilesmith.ir.function import Function
from tilesmith.measure.local import LocalMeasurer
from tilesmith.measure.protocol import Measurer, Measuring
from tilesmith.records.database import Database
from tilesmith.runtime.build import build
from tilesmith.runtime.kernel import Kernel
from tilesmith.search.evolution import Evolution
from tilesmith.search.protocol import Search, Strategy
from tilesmith.space.spaces import SketchSpace, Space
from tilesmith.task.task import Budget, Candidate, Task
from tilesmith.tune.events import Observer
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
    trials and is never measured again.
    """
    if not isinstance(func, Function):
        raise TuneError(f"tune takes what ts.function made, not a {type(func).__name__}")
    func.require_closed("ts.tune", TuneError)
    if budget.trials is None and budget.seconds is None:
        raise TuneError("a budget without trials and without seconds never ends; give one of them")
    task = Task(func, cpu() if target is None else target)
    run = Run(task, budget, database, [*observers] if quiet else [Terminal(), *observers])
    if not run.spent:
        # Opened first: its processes start while sketches are derived.
        with (measurer or LocalMeasurer()).open(task) as measuring:
            sketches = (space or SketchSpace()).sketches(task)
            search = (strategy or Evolution()).start(task, sketches, np.random.default_rng(seed))
            search.tell(run.known)
            run.restore(search)
            try:
                _spend(run, search, measuring)
            except KeyboardInterrupt:
                if run.best is None:
                    raise
    return run.result()


def _spend(run: Run, search: Search, measuring: Measuring) -> None:
    """The search is asked for the next batch while the present one is measured, so that it is told
    of each one batch late. It ends when the budget is spent, or the space; but one kernel is better
    than none, however long it took to think of it.
    """
    batch = _ask(run, search, run.batch())
    while batch:
        following: list[Candidate] = []
        upcoming = partial(_ask, run, search, run.batch(len(batch)), following)
        measured = measuring.measure(batch, upcoming, run.until)
        search.tell(measured)
        run.add(measured)
        run.keep(search)
        if run.spent:
            break
        batch = following or _ask(run, search, run.batch())  # time may be left after all


def _ask(run: Run, search: Search, n: int, to: list[Candidate] | None = None) -> list[Candidate]:
    """Up to n candidates, which are also put into `to`."""
    if not n:
        return []
    start = time.monotonic()
    found = search.ask(n)
    run.asked(time.monotonic() - start)
    if to is not None:
        to += found
    return found


def best_kernel(
    what: Any, target: Target | None = None, *, database: Database | None = None
) -> Kernel:
    """A kernel of a Function or a Schedule. With a database, the best one it knows of a Function;
    without a record, the schedule that the analytic score likes best.
    """
    if database is None or not isinstance(what, Function):
        return build(what, target)
    task = Task(what, cpu() if target is None else target)
    best = database.best(task)
    if best is not None:
        return build(best.candidate.trace.apply(what), task.target)
    search = Evolution(epsilon=0).start(
        task, SketchSpace().sketches(task), np.random.default_rng(0)
    )
    for c in search.ask(1):
        return build(c.trace.apply(what), task.target)
    return build(what, task.target)
