"""The parent's side of the build workers: builds jobs, and returns Built kernels or Failures in the
order in which they are done.

There is one worker per core. The caller says which cores may build at the moment, and which of
them may build jobs of the next batch.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from tilesmith.base.identity import packed
from tilesmith.measure.messages import (
    Build,
    Built,
    Exit,
    Limits,
    explain,
    ready_artifact,
    was_killed,
)
from tilesmith.measure.parent.fork_server_client import ForkServerClient, Worker
from tilesmith.measure.wire import Channel, Gone, ready, time_left
from tilesmith.runtime.build import compile_for, compile_function
from tilesmith.schedule.unit import Tensorize
from tilesmith.task.task import Candidate, Failure, Task

# LLVM leaks a little memory per module, so a worker is replaced after this many; starting one takes
# 4 ms.
_MAX_BUILDS = 200
_LOOK = 0.01  # seconds between two looks for jobs of the next batch

Outcome = Built | Failure


@dataclass(slots=True)
class _BuildWorker:
    core: int
    worker: Worker
    job: str | None = None  # the name of the job being built
    build: Build | None = None
    deadline: float = 0.0
    num_builds: int = 0


class Builders:
    def __init__(
        self,
        fork_server: ForkServerClient,
        cores: Iterable[int],
        timeout: float,
        memory_nbytes: int,
    ) -> None:
        self._fork_server, self._timeout, self._nbytes = fork_server, timeout, memory_nbytes
        self._workers = [_BuildWorker(c, self._spawn(c)) for c in cores]
        self._waiting: deque[tuple[str, Build]] = deque()
        self._ahead: deque[tuple[str, Build]] = deque()
        self._done: dict[str, Outcome] = {}
        self._wanted: set[str] = set()
        self._kills: Counter[str] = Counter()  # workers that were killed, by job
        self._may_leave = 0
        self.left: frozenset[str] = frozenset()  # jobs of this batch that were not waited for
        self._kept: set[str] = set()  # jobs of earlier batches that were left, not wanted since
        self._knows_next = False  # whether jobs of the next batch were given
        self._cores: Collection[int] = ()
        self._cores_ahead: Collection[int] = ()

    def _spawn(self, core: int) -> Worker:
        return self._fork_server.spawn_builder(Limits((core,), self._nbytes))

    def want(self, jobs: Mapping[str, Build], may_leave: int = 0) -> None:
        """Replaces the jobs to build. Jobs among them that were built ahead are done already. The
        last `may_leave` of them are not waited for if the workers run out of others, see `take`.
        What earlier batches have left goes on: a batch of its task may come after those of others.
        """
        self._ahead.clear()
        self._kept -= jobs.keys()
        known = jobs.keys() | self._kept
        self._knows_next, self._may_leave, self.left = False, may_leave, frozenset()
        for b in self._workers:
            if b.job is not None and b.job not in known:
                b.job = None
                self._renew(b, kill=True)
        self._wanted = set(jobs)
        self._done = {name: o for name, o in self._done.items() if name in known}
        self._kills = Counter({name: n for name, n in self._kills.items() if name in known})
        begun = {*self._done, *(b.job for b in self._workers)}
        self._waiting = deque((name, job) for name, job in jobs.items() if name not in begun)

    def begin(self, jobs: Mapping[str, Build]) -> None:
        """Adds jobs to be built ahead. The only method that another thread may call."""
        self._ahead.extend(jobs.items())
        self._knows_next = bool(jobs)

    def allow(self, cores: Collection[int], ahead: Collection[int]) -> None:
        """From now on, jobs are started on these cores only. Jobs of the next batch are started on
        cores `ahead` when no other job is waiting.
        """
        self._cores, self._cores_ahead = cores, ahead
        self._start()

    def rest(self, until: float) -> None:
        """Starts no more jobs, and waits until none is being built, or for a moment `until`."""
        self.allow((), ())
        while (channels := self.channels) and time.monotonic() < until:
            nearest = min(until, *(b.deadline for b in self._workers if b.job is not None))
            ready(channels, time_left(nearest) + 0.001)
            self.serve()

    def occupies(self, cores: Collection[int]) -> bool:
        """Whether jobs of this batch are waiting, or one of these cores is building."""
        return bool(self._waiting) or any(b.job and b.core in cores for b in self._workers)

    @property
    def channels(self) -> list[Channel]:
        """The channels of workers that are building: `serve` must be called on a message."""
        return [b.worker.channel for b in self._workers if b.job is not None]

    def _start(self) -> None:
        for b in self._workers:
            if b.job is None and b.core in self._cores and self._waiting:
                self._start_on(b, self._waiting)
            elif b.job is None and b.core in self._cores_ahead and self._ahead:
                self._start_on(b, self._ahead)

    def _start_on(self, b: _BuildWorker, jobs: deque[tuple[str, Build]]) -> None:
        if b.num_builds >= _MAX_BUILDS:
            self._renew(b, kill=True)
        b.job, job = jobs.popleft()
        b.build = job
        b.deadline = time.monotonic() + self._timeout
        b.num_builds += 1
        try:
            b.worker.channel.send(job)
        except Gone:
            self._died(b)

    def serve(self) -> None:
        """Receives finished builds, ends those that take too long, and starts more."""
        now, readable = time.monotonic(), ready(self.channels, 0.0)
        for b in self._workers:
            if b.job is None:
                continue
            if b.worker.channel in readable:
                try:
                    outcome: Outcome = b.worker.channel.receive()
                except Gone:
                    self._died(b)
                    continue
                self._finish(b, outcome)
            elif now > b.deadline:
                self._finish(b, Failure("timeout", f"while building, after {self._timeout:g} s"))
                self._renew(b, kill=True)
        self._start()

    def take(self, seconds: float) -> tuple[str, Outcome] | None:
        """The next outcome of a wanted job; None if there is none within `seconds`, or if the rest
        may be left: then the next batch, with the rest, keeps the workers busy.
        """
        until = time.monotonic() + seconds
        while True:
            for name in self._done:
                if name in self._wanted:
                    self._wanted.discard(name)
                    return name, self._done.pop(name)
            self._start()
            busy = [b for b in self._workers if b.job is not None]
            if not self._wanted or not busy or time.monotonic() > until:
                return None
            if self._is_short:
                self.left = frozenset(self._wanted)
                self._kept |= self.left
                return None
            nearest = min(until, *(b.deadline for b in busy))
            # `begin` wakes nobody, and idle workers wait for it.
            wait = time_left(nearest) if self._knows_next else min(time_left(nearest), _LOOK)
            ready(self.channels, wait + 0.001)
            self.serve()

    @property
    def _is_short(self) -> bool:
        """Whether only jobs that may be left are missing, and soon a worker has nothing to do."""
        few = self._knows_next and len(self._ahead) < len(self._workers)
        return few and not self._waiting and len(self._wanted) <= self._may_leave

    def _finish(self, b: _BuildWorker, outcome: Outcome) -> None:
        assert b.job is not None
        self._done[b.job] = outcome
        b.job = None

    def _died(self, b: _BuildWorker) -> None:
        """Another process may have killed the worker, perhaps all workers at once. So a job whose
        worker was killed is tried again, up to as many times as there are workers.
        """
        end, name, build = self._renew(b), b.job, b.build
        assert name is not None
        assert build is not None
        self._kills[name] += was_killed(end)
        if was_killed(end) and self._kills[name] <= len(self._workers):
            b.job = None
            (self._waiting if name in self._wanted else self._ahead).appendleft((name, build))
        else:
            self._finish(b, explain(end, " while building"))

    def _renew(self, b: _BuildWorker, kill: bool = False) -> Exit:
        end = self._fork_server.reap(b.worker, kill)
        b.worker, b.num_builds = self._spawn(b.core), 0
        return end


_BUILT_IN = pickle.dumps(compile_function)


def job_of(c: Candidate, given: bytes | None = None) -> Build | Failure:
    """`given` is a packed builder for this candidate alone, in place of its task's."""
    func, target = c.task.func, c.task.target
    builder = given or _builder_of(c.task)
    units = [s.intrinsic for s in c.trace if isinstance(s, Tensorize)]
    if builder is None or packed([[*unit.emitters.values()] for unit in units]) is None:
        return _built_here(c)
    trace = packed(c.trace)
    if trace is None:  # other processes cannot import its steps
        try:
            func = c.trace.apply(func)
        except Exception as error:
            return _failure("schedule", error)
    return Build(func, target, trace, builder)


def _builder_of(task: Task) -> bytes | None:
    """Packed; None if other processes cannot import it."""
    own = None if task.parts is None else task.parts.backend(task.target.kind)
    return _BUILT_IN if own is None else packed(partial(compile_function, backend=own))


def _built_here(c: Candidate) -> Build | Failure:
    """A job for a kernel that only this process can build: the other only loads it."""
    target, stage = c.task.target, "schedule"
    try:
        func = c.trace.apply(c.task.func)
        stage = "build"
        artifact = compile_for(c.task, func)
    except Exception as error:  # the failure of a candidate is a value, whatever its cause
        return _failure(stage, error)
    ready = pickle.dumps(partial(ready_artifact, artifact))
    return Build(replace(func, body=()), target, None, ready)


def _failure(stage: str, error: Exception) -> Failure:
    return Failure(stage, f"{type(error).__name__}: {error}".splitlines()[0])
