"""Spend a budget on one task: ask the strategy, measure, tell, record, until it is spent. What was
measured is in the database after every batch, so that an interrupted run loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilesmith.base.errors import TuneError
from tilesmith.base.target import Target, cpu
from tilesmith.ir.function import Function
from tilesmith.measure.local import LocalMeasurer
from tilesmith.measure.protocol import Measurer
from tilesmith.records.database import Database
from tilesmith.runtime.build import build
from tilesmith.runtime.kernel import Kernel
from tilesmith.search.evolution import Evolution
from tilesmith.search.protocol import Strategy
from tilesmith.space.spaces import SketchSpace, Space
from tilesmith.task.task import Budget, Measurement, Task
from tilesmith.tune.events import Observer, Progress
from tilesmith.tune.terminal import Terminal

_DEFAULT = Budget(seconds=60)
_BATCH = 16


@dataclass(frozen=True)
class Result:
    """What a run found. `curve` is (seconds, trials, best cost) at every improvement."""

    task: Task
    best: Measurement
    trials: int
    failures: dict[str, tuple[int, str]]  # by kind: how many, and the first text
    curve: tuple[tuple[float, int, float], ...]
    seconds: float

    @cached_property
    def kernel(self) -> Kernel:
        return build(self.best.candidate.trace.apply(self.task.func), self.task.target)

    @property
    def gflops(self) -> float:
        return self.task.func.flops / self.best.cost / 1e9


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
    if budget.trials is None and budget.seconds is None:
        raise TuneError("a budget without trials and without seconds never ends; give one of them")
    task = Task(func, cpu() if target is None else target)
    watchers = [*observers] if quiet else [Terminal(), *observers]
    run = _Run(task, budget, database, watchers)
    search = (strategy or Evolution()).start(
        task, (space or SketchSpace()).sketches(task), np.random.default_rng(seed)
    )
    search.tell(run.known)
    if not run.spent:
        with (measurer or LocalMeasurer()).open(task) as measuring:
            try:
                while not run.spent:
                    candidates = search.ask(run.batch)
                    if not candidates:
                        break  # the space is exhausted
                    measured = measuring.measure(candidates)
                    search.tell(measured)
                    run.add(measured)
            except KeyboardInterrupt:
                if run.best is None:
                    raise
    return run.result()


class _Run:
    """The state of a run: what is known, what was spent."""

    def __init__(
        self, task: Task, budget: Budget, database: Database | None, watchers: Sequence[Observer]
    ) -> None:
        self.task, self.budget, self.database = task, budget, database
        self.watchers = watchers
        self.known = database.of(task) if database is not None else []
        self.start = time.monotonic()
        self.trials = 0
        self.failures: dict[str, tuple[int, str]] = {}
        self.best: Measurement | None = None
        self.curve: list[tuple[float, int, float]] = []
        for m in self.known:
            self._improve(m)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    @property
    def spent(self) -> bool:
        b = self.budget
        if b.trials is not None and self.trials + len(self.known) >= b.trials:
            return True
        return b.seconds is not None and self.seconds >= b.seconds

    @property
    def batch(self) -> int:
        """Small at first, for an early kernel, and small enough to end in time."""
        n = 8 if self.trials == 0 else _BATCH
        if self.budget.trials is not None:
            n = min(n, self.budget.trials - self.trials - len(self.known))
        if self.budget.seconds is not None and self.trials:
            rate = self.trials / max(self.seconds, 1e-3)
            n = min(n, int(rate * (self.budget.seconds - self.seconds)))
        return max(1, n)

    def _improve(self, m: Measurement) -> None:
        if m.failure is not None:
            count, text = self.failures.get(m.failure.kind, (0, m.failure.text))
            self.failures[m.failure.kind] = (count + 1, text)
        elif m.seconds and (self.best is None or _better(m, self.best)):
            self.best = m
            self.curve.append((self.seconds, self.trials, m.cost))

    def add(self, measured: Sequence[Measurement]) -> None:
        if self.database is not None:
            self.database.add(measured)
        for m in measured:
            self.trials += 1
            self._improve(m)
        self._report(tuple(measured))

    def _report(self, latest: tuple[Measurement, ...], finished: bool = False) -> None:
        failed = sum(count for count, _ in self.failures.values())
        progress = Progress(
            self.task, self.budget, self.seconds, self.trials, len(self.known), failed, self.best,
            latest, finished,
        )  # fmt: skip
        for watch in self.watchers:
            watch(progress)

    def result(self) -> Result:
        if self.best is None:
            said = "; ".join(f"{kind}: {text}" for kind, (_, text) in self.failures.items())
            why = said or "none was proposed, or the time was too short"
            raise TuneError(f"no candidate of {self.task.func.name} could be measured: {why}")
        self._report((), finished=True)
        return Result(
            self.task, self.best, self.trials, dict(self.failures), tuple(self.curve), self.seconds
        )


def _better(a: Measurement, b: Measurement) -> bool:
    """What was confirmed is believed before what was not, and that before what was contended; the
    faster one otherwise.
    """
    return (not a.confirmed, a.contended, a.cost) < (not b.confirmed, b.contended, b.cost)


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
