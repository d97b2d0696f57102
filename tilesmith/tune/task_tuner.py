"""TaskTuner: one task's tuning run, a step at a time. `tune` drives one of them; a scheduler drives
several that share a measurer and a database.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import fields, is_dataclass
from itertools import islice
from math import inf
from reprlib import Repr
from secrets import token_hex
from typing import Any

import numpy as np

from tilesmith.base.errors import TilesmithError, TuneError
from tilesmith.base.given import a, checks_given
from tilesmith.base.target import Target
from tilesmith.measure.protocol import Measuring, Results, Stream, Upcoming, Winner, stream_of
from tilesmith.records.database import Database, with_parts
from tilesmith.schedule.trace import Trace
from tilesmith.search.evolution import Evolution, EvolutionSearch
from tilesmith.search.protocol import Search, Strategy, Suggestible
from tilesmith.search.several import UnionSearch, left_out
from tilesmith.space.spaces import SketchSpace, Space, UnionSpace, require_sketches
from tilesmith.task.task import Budget, Candidate, Curve, Measurement, Task, TuningRun
from tilesmith.tune.progress import Observer, Progress
from tilesmith.tune.result import Result
from tilesmith.tune.run_state import Clock, Incumbent, Ledger

_UNLIMITED = Budget()
_SAVE_SECONDS = 0.5  # between two groups that are stored, which takes some milliseconds
_SHORT = Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 8
_SHORT.maxstring = _SHORT.maxother = 200
Drafts = Callable[[Task], Sequence[Candidate]]


@checks_given(error=TuneError)
class TaskTuner:
    """The search of one task, with what it has measured and spent.

    `step` asks the search for a batch, measures it, stores it and tells the search. The next batch
    is proposed while the present one is measured, so a search learns of each batch one step late.
    With a database, its records of the task count towards `budget.trials` and are not measured
    again, except for the best, which is the first incumbent. The seconds of the budget are
    wall-clock time since the tuner was created. Without a budget, the caller of `step` decides when
    to stop.

    `drafts` gives candidates that are measured first, if the database knows none of the task. An
    Evolution of the default space proposes the same itself. `drafted` are schedules to be measured
    first that are known already: they are the first batch, before the search is even started.
    `batch_size` candidates are in a batch; by default few at first, and more later.

    A scheduler reads `best_cost`, `trials`, `seconds` (spent in its own steps) and `curve`, and
    passes the tuner that it wants next as `following`, whose search then runs during this step.
    """

    def __init__(
        self,
        task: Task,
        *,
        budget: Budget = _UNLIMITED,
        database: Database | None = None,
        space: Space | None = None,
        strategy: Strategy | None = None,
        seed: int = 0,
        observers: Sequence[Observer] = (),
        drafts: Drafts | None = None,
        batch_size: int | None = None,
        drafted: Sequence[Trace] = (),
    ) -> None:
        task.func.require_closed("ts.TaskTuner", TuneError)
        require_seed(seed)
        _require_batch_size(batch_size)
        if database is not None:
            parts, database = with_parts(task.parts, database)
            task = task.with_parts(parts)
        self.task = task
        self._space, self._strategy = space or SketchSpace(), strategy or Evolution()
        self._seed = seed
        self.run = TuningRun(  # what its measurements refer to
            token_hex(16), type(self._strategy).__name__, settings_text(self._strategy), int(seed),
            budget, time.time(), _machine(task.target), task.codegen,
        )  # fmt: skip
        self._clock = Clock(budget, task.target, batch_size)
        self._ledger = Ledger(task, self.run, database)
        self._incumbent = Incumbent(self._ledger.known)
        self._clock.known = len({m.candidate.key for m in self._ledger.known})
        self._observers = observers
        self._search: Search | None = None
        self._pending: list[Candidate] = []  # proposed, not submitted yet
        self._late: list[Candidate] = []  # left by a batch; the next one begins with them
        self._drafts = None if self._ledger.known or drafted else drafts
        if not self._ledger.known:
            self._pending = [Candidate(self.task, trace) for trace in drafted]
        self._drafted = {c.key for c in self._pending}  # a search may not know of drafts
        self._untold: list[Measurement] = []  # measured before the search was started
        # Programs of other tasks; the search does not know them yet.
        self._suggested: list[Candidate] = list(self._ledger.near)
        self._exhausted = False  # whether the search had nothing to propose
        self._has_measured = False  # whether a batch of the search was measured
        self._finished = self._clock.is_spent

    def __repr__(self) -> str:
        best = f"best {self.best_cost * 1e6:.4g} us" if self.best else "no best yet"
        return f"<TaskTuner of {self.task.func.name}: {self.trials} trials, {best}>"

    @property
    def finished(self) -> bool:
        """Whether the budget or the space is exhausted: then `step` measures nothing. The first
        batch is measured however long the search took, because one kernel is better than none.
        """
        return self._finished or (self._has_measured and self._clock.is_spent)

    @property
    def best(self) -> Measurement | None:
        return self._incumbent.best

    @property
    def best_cost(self) -> float:
        """Seconds; infinite until a candidate has run."""
        return inf if self.best is None else self.best.cost

    @property
    def trials(self) -> int:
        """Candidates measured by this tuner, without those known from the database."""
        return self._clock.trials

    @property
    def num_postponed(self) -> int:
        """Candidates that a batch has left to the next one, because their builds take long."""
        return len(self._late)

    @property
    def batch_size(self) -> int | None:
        return self._clock.batch_size

    @property
    def known(self) -> Sequence[Measurement]:
        """What the database had of the task before, oldest first."""
        return self._ledger.known

    @property
    def failures(self) -> dict[str, tuple[int, str]]:
        """How candidates failed, by kind: the count and the first text."""
        return dict(self._ledger.failures)

    @property
    def seconds(self) -> float:
        """Wall-clock seconds spent in the steps of this tuner."""
        return self._clock.busy_seconds

    @property
    def curve(self) -> Curve:
        """(seconds, trials, best cost) at every improvement, see `curve_of`. Seconds are wall-clock
        time since the tuner was created.
        """
        return self._ledger.curve(self.best)

    def step(
        self,
        measuring: Measuring,
        n: int | None = None,
        *,
        until: float | None = None,
        following: TaskTuner | None = None,
        ahead: bool = True,
    ) -> list[Measurement]:
        """Measures one batch of at most n candidates, which ends at the moment `until` of
        time.monotonic(). Meanwhile the search of `following`, by default this tuner's, proposes its
        next batch, unless `ahead` is false. Nothing is measured if the tuner has `finished`, or too
        little time is left.

        A measurer may leave candidates to the next batch, if their builds take long and others
        are proposed ahead.

        Whatever ends a step early (Ctrl-C, an error), what was measured is stored.
        """
        after = self if following is None else following
        self._clock.begin_step()
        try:
            for tuner in {self, after}:
                tuner._clock.deadline = inf if until is None else until
            if self.finished:
                return []
            run = stream_of(measuring)
            # Of a fleet, what is there is taken; a scheduler of several tasks waits for the batch.
            every = not ahead or (following is not None and run.capacity > 0)
            return self._step(run, n, after, ahead, every)
        except BaseException:
            self._ledger.rescue()
            self._settle((), None)
            raise
        finally:
            for tuner in {self, after}:
                tuner._clock.deadline = inf
            self._clock.end_step()

    def _step(
        self, run: Stream, n: int | None, after: TaskTuner, ahead: bool, every: bool
    ) -> list[Measurement]:  # fmt: skip
        """Ask, measure, store, tell."""
        if self._search is None and not self._untold:
            run.prepare(self.task)
        search = self._search if self._pending else self._started()
        if search is not None:
            self._learn_of_others(search)
        batch = self._next_batch(n, run.capacity)
        if not batch:
            self._finished = self._exhausted or self._clock.deadline == inf
            return []
        upcoming = self._look_ahead(after, batch) if ahead else None
        measured: list[Measurement] = []
        run.submit(batch)
        results = run.results(self.task, self._clock.until, upcoming, every)
        with closing(results):
            try:
                for m in results:
                    measured.append(self._store(m))
                    self._ledger.save(_SAVE_SECONDS)
            except BaseException as error:
                for m in _rest(results, error):
                    self._store(m)
                raise
        self._ledger.save()
        self._late = [*run.left(self.task), *self._late]
        self._settle(measured, run.winner(self.task))
        self._clock.end_batch()
        self._has_measured = self._has_measured or not self._incumbent.is_defender(batch[0])
        if search is None:
            self._untold += measured
        else:
            search.tell(measured)
            self._ledger.save_search(search)
        self._report(measured)
        return measured

    def _store(self, m: Measurement) -> Measurement:
        """A known candidate that is measured again is no trial."""
        again = self._incumbent.is_defender(m.candidate)
        self._clock.trials += not again
        m = self._ledger.add(m, self._clock.seconds, 0 if again else self.trials)
        self._incumbent.add(m, self.trials)
        return m

    def _settle(self, measured: Sequence[Measurement], winner: Winner | None) -> None:
        self._incumbent.settle(measured, winner)
        moment = None if self.best is None else self.best.moment
        own = moment is not None and moment.run == self.run
        self._clock.best_trial = moment.trial if own and moment is not None else 0

    def suggest(self, others: Sequence[Candidate]) -> None:
        """Fast candidates of other tasks, whose like the search may propose next."""
        self._suggested += others

    def _report(self, latest: Sequence[Measurement], finished: bool = False) -> None:
        failures = {kind: count for kind, (count, _) in self._ledger.failures.items()}
        clock = self._clock
        progress = Progress(
            self.task, clock.budget, clock.seconds, clock.trials, clock.known, failures, self.best,
            tuple(latest), finished,
        )  # fmt: skip
        for observe in self._observers:
            observe(progress)

    def result(self, interrupted: bool = False, error: TilesmithError | None = None) -> Result:
        """The result so far; a TuneError if no candidate could be measured."""
        best, failures = self._incumbent.end(), self._ledger.failures
        if best is None:
            texts = "; ".join(f"{kind}: {text}" for kind, (_, text) in failures.items())
            why = texts or "none was proposed, or the time was too short"
            raise TuneError(f"no candidate of {self.task.func.name} could be measured: {why}")
        self._report((), finished=True)
        return Result(
            self.task, best, self.trials, dict(failures), self.curve, self._clock.seconds, self.run,
            interrupted, error or self._ledger.error, left_out=self._left_out(),
        )  # fmt: skip

    def _left_out(self) -> int:
        """Sketches and structures that are not searched; 0 if the search does not tell."""
        if self._search is None:
            return 0
        sketches = 0
        if (
            isinstance(self._space, SketchSpace) and self._space.rules is None
        ):  # known: it is cached
            sketches = self._space.derive(self.task).left_out
        return sketches + left_out(self._search)

    def summary(self) -> str:
        """How many candidates were measured and whether they are stored, in one line."""
        return self._ledger.summary(self.trials, self.best)

    def _learn_of_others(self, search: Search) -> None:
        """Tells the search what other tuners have stored of this task meanwhile."""
        fresh = self._ledger.others()
        self._incumbent.challenge(fresh, self.trials)
        if fresh:
            search.tell(fresh)
            known = {m.candidate.key for m in fresh}
            self._clock.known += len(known)
            room = self._clock.room
            self._late = [c for c in self._late if c.key not in known][:room]
            room = None if room is None else room - len(self._late)
            self._pending = [c for c in self._pending if c.key not in known][:room]

    def _started(self) -> Search:
        """The search, which is told the database's records when it starts."""
        if self._search is None:
            search = self._start_search()
            search.tell(self._ledger.known)
            self._ledger.restore_search(search)
            if self._untold:
                search.tell(self._untold)
            self._search = search
        return self._search

    def _start_search(self) -> Search:
        """One for each part of a union, so that none of them is lost beside the others."""
        name = type(self._space).__name__
        sketches = require_sketches(self._space.sketches(self.task), self.task, name)
        each = [sketches]
        if isinstance(self._space, UnionSpace):
            each = [p.traces for p in self._space.parts(self.task) if p.traces]
        searches = []
        for k, traces in enumerate(each):
            rng = np.random.default_rng([self._seed, k] if k else self._seed)
            searches.append(self._strategy.start(self.task, traces, rng))
            _require_search(searches[-1], self._strategy)
        return UnionSearch(searches) if len(searches) > 1 else searches[0]

    def _next_batch(self, n: int | None, capacity: int) -> list[Candidate]:
        """A known candidate to be measured again; or what was left, and what was proposed ahead or
        is now, until it keeps half of the devices busy.
        """
        defender = self._incumbent.next_defender()
        if defender is not None:
            return [defender]
        clock = self._clock
        batch, self._late = self._late[:n], self._late[n:] if n is not None else []
        while n is None or len(batch) < n:
            # What is pending may be measured already, while what was left waits for its device.
            if not self._pending:
                if capacity and 2 * len(batch) >= max(capacity, clock.next_size()):
                    break
                self._pending = self._ledger.earlier[: clock.next_size()]
                self._ledger.earlier = []
            if not self._pending:
                self._ask(clock.next_size(len(batch)))
            room = None if n is None else n - len(batch)
            more, self._pending = self._pending[:room], self._pending[room:] if room else []
            batch += more
            if not more or not capacity:
                break
        return batch

    def _look_ahead(self, after: TaskTuner, batch: Sequence[Candidate]) -> Upcoming:
        """The candidates that will be measured next, to be built ahead. The measurer already has
        this tuner's own pending candidates. Their number is reckoned now, before the batch, during
        which trials are counted.
        """
        alone = after is self
        under_way = after.num_postponed
        if alone and not self._incumbent.is_defender(batch[0]):
            under_way += len(batch)
        size = 0 if after._pending or after.finished else after._clock.next_size(under_way)

        def upcoming() -> list[Candidate]:
            asked = after._ask(size)
            return asked if alone else list(after._pending)

        return upcoming

    def _ask(self, n: int) -> list[Candidate]:
        """Up to n new candidates, which are now pending."""
        if not n:
            return []
        search = self._started()
        began = time.monotonic()
        if self._suggested and isinstance(search, Suggestible):
            search.suggest(self._suggested)
        self._suggested = []
        candidates = self._draft(search)[:n]
        while len(candidates) < n:
            asked = search.ask(n - len(candidates))
            _require_candidates(asked, search)
            candidates += [c for c in asked if c.key not in self._drafted]
            self._exhausted = not asked
            if candidates or self._exhausted:
                break
        self._clock.note_ask(time.monotonic() - began)
        self._pending += candidates
        return candidates

    def _draft(self, search: Search) -> list[Candidate]:
        """The drafts, once."""
        if self._drafts is None:
            return []
        space = self._space
        is_default = isinstance(space, SketchSpace) and space.rules is None
        if is_default and isinstance(search, EvolutionSearch):
            candidates = [*islice(search.drafts(), 1)]
        else:
            candidates = [*self._drafts(self.task)]
        self._drafts = None
        self._drafted = {c.key for c in candidates}
        return candidates


