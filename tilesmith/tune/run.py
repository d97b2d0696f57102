"""The state of a tuning run: measurements in; what is known, what was spent, how many to ask for
next, and the result out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from tilesmith.base.errors import TuneError
from tilesmith.records.database import Database
from tilesmith.runtime.build import build
from tilesmith.runtime.kernel import Kernel
from tilesmith.search.protocol import Resumable, Search
from tilesmith.task.task import Budget, Measurement, Task, trust
from tilesmith.tune.events import Observer, Progress

# Small batches at first, for an early kernel and because there is much to learn; larger ones later,
# so that what a search costs is shared by many. They depend on the number of trials alone: with the
# same measurements, the same seed proposes the same candidates.
_BATCHES = ((0, 4), (4, 8), (12, 16), (44, 32), (140, 64), (460, 128))

_STATE = "search"  # its name in the database


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

    @property
    def near(self) -> float:
        """Seconds until the best was within a tenth of what it is now; 0 if records had it."""
        return next(t for t, _, cost in self.curve if cost <= 1.1 * self.best.cost)


class Run:
    def __init__(
        self, task: Task, budget: Budget, database: Database | None, watchers: Sequence[Observer]
    ) -> None:
        self.task, self.budget, self.database = task, budget, database
        self.watchers = watchers
        self.start = time.monotonic()
        self.known = database.of(task) if database is not None else []
        self.trials = 0
        self.failures: dict[str, tuple[int, str]] = {}
        self.best: Measurement | None = None
        self.curve: list[tuple[float, int, float]] = []
        self._asked = (inf, inf)  # seconds that the latest two questions to the search took
        self._first = 0.0  # when the first batch was in: what came before is not a rate
        self._before = 0  # the trials of that batch
        for m in self.known:
            self._count(m)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    def asked(self, seconds: float) -> None:
        """A question to the search took so long."""
        self._asked = (self._asked[1], seconds)

    @property
    def searching(self) -> float:
        """What the next question should take: the first fit of a model, which loads a library, is
        not the rule.
        """
        return min(self._asked)

    @property
    def until(self) -> float | None:
        """When time is up, by time.monotonic()."""
        return None if self.budget.seconds is None else self.start + self.budget.seconds

    @property
    def spent(self) -> bool:
        b = self.budget
        if b.trials is not None and self.trials + len(self.known) >= b.trials:
            return True
        if b.patience is not None and self._in_vain >= b.patience:
            return True
        return b.seconds is not None and self.seconds >= b.seconds

    @property
    def _in_vain(self) -> int:
        """Trials since the last better one."""
        return self.trials - (self.curve[-1][1] if self.curve else 0)

    def batch(self, under_way: int = 0) -> int:
        """How many to ask for next, while so many are being measured; 0 when those are the last."""
        have = self.trials + under_way
        n = max(size for least, size in _BATCHES if have >= least)
        if self.budget.trials is not None:
            n = min(n, self.budget.trials - have - len(self.known))
        if self.budget.patience is not None:
            n = min(n, self.budget.patience - self._in_vain - under_way)
        if self.until is not None and self.trials > self._before:
            rate = (self.trials - self._before) / max(self.seconds - self._first, 1e-3)
            left = self.until - time.monotonic()
            # A question that would be answered when time is up is not asked: it is waited for.
            n = min(n, int(1 + rate * left) - under_way) if left > 1.5 * self.searching else 0
        return max(0, n)

    def keep(self, search: Search) -> None:
        """The state of the search, with the records."""
        if self.database is not None and isinstance(search, Resumable):
            self.database.save_state(self.task, _STATE, search.state())

    def restore(self, search: Search) -> None:
        if self.database is not None and isinstance(search, Resumable):
            state = self.database.load_state(self.task, _STATE)
            if state is not None:
                search.resume(state)

    def add(self, measured: Sequence[Measurement]) -> None:
        if self.database is not None:
            self.database.add(measured)
        if self.trials == 0:
            self._first, self._before = self.seconds, len(measured)
        for m in measured:
            self.trials += 1
            self._count(m)
        self._report(tuple(measured))

    def _count(self, m: Measurement) -> None:
        if m.failure is not None:
            count, text = self.failures.get(m.failure.kind, (0, m.failure.text))
            self.failures[m.failure.kind] = (count + 1, text)
        elif m.seconds and (self.best is None or trust(m) < trust(self.best)):
            self.best = m
            self.curve.append((self.seconds if self.trials else 0.0, self.trials, m.cost))

    def _report(self, latest: tuple[Measurement, ...], finished: bool = False) -> None:
        failures = {kind: count for kind, (count, _) in self.failures.items()}
        progress = Progress(
            self.task, self.budget, self.seconds, self.trials, len(self.known), failures,
            self.best, latest, finished,
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
