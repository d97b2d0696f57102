"""LocalMeasurer: candidates in, measurements from this machine's processor out.

Settings are frozen; `open` starts the processes that build and run, and the run that it returns
holds them until it is closed.
"""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Self

from tilesmith.base.errors import MeasureError, TargetError
from tilesmith.base.target import Target, cpu
from tilesmith.codegen.artifact import Artifact
from tilesmith.ir.function import Function
from tilesmith.measure.batch import Batch
from tilesmith.measure.meanwhile import Meanwhile
from tilesmith.measure.messages import Build
from tilesmith.measure.protocol import Upcoming
from tilesmith.measure.standing import Spent, Standing, Trial
from tilesmith.measure.timing import Rules
from tilesmith.measure.wire import Gone
from tilesmith.measure.workshop import Workshop
from tilesmith.runtime.build import compile_function
from tilesmith.schedule.trace import Trace
from tilesmith.task.inputs import require_memory
from tilesmith.task.task import Candidate, Failure, Measurement, Task


@dataclass(frozen=True)
class LocalMeasurer:
    """`timeout` is for building a candidate, and again for a call of it. With `cold`, caches are
    flushed before every call. `memory_nbytes` is what a kernel may allocate. `builder` turns a
    scheduled Function into an Artifact; worker processes must be able to import it.
    """

    timeout: float = 10.0
    cold: bool = False
    memory_nbytes: int = 2 << 30
    confirm: bool = True
    builder: Callable[[Function, Target], Artifact] = compile_function
    rules: Rules = field(default_factory=Rules)
    seed: int = 0

    def open(self, task: Task) -> LocalRun:
        return LocalRun(self, task)

    @property
    def timing_rules(self) -> Rules:
        """With cold caches a sample is one call: the next one would find them warm."""
        return replace(self.rules, sample_seconds=0.0, min_seconds=0.0) if self.cold else self.rules


class LocalRun:
    """Measures candidates of one task after another; what it knows of each is kept. `spent` says
    where its time went.
    """

    def __init__(self, settings: LocalMeasurer, task: Task) -> None:
        self._settings = settings
        try:
            self._builder = pickle.dumps(settings.builder)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise MeasureError(f"worker processes cannot have the builder: {error}") from None
        _refuse_foreign(task.target)
        require_memory(task.func)
        self.spent = Spent()
        self._standing: dict[str, Standing] = {}
        self._rng = random.Random(settings.seed)
        self._slots = 0
        self._closed = False
        self._lock = threading.Lock()
        self._workshop = Workshop(settings.timeout, settings.memory_nbytes, settings.cold)

    def measure(
        self,
        candidates: Sequence[Candidate],
        upcoming: Upcoming | None = None,
        until: float | None = None,
    ) -> list[Measurement]:
        end = float("inf") if until is None else until
        ahead = None if upcoming is None else cache(upcoming)
        with self._lock:
            found: dict[int, Measurement] = {}
            by_task: dict[str, list[int]] = {}
            for i, c in enumerate(candidates):
                by_task.setdefault(c.task.statement, []).append(i)
            for numbers in by_task.values():
                measured = self._measure_surely([candidates[i] for i in numbers], ahead, end)
                found.update({i: m for i, m in zip(numbers, measured, strict=True) if m})
            if ahead is not None:
                ahead()
            return [found[i] for i in sorted(found)]

    def _measure_surely(
        self, candidates: Sequence[Candidate], upcoming: Upcoming | None, until: float
    ) -> list[Measurement | None]:
        try:
            for _ in range(2):  # someone may end our processes; once may be chance
                if self._closed:
                    raise MeasureError("this run of a measurer is closed; open another one")
                try:
                    return self._measure(candidates, upcoming, until)
                except Gone:
                    self._workshop.abandon()
            raise MeasureError("the measuring processes were ended twice in a row")
        except BaseException:
            # Interrupted in the middle of a question, the answer must not be taken for that to the
            # next one.
            self._workshop.abandon()
            raise

    def _measure(
        self, candidates: Sequence[Candidate], upcoming: Upcoming | None, until: float
    ) -> list[Measurement | None]:
        """Of one task; None for those that time did not reach."""
        task = candidates[0].task
        _refuse_foreign(task.target)
        standing = self._standing.setdefault(task.key, Standing())
        crew = self._workshop.serve(task)
        if standing.incumbent is not None:
            crew.runner.add(standing.incumbent.trial.slot, standing.incumbent.built)
        trials: dict[str, Trial] = {}
        for c in candidates:
            if c.key not in trials:
                self._slots += 1
                trials[c.key] = Trial(self._slots)
        jobs, failures = self._jobs(candidates)
        for key, failure in failures.items():
            trials[key].failure = failure
        s, rules = self._settings, self._settings.timing_rules
        batch = Batch(
            crew.builders, crew.runner, crew.cores, standing, rules, s.timeout, s.confirm,
            self._rng, self.spent, until,
        )  # fmt: skip

        def look_ahead() -> None:
            if upcoming is not None:
                crew.builders.begin(self._jobs(upcoming())[0])

        beside = crew.may_share
        with Meanwhile(look_ahead, crew.cores.free or crew.cores.all) as meanwhile:
            batch.run(trials, jobs, beside, meanwhile.wait)
        crew.crowded = 4 * sum(t.contended for t in trials.values()) > len(trials)
        return [self._measurement(c, trials[c.key], standing) for c in candidates]

    def _measurement(self, c: Candidate, t: Trial, standing: Standing) -> Measurement | None:
        verdict = standing.known.get(t.key)
        if verdict is None:
            if not t.reached:
                return None
            verdict = t.verdict(self._settings.timing_rules)
        m = verdict.of(c, t.build_seconds)
        if standing.incumbent is not None and t is standing.incumbent.trial:
            standing.best = m
        return m

    def _jobs(self, candidates: Sequence[Candidate]) -> tuple[dict[str, Build], dict[str, Failure]]:
        """By the candidates' keys."""
        made = {c.key: self._job(c) for c in candidates}
        jobs = {key: job for key, job in made.items() if isinstance(job, Build)}
        return jobs, {key: job for key, job in made.items() if isinstance(job, Failure)}

    def _job(self, c: Candidate) -> Build | Failure:
        func, target = c.task.func, c.task.target
        packed = _portable(c.trace)
        if packed is None:  # its steps can be had in this process only
            try:
                func = c.trace.apply(func)
            except Exception as error:
                return Failure("schedule", f"{type(error).__name__}: {error}".splitlines()[0])
        return Build(func, target, packed, self._builder)

    def best(self, task: Task) -> Measurement | None:
        """The incumbent: what has won its races and was confirmed."""
        standing = self._standing.get(task.key)
        return None if standing is None else standing.best

    def close(self) -> None:
        """In another thread than the one that measures, it cuts that one's batch short."""
        self._closed = True
        if not self._lock.acquire(blocking=False):
            nursery = self._workshop.nursery
            if nursery is not None:
                nursery.kill()
            self._lock.acquire()
        try:
            self._workshop.abandon()
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _refuse_foreign(target: Target) -> None:
    here = cpu()
    if target.kind != "cpu" or target.arch != here.arch:
        raise TargetError(
            f"LocalMeasurer runs kernels on this machine's {here.arch} processor; the target is "
            f"{target.kind} {target.arch}"
        )


def _portable(trace: Trace) -> bytes | None:
    """The trace for another process; None if its steps are defined where only this one finds them:
    in a script, a notebook or inside a function.
    """
    if any(type(s).__module__ == "__main__" for s in trace):
        return None
    try:
        return pickle.dumps(trace)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
