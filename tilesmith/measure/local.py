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
from typing import Self

from tilesmith.base.errors import MeasureError, TargetError
from tilesmith.base.target import Target, cpu
from tilesmith.codegen.artifact import Artifact
from tilesmith.ir.function import Function
from tilesmith.measure.batch import Batch
from tilesmith.measure.messages import Build
from tilesmith.measure.standing import Spent, Standing, Trial
from tilesmith.measure.timing import Rules
from tilesmith.measure.wire import Gone
from tilesmith.measure.workshop import Workshop
from tilesmith.runtime.build import compile_function
from tilesmith.schedule.trace import Trace
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
        self.spent = Spent()
        self._standing: dict[str, Standing] = {}
        self._rng = random.Random(settings.seed)
        self._slots = 0
        self._closed = False
        self._lock = threading.Lock()
        self._workshop = Workshop(settings.timeout, settings.memory_nbytes, settings.cold)

    def measure(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        with self._lock:
            found: dict[int, Measurement] = {}
            by_task: dict[str, list[int]] = {}
            for i, c in enumerate(candidates):
                by_task.setdefault(c.task.key, []).append(i)
            for numbers in by_task.values():
                measured = self._measure_surely([candidates[i] for i in numbers])
                found.update(zip(numbers, measured, strict=True))
            return [found[i] for i in range(len(candidates))]

    def _measure_surely(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        try:
            for _ in range(2):  # someone may end our processes; once may be chance
                if self._closed:
                    raise MeasureError("this run of a measurer is closed; open another one")
                try:
                    return self._measure(candidates)
                except Gone:
                    self._workshop.abandon()
            raise MeasureError("the measuring processes were ended twice in a row")
        except BaseException:
            # Interrupted in the middle of a question, the answer must not be taken for that to the
            # next one.
            self._workshop.abandon()
            raise

    def _measure(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        """Of one task."""
        task = candidates[0].task
        _refuse_foreign(task.target)
        standing = self._standing.setdefault(task.key, Standing())
        crew = self._workshop.serve(task)
        if standing.incumbent is not None:
            crew.runner.add(standing.incumbent.trial.slot, standing.incumbent.built)
        trials: dict[str, Trial] = {}
        building: list[Trial] = []
        jobs: list[Build] = []
        for c in candidates:
            if c.key in trials:
                continue
            self._slots += 1
            trial = trials[c.key] = Trial(self._slots)
            job = self._job(c)
            if isinstance(job, Failure):
                trial.failure = job
            else:
                building.append(trial)
                jobs.append(job)
        s, rules, spent = self._settings, self._settings.timing_rules, self.spent
        batch = Batch(
            crew.builders, crew.runner, crew.cores, standing, rules, s.timeout, s.confirm,
            self._rng, spent,
        )  # fmt: skip
        batch.run(building, jobs, crew.overlaps(spent.building, spent.checking + spent.timing))
        out = []
        for c in candidates:
            t = trials[c.key]
            verdict = standing.known[t.key] if t.key else t.verdict(rules)
            out.append(verdict.of(c, t.build_seconds))
            if standing.incumbent is not None and t is standing.incumbent.trial:
                standing.best = out[-1]
        crew.crowded = 4 * sum(t.contended for t in building) > len(building)
        return out

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
