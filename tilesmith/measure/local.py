"""LocalMeasurer: candidates in, measurements from this machine's processor out.

Settings are frozen; `open` starts the processes that build and run, and the run that it returns
holds them until it is closed.
"""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from tilesmith.base.errors import MeasureError, TargetError
from tilesmith.base.target import Target, cpu
from tilesmith.codegen.artifact import Artifact
from tilesmith.ir.function import Function
from tilesmith.measure.batch import Batch
from tilesmith.measure.builders import Builders
from tilesmith.measure.cores import Cores, share_out
from tilesmith.measure.messages import Build, Limits
from tilesmith.measure.nursery import Nursery
from tilesmith.measure.runner import Runner
from tilesmith.measure.standing import Spent, Standing, Trial
from tilesmith.measure.timing import Rules
from tilesmith.measure.wire import Gone, ready
from tilesmith.runtime.build import compile_function
from tilesmith.schedule.trace import Trace
from tilesmith.task.task import Candidate, Failure, Measurement, Task

_ORACLE_SECONDS = 600.0


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


@dataclass(slots=True)
class _Ready:
    """Processes that serve one task."""

    task: Task
    cores: Cores
    builders: Builders
    runner: Runner


class LocalRun:
    """Measures candidates of one task after another; what it knows of each is kept."""

    def __init__(self, settings: LocalMeasurer, task: Task) -> None:
        self._settings = settings
        try:
            self._builder = pickle.dumps(settings.builder)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise MeasureError(f"worker processes cannot have the builder: {error}") from None
        _refuse_foreign(task.target)
        self._standing: dict[str, Standing] = {}
        self._rng = random.Random(settings.seed)
        self._slots = 0
        self._closed = False
        self._ready: _Ready | None = None
        self.spent = Spent()
        self._nursery: Nursery | None = Nursery()

    def measure(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        if self._closed:
            raise MeasureError("this run of a measurer is closed; open another one")
        found: dict[int, Measurement] = {}
        by_task: dict[str, list[int]] = {}
        for i, c in enumerate(candidates):
            by_task.setdefault(c.task.key, []).append(i)
        for numbers in by_task.values():
            some = [candidates[i] for i in numbers]
            try:
                try:
                    measured = self._measure(some)
                except Gone:  # someone ended our processes: once may be chance
                    self._abandon()
                    measured = self._measure(some)
            except BaseException as error:
                # Interrupted in the middle of a question, the answer must not be taken for that to
                # the next one.
                self._abandon()
                if isinstance(error, Gone):
                    raise MeasureError(f"the measuring processes ended: {error}") from None
                raise
            found.update(zip(numbers, measured, strict=True))
        return [found[i] for i in range(len(candidates))]

    def _measure(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        task = candidates[0].task
        standing = self._standing.setdefault(task.key, Standing())
        r = self._prepare(task)
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
        s, rules = self._settings, self._settings.timing_rules
        batch = Batch(
            r.builders, r.runner, r.cores, standing, rules, s.timeout, s.confirm, self._rng,
            self.spent,
        )  # fmt: skip
        batch.run(building, jobs, self._overlaps(r.cores))
        out = []
        for c in candidates:
            t = trials[c.key]
            verdict = standing.known[t.key] if t.key else t.verdict(rules)
            out.append(verdict.of(c, t.build_seconds))
            if standing.incumbent is not None and t is standing.incumbent.trial:
                standing.best = out[-1]
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

    def _overlaps(self, cores: Cores) -> bool:
        """Whether building beside running is the faster way, judged by the past: with few cores and
        short kernels it is better that all of them build, then one runs.
        """
        free, spent = len(cores.free), self.spent
        if free == 0:
            return False
        running = spent.checking + spent.timing
        together = max(spent.building / free, running)
        in_turns = spent.building / len(cores.all) + running
        return together <= in_turns

    def _prepare(self, task: Task) -> _Ready:
        if self._ready is not None and self._ready.task == task:
            return self._ready
        _refuse_foreign(task.target)
        if self._nursery is None:
            self._nursery = Nursery()
        nursery, s = self._nursery, self._settings
        cores = share_out(task.target.num_cores)
        if self._ready is None:
            everyone = tuple(sorted(os.sched_getaffinity(0)))
            builders = Builders(nursery, everyone, s.timeout, s.memory_nbytes)
        else:
            self._ready.runner.renew()
            builders = self._ready.builders
        nbytes = task.func.nbytes
        oracle = nursery.prepare(task.func, task.target, Limits(cores.all, 8 * nbytes + (16 << 30)))
        try:
            if not ready([oracle.channel], _ORACLE_SECONDS):
                raise MeasureError(f"no answer to {task.func.name!r} in {_ORACLE_SECONDS:.0f} s")
            why: str | None = oracle.channel.receive()
        except Gone:
            why = "the process that evaluated it died"
        finally:
            nursery.reap(oracle, kill=True)
        if why is not None:
            raise MeasureError(f"{task.func.name!r} cannot be evaluated to check kernels: {why}")
        # Arrays, their aligned twins and relaid copies; a stack per thread; the flushing buffer.
        own = 8 * nbytes + task.target.num_cores * (16 << 20) + 4 * task.target.l3_nbytes
        limits = Limits(cores.run, own + s.memory_nbytes)
        runner = Runner(nursery, limits, s.cold, builders)
        self._ready = _Ready(task, cores, builders, runner)
        keep = self._standing[task.key].incumbent
        if keep is not None:
            runner.add(keep.trial.slot, keep.built)
        return self._ready

    def _abandon(self) -> None:
        self._ready = None
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None

    def best(self, task: Task) -> Measurement | None:
        """The incumbent: what has won its races and was confirmed."""
        standing = self._standing.get(task.key)
        return None if standing is None else standing.best

    def close(self) -> None:
        self._closed = True
        self._abandon()

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
