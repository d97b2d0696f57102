"""Measures one batch: builds, checks, screens, races and confirms its trials.

A Trial is a candidate while it is measured; the Verdict on it is kept for other candidates with the
same code. The Incumbent of a task is its best kernel so far, against which others race.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from math import inf

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import MeasureError
from tilesmith.base.identity import digest
from tilesmith.measure.messages import Build, Built, Sample
from tilesmith.measure.parent.build_and_run import Builders, KernelFailed, Runner
from tilesmith.measure.parent.timing import (
    Clock,
    DriftMonitor,
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
from tilesmith.measure.this_machine import Cores
from tilesmith.task.task import Candidate, Failure, Measurement

_MAX_VERDICTS = 4096
_PATIENCE = 200.0  # a kernel times out at this many times the best time
_SHORT, _LATE = 0.002, 0.1  # seconds: a race of such kernels may begin so late
_FINISH = 12  # calls of the best kernel that a race and its confirmation take about
# Calls that are compared one by one, of a kernel near the best and of a winner, and the seconds
# that they may take.
_REPEATS_NEAR, _REPEATS_OF_WINNER, _REPEAT_SECONDS = 2, 8, 0.05
_GRACE = 3.0  # additional seconds for a run that has not measured any kernel
# A worker that dies once may have been killed by another process. A kernel under which the worker
# dies `_LIVES` times has failed. If it dies `_ALL_LIVES` times under several, measuring is broken.
_LIVES, _ALL_LIVES = 2, 4


@dataclass(frozen=True, slots=True)
class Verdict:
    """A Measurement without its candidate, because several candidates may give the same code."""

    seconds: tuple[float, ...]
    references: tuple[float, ...]
    failure: Failure | None
    contended: bool
    confirmed: bool

    def of(self, candidate: Candidate, build_seconds: float) -> Measurement:
        return Measurement(
            candidate,
            self.seconds,
            self.failure,
            self.contended,
            self.confirmed,
            build_seconds,
            references=self.references,
        )


@dataclass(slots=True)
class Trial:
    slot: int  # number of its kernel in the run worker
    key: str = ""  # key of its code; empty if it was not built
    build_seconds: float = 0.0
    timed: Timed = field(default_factory=Timed)
    failure: Failure | None = None
    contended: bool = False
    confirmed: bool = False
    finished: bool = False  # whether it is final

    @property
    def entry(self) -> tuple[int, int]:
        """For races: slot, and calls per sample."""
        return self.slot, self.timed.calls

    @property
    def reached(self) -> bool:
        """Whether it failed or was timed; False if the time was up before."""
        return self.failure is not None or bool(self.timed.samples)

    def verdict(self, rules: TimingRules) -> Verdict:
        samples = [] if self.failure else self.timed.recorded(rules)
        return Verdict(
            tuple(s.seconds for s in samples), tuple(s.reference for s in samples),
            self.failure, self.contended, self.confirmed,
        )  # fmt: skip


@dataclass(slots=True)
class TimeSpent:
    """Seconds of a run by activity."""

    building: float = 0.0  # sum over all build workers
    waiting: float = 0.0  # for builds, while no kernel ran
    checking: float = 0.0
    timing: float = 0.0
    racing: float = 0.0  # including confirmation
    evaluations: int = 0  # number of tasks evaluated by the oracle


def key_of(built: Built) -> str:
    """Equal for kernels with the same code on the same layouts."""
    a = built.artifact
    layouts = repr([(b.name, b.preparation) for b in built.params])
    return digest(a.code.hex(), layouts, str(a.workspace_nbytes), str(a.parameters))


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best kernel so far, with what is needed to run it again."""

    trial: Trial
    built: Built


