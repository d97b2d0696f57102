"""One batch of candidates: built, checked, screened, raced and confirmed, with every failure caught
on the way.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

from tilesmith.measure.builders import Builders
from tilesmith.measure.cores import Cores
from tilesmith.measure.messages import Build, Built
from tilesmith.measure.runner import Broken, Runner
from tilesmith.measure.standing import Incumbent, Spent, Standing, Trial
from tilesmith.measure.timing import (
    Busy,
    Clock,
    Race,
    Rules,
    duel,
    is_believed,
    race,
    screen,
    settle,
)
from tilesmith.task.task import Failure

# A kernel may take so many times the best before it is given up, but a second in any case.
_PATIENCE, _MIN_LIMIT = 200.0, 1.0
_FINISH = 12  # calls of the best that a race and its confirmation take: a winner needs them in time


@dataclass(slots=True)
class Batch:
    builders: Builders
    runner: Runner
    cores: Cores
    standing: Standing
    rules: Rules
    timeout: float
    confirm: bool
    rng: random.Random
    spent: Spent
    until: float  # of time.monotonic(): what has not been run by then is left out
    _kernels: dict[str, tuple[Trial, Built]] = field(default_factory=dict)  # by code
    _now: float = inf  # the incumbent's time when running began
    _reached: bool = False  # whether a kernel has run well

    def run(
        self,
        trials: Mapping[str, Trial],
        jobs: Mapping[str, Build],
        beside: bool,
        quiet: Callable[[], None],
    ) -> None:
        """A job per trial. Afterwards the verdict on each kernel that was reached is among those
        known, and a trial without a kernel has a failure.

        All cores build until those that run kernels have nothing left to build. From then on the
        others go on, with this batch and then the next, if something may happen `beside` running;
        if not, `quiet` returns when nothing does.
        """
        self.standing.trim()
        cores, free = self.cores, self.cores.free if beside else ()
        self.builders.want(jobs)
        self.builders.allow(cores.all, free)
        while self.builders.occupies(cores.run if beside else cores.all) and self._in_time:
            self._receive(trials)
            if self._is_late and self._kernels:
                break
        if not beside:
            quiet()
        if self._is_late:
            self.builders.want({})
        self.builders.allow(free, free)
        self._now = best = self._best_now()
        fresh: list[Trial] | None = [t for t, _ in self._kernels.values()]
        while fresh is not None:
            for t in fresh:
                best = min(best, self._screen(t, best))
            fresh = self._receive(trials)
        kernels = [t for t, _ in self._kernels.values()]
        self._screen_again(kernels, best)
        with self._counted("racing"):
            self._race(kernels)
        for key, (trial, _) in self._kernels.items():
            if trial.reached:
                self.standing.remember(key, trial.verdict(self.rules))
        keep = self.standing.incumbent
        self.runner.forget([t.slot for t in kernels if keep is None or t is not keep.trial])

    @property
    def _clock(self) -> Clock:
        return Busy(self.runner) if self.rules.processor_time else self.runner

    @property
    def _is_late(self) -> bool:
        return time.monotonic() >= self.until

    @property
    def _in_time(self) -> bool:
        """One kernel is better than none, however late it is."""
        return not (self._is_late and (self.standing.known or self._reached))

    @contextmanager
    def _counted(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self.spent, what, getattr(self.spent, what) + time.perf_counter() - start)

    def _receive(self, trials: Mapping[str, Trial]) -> list[Trial] | None:
        """The next that was built, if it is a kernel that has not been seen yet; None when there
        is none to come.
        """
        patience = self.until - time.monotonic() if self.standing.known or self._kernels else inf
        with self._counted("waiting"):
            got = self.builders.take(patience)
        if got is None:
            return None
        trial, outcome = trials[got[0]], got[1]
        return [trial] if self._add(trial, outcome) else []

    def _add(self, trial: Trial, outcome: Built | Failure) -> bool:
        """Whether it is a kernel that has not been seen yet."""
        if isinstance(outcome, Failure):
            trial.failure = outcome
            return False
        trial.key, trial.build_seconds = outcome.key, outcome.seconds
        self.spent.building += outcome.seconds
        if trial.key in self.standing.known or trial.key in self._kernels:
            return False
        self._kernels[trial.key] = trial, outcome
        self.runner.add(trial.slot, outcome)
        return True

    def _best_now(self) -> float:
        """The incumbent's time, as the machine is now."""
        keep = self.standing.incumbent
        if keep is None:
            return inf
        try:
            sentinel = self.standing.sentinel
            slot, timed = keep.trial.slot, keep.trial.timed
            return settle(self._clock, slot, timed, self.rules, sentinel, self.timeout)
        except Broken:
            self._depose(keep)
            return inf

    def _screen(self, trial: Trial, best: float) -> float:
        """Its time; infinite when it failed or came too late."""
        rest = self.until - time.monotonic()
        if not self._in_time or (self._reached and rest < _FINISH * best < inf):
            return inf
        limit = min(self.timeout, max(_MIN_LIMIT, _PATIENCE * best))
        try:
            with self._counted("checking"):
                first = self.runner.check(trial.slot, limit)
            with self._counted("timing"):
                trial.timed = screen(
                    self._clock, trial.slot, first, best, self.rules, self.standing.sentinel, limit
                )
        except Broken as broken:
            trial.failure = broken.failure
            return inf
        finally:
            if trial.failure is not None or trial.timed.settled > self.rules.race_within * best:
                self.runner.unload([trial.slot])
        self._reached = True
        trial.contended = trial.timed.is_contended(self.rules)
        return trial.timed.settled

    def _screen_again(self, trials: Sequence[Trial], best: float) -> None:
        """Those that were disturbed have a second chance, if they may be good."""
        for t in trials:
            promising = t.timed.samples and t.timed.settled <= self.rules.cutoffs[0] * best
            if promising and t.failure is None and t.contended and self._in_time:
                before = t.timed.samples
                self._screen(t, best)
                if t.failure is None and t.contended:  # no better: all that is known counts
                    t.timed.samples = [*before, *t.timed.samples]

    def _race(self, trials: Sequence[Trial]) -> None:
        """Those near the best against the incumbent, and the winner in a fresh process."""
        entrants = self._entrants(trials)
        while entrants:
            keep = self.standing.incumbent
            try:
                winner = self._winner(entrants, keep)
                if winner is not None:
                    self._crown(winner, keep)
                return
            except Broken as broken:
                if keep is not None and broken.slot == keep.trial.slot:
                    self._depose(keep)
                for t in entrants:
                    if t.slot == broken.slot:
                        t.failure = broken.failure
                entrants = [t for t in entrants if t.failure is None]

    def _entrants(self, trials: Sequence[Trial]) -> list[Trial]:
        good = [t for t in trials if t.failure is None and t.reached]
        if not good or not self._in_time:
            return []
        best = min(self._now, *(t.timed.settled for t in good))
        near = [t for t in good if t.timed.settled <= self.rules.race_within * best]
        near.sort(key=lambda t: t.timed.settled)
        # Racing may take a quarter of the time that screening took.
        sampled = sum(s.seconds * t.timed.calls for t in good for s in t.timed.samples)
        each = 2 * self.rules.rounds * max(best, self.rules.sample_seconds)
        return near[: max(2, min(self.rules.max_entrants, int(sampled / 4 / each)))]

    def _winner(self, entrants: Sequence[Trial], keep: Incumbent | None) -> Trial | None:
        if keep is None and len(entrants) == 1:
            return entrants[0]
        pivot = entrants[0] if keep is None else keep.trial
        result = race(
            self._clock, dict(t.entry for t in entrants), pivot.entry, self.rules,
            self.standing.sentinel, self.rng, self.timeout,
        )  # fmt: skip
        self._add_samples(result, entrants)
        winner = next(t for t in entrants if t.slot == result.winner)
        if keep is not None and not is_believed(result.ratios[winner.slot], self.rules):
            return None
        return winner

    def _crown(self, winner: Trial, keep: Incumbent | None) -> None:
        if self.confirm:
            self.runner.renew()
            self.runner.check(winner.slot, self.timeout)
            pivot = winner if keep is None else keep.trial
            result = duel(
                self._clock, winner.entry, pivot.entry, self.rules, self.standing.sentinel,
                self.rng, self.timeout,
            )  # fmt: skip
            self._add_samples(result, [winner])
            if keep is not None and not is_believed(result.ratios[winner.slot], self.rules):
                return
            winner.contended = winner.timed.is_contended(self.rules)
        if keep is not None and winner.contended and not keep.trial.contended:
            return  # it may teach, but not win
        winner.confirmed = self.confirm and not winner.contended
        self.standing.incumbent = Incumbent(winner, self._kernels[winner.key][1])
        if keep is not None:
            self.runner.forget([keep.trial.slot])

    def _add_samples(self, result: Race, trials: Sequence[Trial]) -> None:
        for t in trials:
            t.timed.samples.extend(result.samples[t.slot])
            t.contended = t.timed.is_contended(self.rules)

    def _depose(self, keep: Incumbent) -> None:
        """It ran well before, and now it does not: it is not to be relied on."""
        self.runner.forget([keep.trial.slot])
        self.standing.incumbent = None
