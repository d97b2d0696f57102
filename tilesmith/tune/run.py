"""The state of a tuning run: measurements in; what is known, what was spent, how many to ask for
next, and the result out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite

from tilesmith.base.errors import TilesmithError, TuneError
from tilesmith.base.interrupts import whole
from tilesmith.records.database import Database
from tilesmith.runtime.build import build
from tilesmith.runtime.kernel import Kernel
from tilesmith.search.protocol import Resumable, Search
from tilesmith.task.task import Budget, Candidate, Measurement, Task, trust
from tilesmith.tune.events import Observer, Progress

# Small batches at first, for an early kernel and because there is much to learn; larger ones later,
# so that what a search costs is shared by many. They depend on the number of trials alone: with the
# same measurements, the same seed proposes the same candidates.
_BATCHES = ((0, 4), (4, 8), (12, 16), (44, 32), (140, 64), (460, 128))

_STATE = "search"  # its name in the database
_MAX_DEFENDED = 3  # known candidates that are measured again until one of them still works


@dataclass(frozen=True)
class Result:
    """What a run found. `bests` are the best ones in turn, each with the seconds and the trials
    after which it was found. A run that was `interrupted`, or ended by an `error` of the measurer
    or the database, has what was found until then.
    """

    task: Task
    best: Measurement
    trials: int
    failures: dict[str, tuple[int, str]]  # by kind: how many, and the first text
    bests: tuple[tuple[float, int, Measurement], ...]
    seconds: float
    interrupted: bool = False
    error: TilesmithError | None = None

    def __repr__(self) -> str:
        failed = sum(count for count, _ in self.failures.values())
        said = [
            f"{self.task.func.name} for {self.task.target.model or self.task.target.cpu}",
            f"best {self.best.cost * 1e6:.4g} us",
            f"{self.trials} trials ({failed} failed) in {self.seconds:.1f} s",
        ]
        if self.interrupted:
            said.append("interrupted")
        if self.error is not None:
            said.append(f"ended by {type(self.error).__name__}: {self.error}")
        return f"<Result {', '.join(said)}>"

    @cached_property
    def kernel(self) -> Kernel:
        return build(self.best.candidate.trace.apply(self.task.func), self.task.target)

    @property
    def gflops(self) -> float:
        return self.task.func.flops / self.best.cost / 1e9

    @property
    def curve(self) -> tuple[tuple[float, int, float], ...]:
        """(seconds, trials, best cost) at every improvement. All costs are at the speed that the
        machine had when the best was measured; a best of another scale is no point of the curve.
        """
        speed = self.best.cost / self.best.normal_cost
        return tuple(
            (seconds, trials, m.normal_cost * speed)
            for seconds, trials, m in self.bests
            if m.is_normal is self.best.is_normal
        )

    @property
    def near(self) -> float:
        """Seconds until the best was within a tenth of what it is now; 0 if records had it."""
        curve = self.curve
        return next(seconds for seconds, _, cost in curve if cost <= 1.1 * curve[-1][2])


class Run:
    """Whatever is measured is in the database before anybody is told of it. What could not be
    stored yet is tried again.
    """

    def __init__(
        self, task: Task, budget: Budget, database: Database | None, watchers: Sequence[Observer]
    ) -> None:
        self.task, self.budget, self.database = task, budget, database
        self.watchers = watchers
        self.start = time.monotonic()
        self.known = database.of(task) if database is not None else []
        self.num_known = len({m.candidate.key for m in self.known})
        self.trials = 0
        self.failures: dict[str, tuple[int, str]] = {}
        self.best: Measurement | None = None
        self.bests: list[tuple[float, int, Measurement]] = []
        self.interrupted = False
        self.error: TilesmithError | None = None
        self._asked = (inf, inf)  # seconds that the latest two questions to the search took
        self._first = 0.0  # when the first batch was in: what came before is not a rate
        self._before = 0  # the trials of that batch
        self._heard: dict[str, Measurement] = {}  # of the present batch, by candidate
        self._unsaved: list[Measurement] = []
        self._good: dict[str, Measurement] = {}  # what ran and has not failed later, by candidate
        self._defended: set[str] = set()  # the known candidates that were measured again
        self._incumbent = False  # whether one of them still works
        for m in self.known:
            self._count(m)
        self._rivals = sorted(self._good.values(), key=trust)
        self.settle()

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
        if b.trials is not None and self.trials + self.num_known >= b.trials:
            return True
        if b.patience is not None and self._in_vain >= b.patience:
            return True
        return b.seconds is not None and self.seconds >= b.seconds

    @property
    def _in_vain(self) -> int:
        """Trials since the last better one."""
        return self.trials - (self.bests[-1][1] if self.bests else 0)

    def batch(self, under_way: int = 0) -> int:
        """How many to ask for next, while so many are being measured; 0 when those are the last."""
        have = self.trials + under_way
        n = max(size for least, size in _BATCHES if have >= least)
        if self.budget.trials is not None:
            n = min(n, self.budget.trials - have - self.num_known)
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
            state = search.state()
            with whole():
                self.database.save_state(self.task, _STATE, state)

    def restore(self, search: Search) -> None:
        if self.database is not None and isinstance(search, Resumable):
            with whole():
                state = self.database.load_state(self.task, _STATE)
            if state is not None:
                search.resume(state)

    def to_defend(self) -> Candidate | None:
        """The best of the database, which is measured again at the start: as the incumbent of this
        run, so that whatever is called best afterwards has won against it, side by side. If it does
        not work any more, the next one; None when there is an incumbent, or no more to try.
        """
        if self._incumbent or len(self._defended) >= _MAX_DEFENDED:
            return None
        for m in self._rivals:
            if m.candidate.key not in self._defended:
                self._defended.add(m.candidate.key)
                return m.candidate
        return None

    def hear(self, measured: Sequence[Measurement]) -> None:
        """Stores them, and counts those that are new in the present batch."""
        fresh = [m for m in measured if self._heard.get(m.candidate.key) != m]
        self._heard.update({m.candidate.key: m for m in fresh})
        if self.database is not None:
            self._unsaved += fresh
        for m in fresh:
            again = m.candidate.key in self._defended
            self.trials += not again
            self._count(m)
            if again and isfinite(m.normal_cost) and not self._incumbent:
                self._incumbent = True
                self._renew(m)
        self.save()

    def end_batch(self, measured: Sequence[Measurement], best: Measurement | None) -> None:
        """All of a batch, and the best of all by the measurer, if it can tell."""
        self.hear(measured)
        if best is None:
            self.settle()
            good = [m for m in self._heard.values() if m.candidate.key in self._good]
            best = min([*good, *([self.best] if self.best else [])], key=trust, default=None)
        if best is not None and (self.best is None or self.best.candidate != best.candidate):
            self._improve(best)
        if not self._before and self.trials:
            self._first, self._before = self.seconds, self.trials
        self._heard = {}

    def settle(self) -> None:
        """One that has run is the best, if there is any."""
        if self.best is None and self._good:
            self._improve(min(self._good.values(), key=trust))

    def save(self) -> None:
        """What has been measured and is not in the database yet. A row that it does not take keeps
        no other one out.
        """
        if self.database is None or not self._unsaved:
            return
        with whole():  # a connection that is interrupted may keep the database locked
            try:
                self.database.add(self._unsaved)
                self._unsaved = []
                return
            except TilesmithError:
                if len(self._unsaved) == 1:
                    raise
            error: TilesmithError | None = None
            refused = []
            for m in self._unsaved:
                try:
                    self.database.add([m])
                except TilesmithError as e:
                    error = error or e
                    refused.append(m)
            self._unsaved = refused
            if error is not None:
                raise error

    def rescue(self) -> bool:
        """After an error: what can be stored is stored. Whether there is a result."""
        try:
            self.save()
        except TilesmithError as error:
            self.error = self.error or error
        self.settle()
        return self.best is not None

    def account(self) -> str:
        """What there is when an error ends the run."""
        said = f"tilesmith: {self.trials} candidates had been measured"
        if self.best is not None:
            said += f", the best with {self.best.cost * 1e6:.4g} us"
        if self.database is None:
            return f"{said}; without a database they are lost"
        lost = f", but for {len(self._unsaved)}" if self._unsaved else ""
        return f"{said}; they are in the database{lost}"

    def _count(self, m: Measurement) -> None:
        key = m.candidate.key
        if m.failure is not None:
            count, text = self.failures.get(m.failure.kind, (0, m.failure.text))
            self.failures[m.failure.kind] = (count + 1, text)
            # What was measured of it before does not count any more.
            self._good.pop(key, None)
            if self.best is not None and self.best.candidate.key == key:
                self.best = None
                self.bests = [b for b in self.bests if b[2].candidate.key != key]
        elif isfinite(m.normal_cost) and _reliable(m) >= _reliable(self._good.get(key, m)):
            self._good[key] = m

    def _renew(self, m: Measurement) -> None:
        """The best known one was measured again: from now on it takes what this says, unless it
        was known more reliably before.
        """
        old = self.best
        if old is None or old.candidate != m.candidate or _reliable(m) >= _reliable(old):
            self.bests = []
            self._improve(m)

    def _improve(self, m: Measurement) -> None:
        self.best = m
        self.bests.append((self.seconds if self.trials else 0.0, self.trials, m))

    def report(self, latest: tuple[Measurement, ...], finished: bool = False) -> None:
        failures = {kind: count for kind, (count, _) in self.failures.items()}
        progress = Progress(
            self.task, self.budget, self.seconds, self.trials, self.num_known, failures,
            self.best, latest, finished,
        )  # fmt: skip
        for watch in self.watchers:
            watch(progress)

    def result(self) -> Result:
        if self.best is None:
            said = "; ".join(f"{kind}: {text}" for kind, (_, text) in self.failures.items())
            why = said or "none was proposed, or the time was too short"
            raise TuneError(f"no candidate of {self.task.func.name} could be measured: {why}")
        self.report((), finished=True)
        return Result(
            self.task, self.best, self.trials, dict(self.failures), tuple(self.bests),
            self.seconds, self.interrupted, self.error,
        )  # fmt: skip


def _reliable(m: Measurement) -> tuple[bool, bool]:
    """Greater for what is better known, whatever its time."""
    return m.confirmed, not m.contended
