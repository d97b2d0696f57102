"""One batch of candidates: built, checked, screened, raced and confirmed, with every failure caught
on the way.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

from tilesmith.base.errors import MeasureError
from tilesmith.measure.messages import Build, Built, Sample
from tilesmith.measure.parent.builders import Builders
from tilesmith.measure.parent.cores import Cores
from tilesmith.measure.parent.incumbents import Incumbent, Incumbents, TimeSpent, Trial
from tilesmith.measure.parent.runner import KernelFailed, Runner
from tilesmith.measure.parent.timing import (
    Clock,
    ProcessorClock,
    Race,
    Timed,
    TimingRules,
    duel,
    is_believed,
    race,
    retime,
    screen,
)
from tilesmith.task.task import Failure

# A kernel may take so many times the best before it is given up, but a second in any case.
_PATIENCE, _MIN_LIMIT = 200.0, 1.0
_FINISH = 12  # calls of the best that a race and its confirmation take: a winner needs them in time
_GRACE = 3.0  # seconds after the end in which a run that has nothing yet may still get one kernel
# A worker that dies once may have been ended by anyone; a kernel under which it dies again is bad.
# When it dies so often under no kernel of ours, measuring does not work.
_LIVES, _ALL_LIVES = 2, 4


@dataclass(slots=True)
class Batch:
    builders: Builders
    runner: Runner
    cores: Cores
    incumbents: Incumbents
    rules: TimingRules
    timeout: float
    confirm: bool
    rng: random.Random
    spent: TimeSpent
    until: float  # of time.monotonic(): what has not been run by then is left out
    finished: Callable[[Trial], None]  # told of a trial when all is known of it
    _kernels: dict[str, tuple[Trial, Built]] = field(default_factory=dict)  # by code
    _now: float = inf  # the incumbent's time when running began
    _reached: bool = False  # whether a kernel has run well
    _end: float = inf  # the latest moment for a first kernel

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
        self.incumbents.trim()
        self._end = max(self.until, time.monotonic()) + _GRACE
        cores, free = self.cores, self.cores.free if beside else ()
        self.builders.want(jobs)
        self.builders.allow(cores.all, free)
        while self.builders.occupies(cores.run if beside else cores.all) and self._in_time:
            self._receive(trials)
            if self._is_late and self._kernels:
                break
        if not beside:
            quiet()
        if self._is_late and (self._kernels or not self._in_time):
            self.builders.want({})
        self.builders.allow(free, free)
        self._now = best = self._best_now()
        fresh: list[Trial] | None = [t for t, _ in self._kernels.values()]
        while fresh is not None:
            for t in fresh:
                best = min(best, self._screen(t, best))
                if t.failure is not None or (t.reached and not self._may_race(t, best)):
                    self._finish(t)
            fresh = self._receive(trials)
        kernels = [t for t, _ in self._kernels.values()]
        self._screen_again(kernels, best)
        with self._counted("racing"):
            self._race(kernels)
        self.finish(kernels)
        keep = self.incumbents.current
        self.runner.forget([t.slot for t in kernels if keep is None or t is not keep.trial])

    def finish(self, trials: Iterable[Trial]) -> None:
        """No more will be known of these; those that were not reached are left out."""
        for t in trials:
            if t.reached and not t.finished:
                self._finish(t)

    def _finish(self, trial: Trial) -> None:
        trial.finished = True
        if trial.key:
            self.incumbents.remember(trial.key, trial.verdict(self.rules))
        self.finished(trial)

    def _may_race(self, trial: Trial, best: float) -> bool:
        """Perhaps after a second chance, if it was disturbed."""
        within = max(self.rules.race_within, self.rules.cutoffs[0] if trial.contended else 0.0)
        return trial.timed.corrected <= within * best

    @property
    def _clock(self) -> Clock:
        return ProcessorClock(self.runner) if self.rules.processor_time else self.runner

    @property
    def _is_late(self) -> bool:
        return time.monotonic() >= self.until

    @property
    def _in_time(self) -> bool:
        """One kernel is better than none, if it comes soon."""
        if self.incumbents.known or self._reached:
            return not self._is_late
        return time.monotonic() < self._end

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
        end = self.until if self.incumbents.known or self._kernels else self._end
        with self._counted("waiting"):
            got = self.builders.take(end - time.monotonic())
        if got is None:
            return None
        trial, outcome = trials[got[0]], got[1]
        return [trial] if self._add(trial, outcome) else []

    def _add(self, trial: Trial, outcome: Built | Failure) -> bool:
        """Whether it is a kernel that has not been seen yet."""
        if isinstance(outcome, Failure):
            trial.failure = outcome
            self._finish(trial)
            return False
        trial.key, trial.build_seconds = outcome.key, outcome.seconds
        self.spent.building += outcome.seconds
        if trial.key in self.incumbents.known or trial.key in self._kernels:
            return False
        self._kernels[trial.key] = trial, outcome
        self.runner.add(trial.slot, outcome)
        return True

    def _best_now(self) -> float:
        """The incumbent's time, as the machine is now."""
        keep = self.incumbents.current
        if keep is None:
            return inf
        monitor, (slot, _), timed = self.incumbents.monitor, keep.trial.entry, keep.trial.timed
        deaths: Counter[int] = Counter()
        while True:
            try:
                return retime(self._clock, slot, timed, self.rules, monitor, self.timeout)
            except KernelFailed as failed:
                if _is_to_blame(slot, failed, deaths):
                    self._depose(keep, failed.failure)
                    return inf

    def _screen(self, trial: Trial, best: float) -> float:
        """Its time; infinite when it failed or came too late."""
        rest = self.until - time.monotonic()
        if not self._in_time or (self._reached and rest < _FINISH * best < inf):
            return inf
        patience = min(self.timeout, max(_MIN_LIMIT, _PATIENCE * best))
        deaths: Counter[int] = Counter()
        while True:
            limit = min(patience, self._end - time.monotonic())
            try:
                trial.timed = self._time_alone(trial.slot, best, limit)
                break
            except KernelFailed as failed:
                if failed.failure.kind == "timeout" and limit < patience:
                    return inf  # the end of the run cut it short: nothing is known of it
                if _is_to_blame(trial.slot, failed, deaths):
                    trial.failure = failed.failure
                    self.runner.unload([trial.slot])
                    return inf
        if trial.timed.corrected > self.rules.race_within * best:
            self.runner.unload([trial.slot])
        self._reached = True
        trial.contended = trial.timed.is_contended(self.rules)
        return trial.timed.corrected

    def _time_alone(self, slot: int, best: float, limit: float) -> Timed:
        monitor = self.incumbents.monitor
        with self._counted("checking"):
            first = self.runner.check(slot, limit)
        if self._is_late and first > self.rules.max_seconds:  # no time for another call
            return Timed([Sample(first, 1.0, reference=monitor.latest)])
        with self._counted("timing"):
            return screen(self._clock, slot, first, best, self.rules, monitor, limit)

    def _screen_again(self, trials: Sequence[Trial], best: float) -> None:
        """Those that were disturbed have a second chance, if they may be good."""
        for t in trials:
            promising = t.timed.samples and t.timed.corrected <= self.rules.cutoffs[0] * best
            if promising and t.failure is None and t.contended and self._in_time:
                before = t.timed.samples
                self._screen(t, best)
                if t.failure is None and t.contended:  # no better: all that is known counts
                    t.timed.samples = [*before, *t.timed.samples]

    def _race(self, trials: Sequence[Trial]) -> None:
        """Those near the best against the incumbent, and the winner in a fresh process."""
        entrants = self._entrants(trials)
        deaths: Counter[int] = Counter()
        while entrants:
            keep = self.incumbents.current
            try:
                winner = self._winner(entrants, keep)
                if winner is not None:
                    self._crown(winner, keep)
                return
            except KernelFailed as failed:
                deaths[failed.slot] += 1
                if failed.died and deaths[failed.slot] < _LIVES:
                    continue
                if keep is not None and failed.slot == keep.trial.slot:
                    self._depose(keep, failed.failure)
                    continue
                bad = [t for t in entrants if t.slot == failed.slot]
                if not bad:  # no kernel's fault, and no race can be held: nobody wins
                    return
                bad[0].failure = failed.failure
                entrants = [t for t in entrants if t.failure is None]

    def _entrants(self, trials: Sequence[Trial]) -> list[Trial]:
        good = [t for t in trials if t.failure is None and t.reached]
        if not good or not self._in_time:
            return []
        best = min(self._now, *(t.timed.corrected for t in good))
        if best > self.rules.max_seconds and self.until - time.monotonic() < _FINISH * best:
            return []
        within = self.rules.race_within * best
        near = [t for t in good if t.timed.corrected <= within and not t.finished]
        near.sort(key=lambda t: t.timed.corrected)
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
            self.incumbents.monitor, self.rng, self.timeout,
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
                self._clock, winner.entry, pivot.entry, self.rules, self.incumbents.monitor,
                self.rng, self.timeout,
            )  # fmt: skip
            self._add_samples(result, [winner])
            if keep is not None and not is_believed(result.ratios[winner.slot], self.rules):
                return
            winner.contended = winner.timed.is_contended(self.rules)
        if keep is not None and winner.contended and not keep.trial.contended:
            return  # it may teach, but not win
        winner.confirmed = self.confirm and not winner.contended
        self.incumbents.current = Incumbent(winner, self._kernels[winner.key][1])
        if keep is not None:
            self.runner.forget([keep.trial.slot])

    def _add_samples(self, result: Race, trials: Sequence[Trial]) -> None:
        for t in trials:
            t.timed.samples.extend(result.samples[t.slot])
            t.contended = t.timed.is_contended(self.rules)

    def _depose(self, keep: Incumbent, failure: Failure) -> None:
        """It ran well before, and now it does not: it is not to be relied on."""
        self.runner.forget([keep.trial.slot])
        self.incumbents.depose(keep, failure)


def _is_to_blame(slot: int, failed: KernelFailed, deaths: Counter[int]) -> bool:
    """Whether the kernel in this slot is bad. If not, it is to be tried again."""
    if failed.slot == slot and not failed.died:
        return True
    deaths[failed.slot] += 1
    if deaths[slot] >= _LIVES:
        return True
    if deaths.total() >= _ALL_LIVES:
        raise MeasureError(
            f"the process that runs kernels ended {deaths.total()} times in a row, and no kernel "
            f"was to blame: {failed.failure.text}"
        )
    return False