@dataclass(slots=True)
class Incumbents:
    """The current incumbent of a task, and earlier ones that failed. `verdicts` are by the key of
    the kernel's code.
    """

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    current: Incumbent | None = None
    best: Measurement | None = None  # the current incumbent's
    deposed: list[Measurement] = field(default_factory=list)  # failures of earlier incumbents
    monitor: DriftMonitor = field(default_factory=DriftMonitor)

    def depose(self, incumbent: Incumbent, failure: Failure) -> None:
        """Records that the incumbent, and so all candidates with its code, have failed."""
        self.current = None
        self.verdicts[incumbent.trial.key] = Verdict((), (), failure, False, False)
        if self.best is not None:
            self.deposed.append(Measurement(self.best.candidate, failure=failure))
            self.best = None

    def others(
        self, trials: Mapping[str, Trial], by_slot: Mapping[int, Candidate]
    ) -> Iterator[Measurement]:
        """At the end of a batch: those with the code of another one that was measured, and failures
        of earlier incumbents.
        """
        for t in trials.values():
            verdict = self.verdicts.get(t.key)
            if verdict is not None and not t.finished:
                t.finished = True
                yield verdict.of(by_slot[t.slot], t.build_seconds)
        while self.deposed:
            yield self.deposed.pop()

    def trim(self) -> None:
        """Drops the oldest verdicts: a search mostly returns to recent candidates."""
        while len(self.verdicts) > _MAX_VERDICTS:
            del self.verdicts[next(iter(self.verdicts))]


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
    until: float  # on time.monotonic(); kernels that have not run by then are left out
    # The share of the trials that the next batch may take over, if they take long to build.
    may_leave: float = 0.0
    _kernels: dict[str, tuple[Trial, Built]] = field(default_factory=dict)  # by key of the code
    _final: list[Trial] = field(default_factory=list)  # not given out yet
    _incumbent_seconds: float = inf  # at the start of running
    _reached: bool = False  # whether a kernel has been timed
    _end: float = inf  # the latest moment for a first kernel

    def run(
        self,
        trials: Mapping[str, Trial],
        jobs: Mapping[str, Build],
        overlap: bool,
        wait_until_quiet: Callable[[], None],
    ) -> Iterator[Trial]:
        """Takes one job per trial. Gives each trial when it is final, except those that were not
        reached in time; no kernel runs until the caller asks for the next one. Afterwards
        `incumbents.verdicts` has each kernel that was reached.

        All cores build until those that run kernels have nothing left to build. Then kernels run.
        With `overlap`, the other cores continue to build this batch and then the next one. Without,
        `wait_until_quiet` is called before the first kernel runs.
        """
        self.incumbents.trim()
        self._end = max(self.until, time.monotonic()) + _GRACE
        cores, free = self.cores, self.cores.free if overlap else ()
        self.builders.want(jobs, int(self.may_leave * len(jobs)))
        self.builders.allow(cores.all, free)
        # Kernels of a GPU take no core, so that they need not wait for one.
        wait = self.builders.occupies if cores.run or not overlap else _never
        while wait(cores.run if overlap else cores.all) and self._in_time:
            self._receive(trials)
            yield from self._given()
            if self._is_late and self._kernels:
                break
        if not overlap:
            wait_until_quiet()
        if self._is_late and (self._kernels or not self._in_time):
            self.builders.want({})
        self.builders.allow(free, free)
        self._incumbent_seconds = best = self._time_incumbent()
        fresh: list[Trial] | None = [t for t, _ in self._kernels.values()]
        while fresh is not None:
            for t in fresh:
                best = min(best, self._screen(t, best))
                if t.failure is not None or (t.reached and not self._may_race(t, best)):
                    self._finish(t)
                yield from self._given()
            fresh = self._receive(trials)
        kernels = [t for t, _ in self._kernels.values()]
        self._screen_again(kernels, best)
        with self._counted("racing"):
            self._race(kernels)
        incumbent = self.incumbents.current
        self.runner.forget(
            [t.slot for t in kernels if incumbent is None or t is not incumbent.trial]
        )
        yield from self.rest(trials.values())

    def rest(self, trials: Iterable[Trial]) -> Iterator[Trial]:
        """Whatever ended the batch: those that were reached, and not given out yet."""
        for t in trials:
            if t.reached and not t.finished:
                self._finish(t)
        yield from self._given()

    def _given(self) -> Iterator[Trial]:
        while self._final:
            yield self._final.pop(0)

    def _finish(self, trial: Trial) -> None:
        trial.finished = True
        if trial.key:
            self.incumbents.verdicts[trial.key] = trial.verdict(self.rules)
        self._final.append(trial)

    def _may_race(self, trial: Trial, best: float) -> bool:
        """Contended trials get a wider margin, because they will be screened again."""
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
        """Whether another kernel may be measured. `_GRACE` applies if none has been measured."""
        if self.incumbents.verdicts or self._reached:
            return not self._is_late
        return time.monotonic() < self._end

    @contextmanager
    def _counted(self, activity: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            total = getattr(self.spent, activity) + time.perf_counter() - start
            setattr(self.spent, activity, total)

    def _receive(self, trials: Mapping[str, Trial]) -> list[Trial] | None:
        """The next trial that was built; [] if its code is known already or it failed; None if no
        more builds will come.
        """
        end = self.until if self.incumbents.verdicts or self._kernels else self._end
        with self._counted("waiting"):
            taken = self.builders.take(end - time.monotonic())
        if taken is None:
            return None
        name, outcome = taken
        trial = trials[name]
        return [trial] if self._add(trial, outcome) else []

    def _add(self, trial: Trial, outcome: Built | Failure) -> bool:
        """Returns whether the trial's code is new."""
        if isinstance(outcome, Failure):
            trial.failure = outcome
            self._finish(trial)
            return False
        trial.key, trial.build_seconds = key_of(outcome), outcome.seconds
        self.spent.building += outcome.seconds
        if trial.key in self.incumbents.verdicts or trial.key in self._kernels:
            return False
        self._kernels[trial.key] = trial, outcome
        self.runner.add(trial.slot, outcome)
        return True

    def _time_incumbent(self) -> float:
        """The incumbent's time on the machine as it is now; infinite if there is none."""
        incumbent = self.incumbents.current
        if incumbent is None:
            return inf
        monitor, (slot, _), timed = (
            self.incumbents.monitor,
            incumbent.trial.entry,
            incumbent.trial.timed,
        )
        deaths: Counter[int] = Counter()
        while True:
            try:
                return retime(self._clock, slot, timed, self.rules, monitor, self.timeout)
            except KernelFailed as failed:
                if _is_to_blame(slot, failed, deaths):
                    self._depose(incumbent, failed.failure)
                    return inf

    def _screen(self, trial: Trial, best: float) -> float:
        """The trial's time; infinite if it failed or the time is up."""
        rest = self.until - time.monotonic()
        if not self._in_time or (self._reached and rest < _FINISH * best < inf):
            return inf
        expected = _PATIENCE * best if best < inf else self.rules.first_limit
        patience = min(self.timeout, max(self.rules.min_limit, expected))
        deaths: Counter[int] = Counter()
        while True:
            limit = min(patience, self._end - time.monotonic())
            try:
                trial.timed = self._time_alone(trial, best, limit)
                break
            except KernelFailed as failed:
                if failed.failure.kind == "timeout" and limit < patience:
                    return inf  # the run ended before the kernel's own timeout: not a failure
                if _is_to_blame(trial.slot, failed, deaths):
                    trial.failure = failed.failure
                    self.runner.unload([trial.slot])
                    return inf
        if trial.timed.corrected > self.rules.race_within * best:
            self.runner.unload([trial.slot])
        self._reached = True
        trial.contended = trial.timed.is_contended(self.rules)
        return trial.timed.corrected

    def _time_alone(self, trial: Trial, best: float, limit: float) -> Timed:
        slot, monitor = trial.slot, self.incumbents.monitor
        with self._counted("checking"):
            first = self.runner.check(slot, limit)
        if self._is_late and first > self.rules.max_seconds:  # no time for a second call
            return Timed([Sample(first, 1.0, reference=monitor.latest)])
        with self._counted("timing"):
            timed = screen(self._clock, slot, first, best, self.rules, monitor, limit)
        if not self.rules.gives_up(first, best):
            near = timed.corrected <= self.rules.race_within * best
            again = near and self._has_threads(trial)
            calls = self._repeats(first, _REPEATS_NEAR) if again else 0
            with self._counted("checking"):
                self.runner.verify(slot, calls, True, limit)
        return timed

    def _has_threads(self, trial: Trial) -> bool:
        artifact = self._kernels[trial.key][1].artifact
        return artifact.uses_threads or artifact.target.kind != "cpu"

    def _repeats(self, seconds: float, most: int) -> int:
        """How many more calls of a kernel that may win are compared: a race between threads shows
        in some calls only.
        """
        if self._is_late:
            return 0
        return min(most, max(1, int(_REPEAT_SECONDS / seconds)))

    def _screen_again(self, trials: Sequence[Trial], best: float) -> None:
        """Contended trials that may be good are screened a second time."""
        for t in trials:
            promising = t.timed.samples and t.timed.corrected <= self.rules.cutoffs[0] * best
            if promising and t.failure is None and t.contended and self._in_time:
                before = t.timed.samples
                self._screen(t, best)
                if t.failure is None and t.contended:  # contended again: all samples count
                    t.timed.samples = [*before, *t.timed.samples]

    def _race(self, trials: Sequence[Trial]) -> None:
        """Races the trials near the best against the incumbent; confirms a winner in a fresh
        process.
        """
        entrants = self._entrants(trials)
        deaths: Counter[int] = Counter()
        while entrants:
            incumbent = self.incumbents.current
            try:
                winner = self._winner(entrants, incumbent)
                if winner is not None:
                    self._crown(winner, incumbent)
                return
            except KernelFailed as failed:
                deaths[failed.slot] += 1
                if failed.died and deaths[failed.slot] < _LIVES:
                    continue
                if incumbent is not None and failed.slot == incumbent.trial.slot:
                    self._depose(incumbent, failed.failure)
                    continue
                bad = [t for t in entrants if t.slot == failed.slot]
                if not bad:  # no entrant is to blame, so there is no result
                    return
                bad[0].failure = failed.failure
                entrants = [t for t in entrants if t.failure is None]

    def _entrants(self, trials: Sequence[Trial]) -> list[Trial]:
        good = [t for t in trials if t.failure is None and t.reached]
        if not good:
            return []
        best = min(self._incumbent_seconds, *(t.timed.corrected for t in good))
        # What was screened just before the end may be the best of all: a short race decides.
        short = best <= _SHORT and time.monotonic() < self.until + _LATE
        if not self._in_time and not short:
            return []
        if best > self.rules.max_seconds and self.until - time.monotonic() < _FINISH * best:
            return []
        within = self.rules.race_within * best
        near = [t for t in good if t.timed.corrected <= within and not t.finished]
        near.sort(key=lambda t: t.timed.corrected)
        # Racing may take a quarter of the time that screening took.
        sampled = sum(s.seconds * t.timed.calls for t in good for s in t.timed.samples)
        each = 2 * self.rules.rounds * max(best, self.rules.sample_seconds)
        return near[: max(2, min(self.rules.max_entrants, int(sampled / 4 / each)))]

    def _winner(self, entrants: Sequence[Trial], incumbent: Incumbent | None) -> Trial | None:
        if incumbent is None and len(entrants) == 1:
            return entrants[0]
        pivot = entrants[0] if incumbent is None else incumbent.trial
        result = race(
            self._clock, dict(t.entry for t in entrants), pivot.entry, self.rules,
            self.incumbents.monitor, self.rng, self.timeout,
        )  # fmt: skip
        self._add_samples(result, entrants)
        winner = next(t for t in entrants if t.slot == result.winner)
        if incumbent is not None and not is_believed(result.ratios[winner.slot], self.rules):
            return None
        return winner

    def _crown(self, winner: Trial, incumbent: Incumbent | None) -> None:
        if self.confirm:
            self.runner.renew()
            self.runner.check(winner.slot, self.timeout)
            pivot = winner if incumbent is None else incumbent.trial
            result = duel(
                self._clock, winner.entry, pivot.entry, self.rules, self.incumbents.monitor,
                self.rng, self.timeout,
            )  # fmt: skip
            self._add_samples(result, [winner])
            if incumbent is not None and not is_believed(result.ratios[winner.slot], self.rules):
                return
            winner.contended = winner.timed.is_contended(self.rules)
        repeats = self._repeats(winner.timed.corrected, _REPEATS_OF_WINNER)
        self.runner.verify(winner.slot, repeats, False, self.timeout)
        if incumbent is not None and winner.contended and not incumbent.trial.contended:
            return  # its samples are recorded, but it is not the winner
        winner.confirmed = self.confirm and not winner.contended
        self.incumbents.current = Incumbent(winner, self._kernels[winner.key][1])
        if incumbent is not None:
            self.runner.forget([incumbent.trial.slot])

    def _add_samples(self, result: Race, trials: Sequence[Trial]) -> None:
        for t in trials:
            t.timed.samples.extend(result.samples[t.slot])
            t.contended = t.timed.is_contended(self.rules)

    def _depose(self, incumbent: Incumbent, failure: Failure) -> None:
        """Drops an incumbent that ran well before and fails now."""
        self.runner.forget([incumbent.trial.slot])
        self.incumbents.depose(incumbent, failure)


def _never(cores: Collection[int]) -> bool:
    return False


def _is_to_blame(slot: int, failed: KernelFailed, deaths: Counter[int]) -> bool:
    """Whether the kernel in this slot has failed. Otherwise it is tried again."""
    if failed.slot == slot and not failed.died:
        return True
    deaths[failed.slot] += 1
    if deaths[slot] >= _LIVES:
        return True
    if deaths.total() >= _ALL_LIVES:
        raise MeasureError(
            f"the process that runs kernels ended {deaths.total()} times in a row, and no kernel "
            f"was to blame: {failed.failure.text}; is something else ending processes here?"
        )
    return False