def _rest(results: Results, error: BaseException) -> Iterator[Measurement]:
    """What is measured already when an error ends a batch."""
    with suppress(type(error), TilesmithError, StopIteration):
        yield results.throw(error)
        yield from results


def _machine(target: Target) -> str:
    """The target and the machine, as text."""
    return f"{target.name}, {platform.system()} {platform.release()}"


def settings_text(x: Any) -> str:
    """Settings of a strategy for the database: like `repr`, but long values are shortened, since a
    cost model may hold thousands of records.
    """
    if not is_dataclass(x) or isinstance(x, type):
        return _SHORT.repr(x)
    own = [f"{f.name}={settings_text(getattr(x, f.name))}" for f in fields(x) if f.repr]
    return f"{type(x).__name__}({', '.join(own)})"


def require_seed(seed: int) -> None:
    if seed < 0:
        raise TuneError(f"seed={seed!r}: it takes a whole number from 0 on")


def _require_batch_size(size: int | None) -> None:
    if size is not None and size < 1:
        raise TuneError(f"batch_size={size!r}: how many candidates are in a batch, from 1 on")


def _require_search(search: Any, strategy: Any) -> None:
    if not all(callable(getattr(search, name, None)) for name in ("ask", "tell")):
        raise TuneError(
            f"start(task, sketches, rng) of {type(strategy).__name__} gave {a(search)}; it gives "
            "a search, which has the methods ask and tell"
        )


def _require_candidates(candidates: Any, search: Any) -> None:
    is_list = isinstance(candidates, tuple | list)
    if not is_list or not all(isinstance(c, Candidate) for c in candidates):
        what = a(candidates) if not is_list else "a list of something else"
        raise TuneError(
            f"ask(n) of {type(search).__name__} gave {what}; it gives a list of up to n candidates"
        )
