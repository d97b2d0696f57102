"""The state of one task's tuning run: the measurements, what was spent, the size of the next batch,
and the result.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite

from tilesmith.base.errors import TilesmithError, TuneError
from tilesmith.base.target import Target
from tilesmith.records.database import Database, Followed
from tilesmith.search.protocol import Resumable, Search
from tilesmith.task.task import (
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
from tilesmith.tune.progress import Observer, Progress
from tilesmith.tune.result import Result

# (trials so far, batch size). Batches are small at first, for an early kernel and because each
# measurement teaches much, and larger later, to share the cost of a search among many candidates.
# The size depends on the number of trials only: with the same measurements, the same seed proposes
# the same candidates.
_BATCHES = ((0, 4), (4, 8), (12, 16), (44, 32), (140, 64), (460, 128))
# On a GPU all cores compile while others are measured: smaller batches would leave them idle.
_LEAST_GPU_BATCH = 16
_GPU_BATCHES = ((0, _LEAST_GPU_BATCH), (16, 32), (48, 64), (176, 128))

# How many times as many candidates are built for a GPU as would be measured in the time left: many
# cores build, which costs little, and the rate grows during a run.
_GPU_HASTE = 1.5

_LOOK_SECONDS = 0.2  # between two looks for what other tuners have stored
_SEARCH_STATE = "search"  # the name of the search's state in the database
_MAX_EARLIER = 3  # candidates of other code generators that are measured first
_MAX_DEFENDERS = 3  # known candidates that are measured again until one of them still works


def least_batch(target: Target) -> int:
    """The size of the smallest batch, if nothing limits it."""
    return _BATCHES[0][1] if target.kind == "cpu" else _LEAST_GPU_BATCH


class RunState:
    """Every measurement is stored in the database before the search or an observer sees it. What
    could not be stored is tried again with the next ones.
    """

    def __init__(
        self,
        task: Task,
        run: TuningRun,
        database: Database | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.task, self.run, self.budget, self.database = task, run, run.budget, database
        self.observers = observers
        self.start = time.monotonic()
        self.deadline = inf  # of the present step, on time.monotonic(); besides the budget's
        self._busy = 0.0  # seconds of the steps so far
        self._step_start: float | None = None
        self._mark = 0  # of what other tuners have stored
        self._looked = self.start  # when that was looked for last
        self._others: set[str] = set()  # candidates that they have measured meanwhile
        if isinstance(database, Followed):
            _, self._mark = database.since(task, None)
        self.known = database.of(task) if database is not None else []
        self.num_known = len({m.candidate.key for m in self.known})
        self.trials = 0
        self.failures: dict[str, tuple[int, str]] = {}
        self.best: Measurement | None = None
        self.measured: list[Measurement] = []  # by this run, in order
        self.error: TilesmithError | None = None
        self._ask_seconds = (inf, inf)  # durations of the latest two calls of Search.ask
        # The time and the trials of the first batch, which are excluded from the rate, because they
        # include opening the measurer and deriving sketches.
        self._first_seconds, self._first_trials = 0.0, 0
        self._batch: dict[str, Measurement] = {}  # the present batch, by candidate
        self._unsaved: list[Measurement] = []
        self._ranking = Ranking()
        self._best_trial = 0  # number of the trial that measured the best
        self._defenders: set[str] = set()  # known candidates that were measured again
        self._challenger: Measurement | None = None  # another tuner's best, not measured here yet
        self._challenged = -1  # the trials when such a one was last measured
        self._tries = 0  # how many of them were tried in vain
        self._has_defender = False  # whether one of them still works
        for m in self.known:
            self._count(m)
        self._rivals = self._ranking.ranked
        # The best of other versions of the code generator are good candidates; their times are
        # not valid here.
        earlier = database.earlier(task) if database is not None and not self.known else []
        self._earlier = earlier[:_MAX_EARLIER]
        self.choose_best()

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
    def left(self) -> float | None:
        """The seconds until measuring must end."""
        return None if self.until is None else self.until - time.monotonic()

    @property
    def is_spent(self) -> bool:
        """Whether the budget is spent."""
        b = self.budget
        if b.trials is not None and self.trials + self.num_known >= b.trials:
            return True
        if b.patience is not None and self._trials_since_best >= b.patience:
            return True
        return b.seconds is not None and self.seconds >= b.seconds

    @property
    def room(self) -> int | None:
        """The trials that are left of the budget; None if there is no limit."""
        if self.budget.trials is None:
            return None
        return max(0, self.budget.trials - self.trials - self.num_known)

    @property
    def _trials_since_best(self) -> int:
        return self.trials - self._best_trial

    @property
    def curve(self) -> Curve:
        """See `curve_of`. A best that is only in the database is a point at 0 s."""
        from_database: Curve = () if self.best is None else ((0.0, 0, self.best.cost),)
        return curve_of(self.measured) or from_database

    def next_size(self, under_way: int = 0) -> int:
        """The number of candidates to ask for, while `under_way` are being measured; 0 if those are
        the last ones.
        """
        trials = self.trials + under_way
        batches = _BATCHES if self.task.target.kind == "cpu" else _GPU_BATCHES
        n = max(size for least, size in batches if trials >= least)
        if self.budget.trials is not None:
            n = min(n, self.budget.trials - trials - self.num_known)
        if self.budget.patience is not None:
            n = min(n, self.budget.patience - self._trials_since_best - under_way)
        if self.until is not None and self.trials > self._first_trials:
            rate = (self.trials - self._first_trials) / max(
                self.busy_seconds - self._first_seconds, 1e-3
            )
            left = self.until - time.monotonic()
            if self.task.target.kind != "cpu":
                rate *= _GPU_HASTE
            # A search that would end after the deadline is not started.
            n = min(n, int(1 + rate * left) - under_way) if left > 1.5 * self.ask_seconds else 0
        return max(0, n)

    def save_search(self, search: Search) -> None:
        """Stores the state of the search beside the records."""
        if self.database is not None and isinstance(search, Resumable):
            self.database.save_state(self.task, _SEARCH_STATE, search.state())

    def restore_search(self, search: Search) -> None:
        if self.database is not None and isinstance(search, Resumable):
            state = self.database.load_state(self.task, _SEARCH_STATE)
            if state is not None:
                search.resume(state)

    def next_defender(self) -> Candidate | None:
        """The best of the database, to be measured again at the start. It becomes the incumbent of
        this run, so that whatever is the best afterwards has won against it side by side. If it no
        longer works, the next best. None when there is an incumbent, or none is left to try.
        """
        if self._has_defender or self._tries >= _MAX_DEFENDERS:
            return None
        for m in self._rivals:
            if m.candidate.key not in self._defenders:
                self._tries += 1
                self._defenders.add(m.candidate.key)
                return m.candidate
        return None

    def learn_of_others(self) -> list[Measurement]:
        """What other tuners have stored of this task since the last call. It counts as known: it
        is not measured again, except for what is better than the best of this run, which is to be
        measured beside it.
        """
        now = time.monotonic()
        if not isinstance(self.database, Followed) or now - self._looked < _LOOK_SECONDS:
            return []
        self._looked = now
        found, self._mark = self.database.since(self.task, self._mark, self.run.key)
        own = {m.candidate.key for m in (*self.known, *self.measured)}
        fresh = [m for m in found if m.candidate.key not in own | self._others]
        self._others.update(m.candidate.key for m in fresh)
        self.num_known += len({m.candidate.key for m in fresh})
        for m in fresh:
            self._count(m)
        timed = [m for m in (*fresh, self._challenger) if m and isfinite(m.normal_cost)]
        self._challenger = min(timed, key=trust, default=None)
        # Not twice in a row: a run among many others must also measure candidates of its own.
        if self._challenger and self._is_beaten and self.trials > self._challenged:
            self._rivals, self._has_defender, self._tries = [self._challenger], False, 0
            self._challenger, self._challenged = None, self.trials
        return fresh

    @property
    def _is_beaten(self) -> bool:
        """Whether another tuner's best, not measured here yet, is better than this run's."""
        new, best = self._challenger, self.best
        return new is not None and (best is None or trust(new) < trust(best))

    def take_earlier(self) -> list[Candidate]:
        """The best candidates of other versions of the code generator, if this version has no
        record of the task: once, as the first batch.
        """
        candidates, self._earlier = self._earlier[: self.next_size()], []
        return candidates

    def add(self, measured: Sequence[Measurement]) -> None:
        """Counts and stores those that are new in the present batch."""
        seconds = self.seconds
        for fresh in [m for m in measured if self._batch.get(m.candidate.key) != m]:
            again = fresh.candidate.key in self._defenders
            self.trials += not again
            m = replace(fresh, moment=Moment(self.run, seconds, 0 if again else self.trials))
            self._batch[m.candidate.key] = m
            self.measured.append(m)
            if self.database is not None:
                self._unsaved.append(m)
            self._count(m)
            if again and isfinite(m.normal_cost) and not self._has_defender:
                self._has_defender = True
                self._defend(m)
        self.save()

    def end_batch(self, measured: Sequence[Measurement], incumbent: Measurement | None) -> None:
        """`measured` is the whole batch; `incumbent` is the measurer's, if it compares candidates
        side by side. Otherwise the best is the first by `trust`.
        """
        self.add(measured)
        best = incumbent
        if best is None:
            self.choose_best()
            valid = [m for m in self._batch.values() if m in self._ranking]
            best = min([*valid, *([self.best] if self.best else [])], key=trust, default=None)
        if best is not None and (self.best is None or self.best.candidate != best.candidate):
            self._set_best(best)
        if not self._first_trials and self.trials:
            self._first_seconds, self._first_trials = self.busy_seconds, self.trials
        self._batch = {}

    def choose_best(self) -> None:
        """If there is no best yet, takes the first of the ranking."""
        if self.best is None and (best := self._ranking.best) is not None:
            self._set_best(best)

    def save(self) -> None:
        """Stores what is not in the database yet. A row that the database refuses does not keep the
        others from being stored.
        """
        if self.database is None or not self._unsaved:
            return
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
        """After an error: stores what can be stored, and chooses a best if anything ran."""
        try:
            self.save()
        except TilesmithError as error:
            self.error = self.error or error
        self.choose_best()

    def summary(self) -> str:
        """A note for an error that ends the run: what was measured, and whether it is stored."""
        text = f"tilesmith: {self.trials} candidates had been measured"
        if self.best is not None:
            text += f", the best with {self.best.cost * 1e6:.4g} us"
        if self.database is None:
            return f"{text}; without a database they are lost"
        lost = f", but for {len(self._unsaved)}" if self._unsaved else ""
        return f"{text}; they are in the database{lost}"

    def _count(self, m: Measurement) -> None:
        self._ranking.add(m)
        if m.failure is not None:
            count, text = self.failures.get(m.failure.kind, (0, m.failure.text))
            self.failures[m.failure.kind] = (count + 1, text)
            if self.best is not None and self.best.candidate == m.candidate:
                self.best, self._best_trial = None, 0

    def _defend(self, m: Measurement) -> None:
        """The best known candidate was measured again: this measurement replaces the recorded one,
        unless that is more reliable.
        """
        old = self.best
        if old is not None and self.trials and old.candidate != m.candidate:
            if trust(m) < trust(old):  # it is another tuner's best
                self._set_best(m)
            return
        if old is None or old.candidate != m.candidate or is_as_reliable(m, old):
            self._set_best(m)

    def _set_best(self, m: Measurement) -> None:
        """The measurer's incumbent equals one of our measurements, except for its moment."""
        own = self._batch.get(m.candidate.key, m)
        self.best = own if own == m else m
        self._best_trial = own.moment.trial if own.moment and own.moment.run == self.run else 0

    def report(self, latest: tuple[Measurement, ...], finished: bool = False) -> None:
        failures = {kind: count for kind, (count, _) in self.failures.items()}
        progress = Progress(
            self.task, self.budget, self.seconds, self.trials, self.num_known, failures,
            self.best, latest, finished,
        )  # fmt: skip
        for observe in self.observers:
            observe(progress)

    def result(self, interrupted: bool, error: TilesmithError | None) -> Result:
        if self._challenger and self._is_beaten:  # the budget ended before it could be measured
            self._set_best(self._challenger)
        if self.best is None:
            texts = "; ".join(f"{kind}: {text}" for kind, (_, text) in self.failures.items())
            why = texts or "none was proposed, or the time was too short"
            raise TuneError(f"no candidate of {self.task.func.name} could be measured: {why}")
        self.report((), finished=True)
        return Result(
            self.task, self.best, self.trials, dict(self.failures), self.curve, self.seconds,
            self.run, interrupted, error or self.error,
        )  # fmt: skip
