"""LocalMeasurer: measures candidates on this machine's CPU, or on its GPUs.

Its settings are frozen. `open` returns a run and starts the processes that build and run kernels;
the run holds them until it is closed.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import cache
from math import inf
from typing import Self

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import MeasureError, TilesmithError
from tilesmith.base.given import checks_given
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact
from tilesmith.ir.function import Function
from tilesmith.measure.messages import Build
from tilesmith.measure.parent.batch import Batch, Incumbents, TimeSpent, Trial
from tilesmith.measure.parent.build_and_run import job_of
from tilesmith.measure.parent.timing import TimingRules
from tilesmith.measure.parent.worker_pool import WorkerPool
from tilesmith.measure.protocol import Results, StreamRun, Upcoming, Winner
from tilesmith.measure.this_machine import require_this_machine
from tilesmith.task.inputs import require_memory
from tilesmith.task.task import Candidate, Failure, Measurement, Task
from tilesmith.workers.wire import Gone

# Python switches threads every 5 ms by default. Measuring exchanges many short messages, each of
# which would wait that long.
_SWITCH_SECONDS = 0.0005
# Seconds after which a kernel on a GPU times out: if another one was much faster, and if none has
# run yet.
_GPU_LIMIT, _GPU_FIRST_LIMIT = 0.5, 3.0
# The share of a batch that is left for the next one, if it takes long to build for a GPU.
_MAY_POSTPONE = 0.25


class Overlap:
    """Runs `work` from the beginning of a `with` block; the block ends when both are done."""

    def __init__(self, work: Callable[[], None], cores: Collection[int]) -> None:
        self._work, self._cores = work, cores
        self._thread = threading.Thread(target=self._run, name="tilesmith-overlap", daemon=True)
        self._error: BaseException | None = None
        self._switch_seconds = sys.getswitchinterval()

    def _run(self) -> None:
        with suppress(OSError):  # a core may be offline now
            os.sched_setaffinity(0, self._cores)  # affects this thread only
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Until the work is done; raises its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._thread.start()
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            self._thread.join()
        finally:
            sys.setswitchinterval(self._switch_seconds)
        if kind is None:
            self.wait()


@checks_given
@dataclass(frozen=True)
class LocalMeasurer:
    """Measures on this machine's CPU, or on its GPUs, in processes of its own.

    - `timeout`: seconds, once for building a candidate and once for a call of it.
    - `cold`: caches are flushed before every call (on a GPU, every call of a sample has buffers of
      its own).
    - `memory_nbytes`: what a kernel may allocate.
    - `confirm`: a winner must win again in a fresh process.
    - `rules`: how many samples are taken, and how long they are.
    - `seed`: determines the order of kernels in races.
    - `arrays_nbytes`: bounds the inputs and expected outputs that are kept of tasks measured
      before; dropped ones are evaluated again when needed.
    - `builder_cores`: those that build for a GPU, by default all.

    Example:

        result = ts.tune(func, measurer=ts.LocalMeasurer(timeout=3), budget=ts.Budget(trials=100))
    """

    timeout: float = 10.0
    cold: bool = False
    memory_nbytes: int = 2 << 30
    confirm: bool = True
    rules: TimingRules = field(default_factory=TimingRules)
    seed: int = 0
    arrays_nbytes: int = 2 << 30
    builder_cores: tuple[int, ...] = ()

    def open(self, task: Task) -> LocalRun:
        """Starts the processes; the task is the first that will be measured."""
        return LocalRun(self, task)

    def timing_rules(self, target: Target) -> TimingRules:
        """With cold caches a sample on a CPU is one call, because the next one has warm caches. A
        GPU that hangs is noticed sooner, because its calls are short.
        """
        if target.kind != "cpu":
            limit = min(_GPU_LIMIT, self.rules.min_limit)
            first = min(_GPU_FIRST_LIMIT, self.rules.first_limit)
            return replace(self.rules, min_limit=limit, first_limit=first)
        return replace(self.rules, sample_seconds=0.0, min_seconds=0.0) if self.cold else self.rules


class LocalRun(StreamRun):
    """Measures candidates of any tasks. The state of each task is kept, so it can alternate between
    them. `spent` says where its time went.
    """

    capacity = 0

    def __init__(self, settings: LocalMeasurer, task: Task) -> None:
        self._settings = settings
        require_this_machine(task.target)
        require_memory(task.func)
        self.spent = TimeSpent()
        self._incumbents: dict[str, Incumbents] = {}
        self._rng = random.Random(settings.seed)
        self._slots = 0
        self._closed = False
        self._submitted: list[Candidate] = []
        self._left: list[Candidate] = []
        self._given: dict[str, bytes] = {}  # pickled builders, by the key of their candidate
        self._lock = threading.Lock()
        self._pool = WorkerPool(
            settings.timeout, settings.memory_nbytes, settings.arrays_nbytes, settings.cold,
            settings.builder_cores,
        )  # fmt: skip

    def prepare(self, task: Task) -> None:
        """The oracle evaluates the task while the search thinks of its first candidates."""
        name = "tilesmith-prepare"
        threading.Thread(target=self._begin, args=(task,), name=name, daemon=True).start()

    def _begin(self, task: Task) -> None:
        with self._lock:  # `results` wait for it
            if self._closed:
                return
            try:
                self._pool.begin(task)
            except (Gone, TilesmithError, OSError):
                self._pool.abandon()  # `results` start again, and say what is wrong

    def give(self, builders: Mapping[str, Callable[[Function, Target], Artifact]]) -> None:
        """Builders of single candidates by their keys, in place of those given before. A candidate
        that was compiled elsewhere has one that returns its code.
        """
        self._given = {key: pickle.dumps(builder) for key, builder in builders.items()}

    def submit(self, candidates: Sequence[Candidate]) -> None:
        self._submitted = list(candidates)

    def left(self, task: Task) -> Sequence[Candidate]:
        """Those whose builds take long, and go on."""
        return [c for c in self._left if c.task == task]

    def results(
        self, task: Task, until: float | None = None, upcoming: Upcoming | None = None,
        every: bool = False,
    ) -> Results:  # fmt: skip
        """Kernels run while the caller waits for the next measurement, and only then."""
        batch = [c for c in self._submitted if c.task == task]
        end = inf if until is None else until
        ahead = None if upcoming is None else cache(upcoming)
        done: set[str] = set()
        with self._lock:
            self._left = []
            try:
                for _ in range(2):  # another process may have killed ours, once
                    if self._closed:
                        raise MeasureError("this run of a measurer is closed; open another one")
                    missing = [c for c in batch if c.key not in done]
                    if not missing:
                        return
                    try:
                        yield from self._measure(missing, ahead, end, every, done)
                        return
                    except Gone:
                        self._pool.abandon()
                raise MeasureError(
                    "the processes that measure were ended twice in a row, not by this one; is the "
                    "machine out of memory?"
                )
            except BaseException:
                # A worker may still answer a request that was interrupted. That answer must not be
                # taken for the answer to the next one.
                self._pool.abandon()
                raise

    def _measure(
        self, candidates: Sequence[Candidate], upcoming: Upcoming | None, until: float, every: bool,
        done: set[str],
    ) -> Results:  # fmt: skip
        """Measures candidates of one task. The keys of those that were go into `done`."""
        task, s = candidates[0].task, self._settings
        require_this_machine(task.target)
        incumbents = self._incumbents.setdefault(task.statement, Incumbents())
        jobs, failures = self._jobs(candidates)
        workers = self._pool.serve(task, jobs, until)
        self.spent.evaluations = self._pool.evaluations
        if incumbents.current is not None:
            workers.runner.add(incumbents.current.trial.slot, incumbents.current.built)
        trials: dict[str, Trial] = {}
        by_slot: dict[int, Candidate] = {}
        for c in candidates:
            if c.key not in trials:
                self._slots += 1
                trials[c.key] = Trial(self._slots, failure=failures.get(c.key))
                by_slot[self._slots] = c
        rules = s.timing_rules(task.target)
        batch = Batch(
            workers.builders, workers.runner, workers.cores, incumbents, rules, s.timeout,
            s.confirm, self._rng, self.spent, until,
            0.0 if every or task.target.kind == "cpu" else _MAY_POSTPONE,
        )  # fmt: skip

        def measured(final: Iterator[Trial]) -> Iterator[Measurement]:
            for t in final:
                m = t.verdict(rules).of(by_slot[t.slot], t.build_seconds)
                if incumbents.current is not None and t is incumbents.current.trial:
                    incumbents.best = m
                done.add(m.candidate.key)
                yield m

        def look_ahead() -> None:
            if upcoming is not None:
                workers.builders.begin(self._jobs(upcoming())[0])

        try:
            with Overlap(look_ahead, workers.cores.free or workers.cores.all) as overlap:
                yield from measured(batch.run(trials, jobs, workers.may_share, overlap.wait))
        except GeneratorExit:  # nobody waits for more
            raise
        except BaseException:  # whatever ended the batch, its measurements so far are kept
            yield from measured(batch.rest(trials.values()))
            yield from incumbents.others(trials, by_slot)
            raise
        yield from incumbents.others(trials, by_slot)
        self._left += [c for c in candidates if c.key in workers.builders.left]
        workers.crowded = 4 * sum(t.contended for t in trials.values()) > len(trials)

    def _jobs(self, candidates: Sequence[Candidate]) -> tuple[dict[str, Build], dict[str, Failure]]:
        """Build jobs of those that can be built, and failures of the others, by candidate key."""
        all_jobs = {c.key: job_of(c, self._given.get(c.key)) for c in candidates}
        jobs = {key: job for key, job in all_jobs.items() if isinstance(job, Build)}
        return jobs, {key: job for key, job in all_jobs.items() if isinstance(job, Failure)}

    def best(self, task: Task) -> Measurement | None:
        """The incumbent: no other candidate of this task has beaten it side by side."""
        winner = self.winner(task)
        return None if winner is None else winner.measurement

    def winner(self, task: Task) -> Winner | None:
        """With the code of the incumbent, without its source."""
        own = self._incumbents.get(task.statement)
        if own is None or own.current is None or own.best is None:
            return None
        return Winner(own.best, own.current.built.artifact)

    def close(self) -> None:
        """If called from another thread than the one that measures, it ends that batch early."""
        self._closed = True
        if not self._lock.acquire(blocking=False):
            fork_server = self._pool.fork_server
            if fork_server is not None:
                fork_server.kill()
            self._lock.acquire()
        try:
            self._pool.abandon()
        finally:
            self._lock.release()
