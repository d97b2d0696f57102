"""What one task's tuning run knows: a Clock says what is spent and how large the next batch is, the
Incumbent which measurement is the best, and the Ledger keeps what was measured and stores it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf, isfinite

from tilesmith.base.errors import TilesmithError, TuneError
from tilesmith.base.target import Target
from tilesmith.measure.protocol import Winner
from tilesmith.records.database import Database, Followed
from tilesmith.records.pack import WithPacks
from tilesmith.search.protocol import Resumable, Search
from tilesmith.task.task import (
    Budget,
    Candidate,
    Curve,
    Measurement,
    Moment,
    Ranking,
    Task,
    TuningRun,
    curve_of,
    is_as_reliable,
    trust,
)

# (trials so far, batch size). Batches are small at first, for an early kernel and because each
# measurement teaches much, and larger later, to share the cost of a search among many candidates.
# The size depends on the number of trials only: with the same measurements, the same seed proposes
# the same candidates.
_BATCHES: tuple[tuple[int, int], ...] = ((0, 4), (4, 8), (12, 16), (44, 32), (140, 64), (460, 128))
# On a GPU all cores compile while others are measured: smaller batches would leave them idle.
_LEAST_GPU_BATCH = 16
_GPU_BATCHES: tuple[tuple[int, int], ...] = ((0, _LEAST_GPU_BATCH), (16, 32), (48, 64), (176, 128))

# How many times as many candidates are built for a GPU as would be measured in the time left: many
# cores build, which costs little, and the rate grows during a run.
_GPU_HASTE = 1.5

_LOOK_SECONDS = 0.2  # between two looks for what other tuners have stored
_SEARCH_STATE = "search"  # the name of the search's state in the database
_MAX_EARLIER = 3  # candidates of packs, and of other code generators, that are measured first
_MAX_DEFENDERS = 3  # known candidates that are measured again until one of them still works


def least_batch(target: Target) -> int:
    """The size of the smallest batch, if nothing limits it."""
    return _BATCHES[0][1] if target.kind == "cpu" else _LEAST_GPU_BATCH


class Clock:
    """What a run has spent of its budget. `known` candidates of the database count towards it."""

    def __init__(self, budget: Budget, target: Target, batch_size: int | None = None) -> None:
        self.budget, self.batch_size = budget, batch_size
        batches, self._haste = (
            (_BATCHES, 1.0) if target.kind == "cpu" else (_GPU_BATCHES, _GPU_HASTE)
        )
        self._batches = batches if batch_size is None else ((0, batch_size),)
        self.start = time.monotonic()
        self.deadline = inf  # of the present step, on time.monotonic(); besides the budget's
        self.trials = self.known = 0
        self.best_trial = 0  # number of the trial that measured the best
        self._busy = 0.0  # seconds of the steps so far
        self._step_start: float | None = None
        self._ask_seconds = (inf, inf)  # durations of the latest two calls of Search.ask
        # The time and the trials of the first batch, which are excluded from the rate, because they
        # include opening the measurer and deriving sketches.
        self._first_seconds, self._first_trials = 0.0, 0

    @property
    def seconds(self) -> float:
        """Wall-clock seconds since the start."""
        return time.monotonic() - self.start

    @property
    def busy_seconds(self) -> float:
        """Wall-clock seconds in steps: less than `seconds` if other tasks have steps in between."""
        start = self._step_start
        return self._busy + (0.0 if start is None else time.monotonic() - start)

    def begin_step(self) -> None:
        self._step_start = time.monotonic()

    def end_step(self) -> None:
        self._busy, self._step_start = self.busy_seconds, None

    def end_batch(self) -> None:
        if not self._first_trials and self.trials:
            self._first_seconds, self._first_trials = self.busy_seconds, self.trials

    def note_ask(self, seconds: float) -> None:
        self._ask_seconds = (self._ask_seconds[1], seconds)

    @property
    def ask_seconds(self) -> float:
        """The expected duration of the next Search.ask: the shorter of the last two, because the
        first fit of a model loads a library.
        """
        return min(self._ask_seconds)

    @property
    def until(self) -> float | None:
        """When measuring must end, on time.monotonic()."""
        seconds = inf if self.budget.seconds is None else self.budget.seconds
        until = min(self.start + seconds, self.deadline)
        return None if until == inf else until

    @property
    def is_spent(self) -> bool:
        """Whether the budget is spent."""
        b = self.budget
        if b.trials is not None and self.trials + self.known >= b.trials:
            return True
        if b.patience is not None and self.trials - self.best_trial >= b.patience:
            return True
        return b.seconds is not None and self.seconds >= b.seconds

    @property
    def room(self) -> int | None:
        """The trials that are left of the budget; None if there is no limit."""
        trials = self.budget.trials
        return None if trials is None else max(0, trials - self.trials - self.known)

    def next_size(self, under_way: int = 0) -> int:
        """The number of candidates to ask for, while `under_way` are being measured; 0 if those are
        the last ones.
        """
        trials = self.trials + under_way
        n = max(size for least, size in self._batches if trials >= least)
        if self.budget.trials is not None:
            n = min(n, self.budget.trials - trials - self.known)
        if self.budget.patience is not None:
            n = min(n, self.budget.patience - (trials - self.best_trial))
        if self.until is not None and self.trials > self._first_trials:
            busy = max(self.busy_seconds - self._first_seconds, 1e-3)
            rate = self._haste * (self.trials - self._first_trials) / busy
            left = self.until - time.monotonic()
            # A search that would end after the deadline is not started.
            n = min(n, int(1 + rate * left) - under_way) if left > 1.5 * self.ask_seconds else 0
        return max(0, n)


class Incumbent:
    """The best measurement of a task, and the one place that decides which it is: the winner of the
    measurer, which compares candidates side by side, or else the first by `trust`.

    The best of the database is measured again at the start. So it is the incumbent of this run, and
    whatever is the best afterwards has won against it. The same goes for what is better in another
    tuner's records.
    """

    def __init__(self, known: Sequence[Measurement] = ()) -> None:
        self._ranking = Ranking(known)
        self.best = self._ranking.best
        self._rivals = self._ranking.ranked  # known candidates, to be measured again
        self._defenders: set[str] = set()  # those that were
        self._tries = 0  # how many of them were tried in vain
        self._has_defender = False  # whether one of them still works
        self._challenger: Measurement | None = None  # another tuner's best, not measured here yet
        self._challenged = -1  # the trials when such a one was last measured

    def next_defender(self) -> Candidate | None:
        """A known candidate to be measured again; if it no longer works, the next best. None when
        there is one that works, or none is left to try.
        """
        if self._has_defender or self._tries >= _MAX_DEFENDERS:
            return None
        for m in self._rivals:
            if m.candidate.key not in self._defenders:
                self._tries += 1
                self._defenders.add(m.candidate.key)
                return m.candidate
        return None

    def is_defender(self, candidate: Candidate) -> bool:
        return candidate.key in self._defenders

    def add(self, m: Measurement, trials: int) -> None:
        """A measurement, after so many trials of this run."""
        self._ranking.add(m)
        if m.failure is not None and self.best is not None and self.best.candidate == m.candidate:
            self.best = None
        if self.is_defender(m.candidate) and isfinite(m.normal_cost) and not self._has_defender:
            self._has_defender = True
            self._defend(m, trials)

    def _defend(self, m: Measurement, trials: int) -> None:
        """The best known candidate was measured again: this measurement replaces the recorded one,
        unless that is more reliable.
        """
        old = self.best
        if old is not None and trials and old.candidate != m.candidate:
            if trust(m) < trust(old):  # it is another tuner's best
                self.best = m
        elif old is None or old.candidate != m.candidate or is_as_reliable(m, old):
            self.best = m

    def challenge(self, others: Sequence[Measurement], trials: int) -> None:
        """What other tuners have stored, which is not measured again except for what is better than
        the best of this run.
        """
        for m in others:
            self.add(m, trials)
        timed = [m for m in (*others, self._challenger) if m and isfinite(m.normal_cost)]
        self._challenger = min(timed, key=trust, default=None)
        # Not twice in a row: a run among many others must also measure candidates of its own.
        if self._challenger and self._is_beaten and trials > self._challenged:
            self._rivals, self._has_defender, self._tries = [self._challenger], False, 0
            self._challenger, self._challenged = None, trials

    @property
    def _is_beaten(self) -> bool:
        """Whether another tuner's best, not measured here yet, is better than this run's."""
        new, best = self._challenger, self.best
        return new is not None and (best is None or trust(new) < trust(best))

    def settle(self, batch: Iterable[Measurement] = (), winner: Winner | None = None) -> None:
        """At the end of a batch, or of a run that was ended."""
        own = {m.candidate.key: m for m in batch}
        if winner is not None:
            best: Measurement | None = winner.measurement
        else:
            first = self.best or self._ranking.best
            valid = [m for m in own.values() if m in self._ranking]
            best = min([*valid, *([first] if first else [])], key=trust, default=None)
        if best is not None and (self.best is None or self.best.candidate != best.candidate):
            # The measurer's winner equals one of our measurements, except for its moment.
            moment = own[best.candidate.key].moment if best.candidate.key in own else best.moment
            self.best = replace(best, moment=moment)

    def end(self) -> Measurement | None:
        """The best in the end: another tuner's, if the budget ended before it could be measured."""
        if self._is_beaten:
            self.best = self._challenger
        return self.best


