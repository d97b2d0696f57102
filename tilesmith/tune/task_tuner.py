"""TaskTuner: one task's tuning run, a step at a time. `tune` drives one of them; a scheduler drives
several that share a measurer and a database.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from math import inf
from reprlib import Repr
from secrets import token_hex
from typing import Any

import numpy as np

from tilesmith.base.errors import TilesmithError
from tilesmith.base.target import Target
from tilesmith.measure.protocol import (
    Collecting,
    Judging,
    Measuring,
    Postponing,
    Preparing,
    Reporting,
)
from tilesmith.records.database import Database
from tilesmith.search.evolution import Evolution
from tilesmith.search.protocol import Search, Strategy, Suggestible
from tilesmith.space.spaces import SketchSpace, Space, require_sketches
from tilesmith.task.task import Budget, Candidate, Curve, Measurement, Task, TuningRun
from tilesmith.tune.inputs import (
    require_budget,
    require_candidates,
    require_database,
    require_observers,
    require_part,
    require_search,
    require_seed,
    require_task,
    with_parts,
)
from tilesmith.tune.progress import Observer
from tilesmith.tune.result import Result
from tilesmith.tune.run_state import RunState

_UNLIMITED = Budget()
_SHORT = Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 8
_SHORT.maxstring = _SHORT.maxother = 200
_GRACE_SECONDS = 15.0  # for devices elsewhere that have measured nothing when the time is up
Drafts = Callable[[Task], Sequence[Candidate]]


class TaskTuner:
    """The search of one task, with what it has measured and spent.

    `step` asks the search for a batch, measures it, stores it and tells the search. The next batch
    is proposed while the present one is measured, so a search learns of each batch one step late.
    With a database, its records of the task count towards `budget.trials` and are not measured
    again, except for the best, which is the first incumbent. The seconds of the budget are
    wall-clock time since the tuner was created. Without a budget, the caller of `step` decides when
    to stop.

    `drafts` gives candidates that are measured first, if the database knows none of the task.

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
    ) -> None:
        require_task(task)
        require_budget(budget)
        require_database(database, "tune")
        require_part(space, "sketches", "space", "ts.SketchSpace()", "space/spaces.py")
        require_part(strategy, "start", "strategy", "ts.Evolution()", "search/protocol.py")
        require_seed(seed)
        require_observers(observers)
        parts, database = with_parts(task.parts, database, "tune")
        self.task = task = task.with_parts(parts)
        self._space, self._strategy = space or SketchSpace(), strategy or Evolution()
        self._seed = seed
        run = TuningRun(
            token_hex(16), type(self._strategy).__name__, settings_text(self._strategy), int(seed),
            budget, time.time(), _machine(task.target), task.codegen,
        )  # fmt: skip
        self._state = RunState(task, run, database, observers)
        self._search: Search | None = None
        self._pending: list[Candidate] = []  # proposed, not measured yet
        self._postponed: list[Candidate] = []  # left out of a batch; the next one begins with them
        self._drafts = None if self._state.known else drafts
        self._drafted: set[str] = set()  # their keys: the search does not know of them at first
        self._suggested: list[
            Candidate
        ] = []  # of other tasks; the search does not know of them yet
        self._exhausted = False  # whether the search had nothing to propose
        self._has_measured = False  # whether a batch of the search was measured
        self._finished = self._state.is_spent

    def __repr__(self) -> str:
        best = f"best {self.best_cost * 1e6:.4g} us" if self.best else "no best yet"
        return f"<TaskTuner of {self.task.func.name}: {self.trials} trials, {best}>"

    @property
    def finished(self) -> bool:
        """Whether the budget or the space is exhausted: then `step` measures nothing. The first
        batch is measured however long the search took, because one kernel is better than none.
        """
        return self._finished or (self._has_measured and self._state.is_spent)

    @property
    def run(self) -> TuningRun:
        """What its measurements refer to."""
        return self._state.run

    @property
    def best(self) -> Measurement | None:
        return self._state.best

    @property
    def best_cost(self) -> float:
        """Seconds; infinite until a candidate has run."""
        return inf if self.best is None else self.best.cost

    @property
    def trials(self) -> int:
        """Candidates measured by this tuner, without those known from the database."""
        return self._state.trials

    @property
    def num_postponed(self) -> int:
        """Candidates that a batch has left to the next one, because their builds take long."""
        return len(self._postponed)

    @property
    def known(self) -> Sequence[Measurement]:
        """What the database had of the task before, oldest first."""
        return self._state.known

    @property
    def seconds(self) -> float:
        """Wall-clock seconds spent in the steps of this tuner."""
        return self._state.busy_seconds

    @property
    def curve(self) -> Curve:
        """(seconds, trials, best cost) at every improvement, see `curve_of`. Seconds are wall-clock
        time since the tuner was created.
        """
        return self._state.curve

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
        self._state.begin_step()
        try:
            for tuner in {self, after}:
                tuner._state.deadline = inf if until is None else until
            return self._step(measuring, n, after, following is None, ahead)
        except BaseException:
            self._state.rescue()
            raise
        finally:
            for tuner in {self, after}:
                tuner._state.deadline = inf
            self._state.end_step()

    def suggest(self, others: Sequence[Candidate]) -> None:
        """Fast candidates of other tasks, whose like the search may propose next."""
        self._suggested += others

    def result(self, interrupted: bool = False, error: TilesmithError | None = None) -> Result:
        """The result so far; a TuneError if no candidate could be measured."""
        return self._state.result(interrupted, error)

    def summary(self) -> str:
        """How many candidates were measured and whether they are stored, in one line."""
        return self._state.summary()

    def _step(
        self, measuring: Measuring, n: int | None, after: TaskTuner, alone: bool, ahead: bool
    ) -> list[Measurement]:
        if self.finished:
            return []
        if self._search is None and isinstance(measuring, Preparing):
            measuring.prepare(self.task)
        state, search = self._state, self._started()
        self._learn_of_others(search)
        defender = state.next_defender()
        if defender is None and alone and isinstance(measuring, Collecting):
            return self._collect(measuring, search, n)
        batch = self._take(n) if defender is None else [defender]
        if not batch:
            self._finished = self._exhausted or state.deadline == inf
            return []
        under_way = len(batch) if defender is None and after is self else 0
        under_way += after.num_postponed
        # Computed before the batch, during which trials are counted as they are reported.
        size = 0 if after._pending or after.finished else after._state.next_size(under_way)
        if isinstance(measuring, Reporting):
            measuring.report_to(state.add)
        if isinstance(measuring, Postponing):
            measuring.postpone(ahead)
        upcoming = partial(self._look_ahead, after, size) if ahead else None
        measured = measuring.measure(batch, upcoming, state.left)
        if alone and isinstance(measuring, Collecting):  # it has what was proposed meanwhile
            self._pending = []
        elif isinstance(measuring, Postponing):
            self._postponed = [*measuring.postponed, *self._postponed]
        incumbent = measuring.best(self.task) if isinstance(measuring, Judging) else None
        state.end_batch(measured, incumbent)
        self._has_measured = self._has_measured or defender is None
        search.tell(measured)
        state.save_search(search)
        state.report(tuple(measured))
        return measured

    def _collect(self, measuring: Collecting, search: Search, n: int | None) -> list[Measurement]:
        """Hands out candidates before the devices run out of them, and takes what is measured. So
        the search does not wait for the slowest device.
        """
        state, task = self._state, self.task
        if isinstance(measuring, Reporting):
            measuring.report_to(state.add)
        flying = measuring.under_way(task)
        while 2 * flying < max(measuring.capacity, state.next_size()):
            if not self._pending:
                self._ask(state.next_size(flying))
            batch, self._pending = self._pending[:n], self._pending[n:] if n is not None else []
            if not batch:
                break
            measuring.submit(batch)
            flying += len(batch)
        left = state.left
        if left is not None and not self._has_measured:
            left = max(left, _GRACE_SECONDS)
        measured = measuring.collect(task, left)
        if not measured:
            self._finished = not flying and (self._exhausted or state.deadline == inf)
            self._finished = self._finished or state.is_spent
            return []
        state.end_batch(measured, None)
        self._has_measured = True
        search.tell(measured)
        state.save_search(search)
        state.report(tuple(measured))
        return measured

    def _learn_of_others(self, search: Search) -> None:
        """Tells the search what other tuners have stored of this task meanwhile."""
        if fresh := self._state.learn_of_others():
            search.tell(fresh)
            known = {m.candidate.key for m in fresh}
            room = self._state.room
            self._postponed = [c for c in self._postponed if c.key not in known][:room]
            room = None if room is None else room - len(self._postponed)
            self._pending = [c for c in self._pending if c.key not in known][:room]

    def _started(self) -> Search:
        """The search, which is told the database's records when it starts."""
        if self._search is None:
            name = type(self._space).__name__
            sketches = require_sketches(self._space.sketches(self.task), self.task, name)
            rng = np.random.default_rng(self._seed)
            search = self._strategy.start(self.task, sketches, rng)
            require_search(search, self._strategy)
            search.tell(self._state.known)
            self._state.restore_search(search)
            self._search = search
        return self._search

    def _take(self, n: int | None) -> list[Candidate]:
        """The next batch to measure: what was left, and what was proposed ahead or is now."""
        late, self._postponed = self._postponed[:n], self._postponed[n:] if n is not None else []
        if n == len(late):
            return late
        if not self._pending:
            self._pending = self._state.take_earlier()
        if not self._pending:
            self._ask(self._state.next_size(len(late)))
        room = None if n is None else n - len(late)
        batch, self._pending = self._pending[:room], self._pending[room:] if room else []
        return [*late, *batch]

    def _look_ahead(self, after: TaskTuner, size: int) -> list[Candidate]:
        """The candidates that will be measured next, to be built ahead. The measurer already has
        this tuner's own pending candidates.
        """
        asked = after._ask(size)
        return asked if after is self else list(after._pending)

    def _ask(self, n: int) -> list[Candidate]:
        """Up to n new candidates, which are now pending."""
        if not n:
            return []
        search = self._started()
        began = time.monotonic()
        if self._suggested and isinstance(search, Suggestible):
            search.suggest(self._suggested)
        self._suggested = []
        candidates = self._draft()[:n]
        while len(candidates) < n:
            asked = search.ask(n - len(candidates))
            require_candidates(asked, search)
            candidates += [c for c in asked if c.key not in self._drafted]
            self._exhausted = not asked
            if candidates or self._exhausted:
                break
        self._state.note_ask(time.monotonic() - began)
        self._pending += candidates
        return candidates

    def _draft(self) -> list[Candidate]:
        """The drafts, once."""
        if self._drafts is None:
            return []
        candidates, self._drafts = list(self._drafts(self.task)), None
        self._drafted = {c.key for c in candidates}
        return candidates


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