class Ledger:
    """Every measurement is stored in the database before the search or an observer sees it. What
    could not be stored is tried again with the next ones.
    """

    def __init__(self, task: Task, run: TuningRun, database: Database | None = None) -> None:
        self.task, self.run, self.database = task, run, database
        self._mark = 0  # of what other tuners have stored
        self._looked = self._saved = time.monotonic()  # when that was looked for, and saved, last
        self._others: set[str] = set()  # candidates that they have measured meanwhile
        if isinstance(database, Followed):
            _, self._mark = database.since(task, None)
        self.known = database.of(task) if database is not None else []
        self.measured: list[Measurement] = []  # by this run, in order
        self.failures: dict[str, tuple[int, str]] = {}  # of all of them
        self.error: TilesmithError | None = None
        self._unsaved: list[Measurement] = []
        for m in self.known:
            self._count(m)
        self.earlier = self._elsewhere() if not self.known else []
        self.near: list[Candidate] = []  # of packs, for other sizes
        if isinstance(database, WithPacks) and not self.known and not self.earlier:
            self.near = [p.candidate for p in database.near(task)]

    def _elsewhere(self) -> list[Candidate]:
        """Good candidates, whose times are not valid here: the best of packs, and of other versions
        of the code generator.
        """
        if self.database is None:
            return []
        packs = self.database.packed(self.task) if isinstance(self.database, WithPacks) else []
        found = [p.candidate for p in packs[:_MAX_EARLIER]]
        found += self.database.earlier(self.task)[:_MAX_EARLIER]
        return list(dict.fromkeys(found))

    def add(self, m: Measurement, seconds: float, trial: int) -> Measurement:
        """The measurement, with its moment in this run. It is stored with the next group."""
        m = replace(m, moment=Moment(self.run, seconds, trial))
        self.measured.append(m)
        self._count(m)
        if self.database is not None:
            self._unsaved.append(m)
        return m

    def _count(self, m: Measurement) -> None:
        if m.failure is not None:
            count, text = self.failures.get(m.failure.kind, (0, m.failure.text))
            self.failures[m.failure.kind] = (count + 1, text)

    def save(self, every: float = 0.0) -> None:
        """Stores what is not in the database yet, if so many seconds have passed since the last
        time. A row that the database refuses does not keep the others from being stored.
        """
        now = time.monotonic()
        if self.database is None or not self._unsaved or now - self._saved < every:
            return
        self._saved = now
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

    def rescue(self) -> None:
        """After an error: stores what can be stored."""
        try:
            self.save()
        except TilesmithError as error:
            self.error = self.error or error

    def others(self) -> list[Measurement]:
        """What other tuners have stored of this task since the last call."""
        now = time.monotonic()
        if not isinstance(self.database, Followed) or now - self._looked < _LOOK_SECONDS:
            return []
        self._looked = now
        found, self._mark = self.database.since(self.task, self._mark, self.run.key)
        own = {m.candidate.key for m in (*self.known, *self.measured)} | self._others
        fresh = [m for m in found if m.candidate.key not in own]
        self._others.update(m.candidate.key for m in fresh)
        for m in fresh:
            self._count(m)
        return fresh

    def save_search(self, search: Search) -> None:
        """Stores the state of the search beside the records."""
        if self.database is not None and isinstance(search, Resumable):
            self.database.save_state(self.task, _SEARCH_STATE, search.state())

    def restore_search(self, search: Search) -> None:
        if self.database is not None and isinstance(search, Resumable):
            state = self.database.load_state(self.task, _SEARCH_STATE)
            if state is not None:
                search.resume(state)

    def curve(self, best: Measurement | None) -> Curve:
        """See `curve_of`. A best that is only in the database is a point at 0 s."""
        from_database: Curve = () if best is None else ((0.0, 0, best.cost),)
        return curve_of(self.measured) or from_database

    def summary(self, trials: int, best: Measurement | None) -> str:
        """A note for an error that ends the run: what was measured, and whether it is stored."""
        text = f"tilesmith: {trials} candidates had been measured"
        if best is not None:
            text += f", the best with {best.cost * 1e6:.4g} us"
        if self.database is None:
            return f"{text}; without a database they are lost"
        lost = f", but for {len(self._unsaved)}" if self._unsaved else ""
        return f"{text}; they are in the database{lost}"


def require_finite(budget: Budget) -> None:
    if budget.trials is None and budget.seconds is None:
        raise TuneError("a budget without trials and without seconds never ends; give one of them")
