"""The parent's side of the workers. Builders builds jobs, and returns Built kernels or Failures in
the order in which they are done. A Runner checks and times kernels, which are known by slot number.

There is one build worker per core. The caller says which cores may build at the moment, and which
of them may build jobs of the next batch. A run worker that dies or hangs is replaced, and a
KernelFailed names the kernel that it was running.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from tilesmith.base.errors import MeasureError
from tilesmith.base.identity import packed
from tilesmith.measure.messages import (
    REFERENCE,
    Broken,
    Build,
    Built,
    Check,
    Drop,
    Exit,
    Load,
    Sample,
    SpawnBuilder,
    SpawnRunner,
    Time,
    Verify,
    explain,
    ready_artifact,
    was_killed,
)
from tilesmith.runtime.build import compile_for, compile_function
from tilesmith.schedule.unit import Tensorize
from tilesmith.task.task import Candidate, Failure, Task
from tilesmith.workers.pool import ForkServer, Limits, Lost, Pool, Worker
from tilesmith.workers.wire import Channel, Gone, ready, time_left

# LLVM leaks a little memory per module, so a worker is replaced after this many; starting one takes
# 4 ms.
_MAX_BUILDS = 200
_LOOK = 0.01  # seconds between two looks for jobs of the next batch
# The linker leaks a little memory per library, so a worker is replaced after this many; starting
# one takes 4 ms.
_MAX_LOADS = 300
_START_SECONDS = 60.0  # for a worker that opens a device
_ANSWER_SECONDS = 10.0  # timeout for loading and dropping kernels, which runs nothing

Outcome = Built | Failure


class Builders:
    def __init__(
        self,
        fork_server: ForkServer[Exit],
        cores: Iterable[int],
        timeout: float,
        memory_nbytes: int,
    ) -> None:
        def spawn(core: int) -> Worker:
            return fork_server.start(SpawnBuilder(Limits((core,), memory_nbytes)))

        self._timeout = timeout
        self._pool: Pool[str, Exit] = Pool(cores, spawn, fork_server.reap, timeout, _MAX_BUILDS)
        self._waiting: deque[tuple[str, Build]] = deque()
        self._ahead: deque[tuple[str, Build]] = deque()
        self._done: dict[str, Outcome] = {}
        self._wanted: dict[str, None] = {}  # in the order in which they were proposed
        self._kills: Counter[str] = Counter()  # workers that were killed, by job
        self._may_leave = 0
        self.left: frozenset[str] = frozenset()  # jobs of this batch that were not waited for
        self._kept: set[str] = set()  # jobs of earlier batches that were left, not wanted since
        self._knows_next = False  # whether jobs of the next batch were given
        self._cores: Collection[int] = ()
        self._cores_ahead: Collection[int] = ()

    def want(self, jobs: Mapping[str, Build], may_leave: int = 0) -> None:
        """Replaces the jobs to build. Jobs among them that were built ahead are done already. The
        last `may_leave` of them are not waited for if the workers run out of others, see `take`.
        What earlier batches have left goes on: a batch of its task may come after those of others.
        """
        self._ahead.clear()
        self._kept -= jobs.keys()
        known = jobs.keys() | self._kept
        self._knows_next, self._may_leave, self.left = False, may_leave, frozenset()
        for p in self._pool.busy:
            if p.job not in known:
                p.job = None
                self._pool.renew(p)
        self._wanted = dict.fromkeys(jobs)
        self._done = {name: o for name, o in self._done.items() if name in known}
        self._kills = Counter({name: n for name, n in self._kills.items() if name in known})
        begun = {*self._done, *(p.job for p in self._pool.busy)}
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
            nearest = min(until, self._pool.deadline)
            ready(channels, time_left(nearest) + 0.001)
            self.serve()

    def occupies(self, cores: Collection[int]) -> bool:
        """Whether jobs of this batch are waiting, or one of these cores is building."""
        return bool(self._waiting) or any(p.number in cores for p in self._pool.busy)

    @property
    def channels(self) -> list[Channel]:
        """The channels of workers that are building: `serve` must be called on a message."""
        return self._pool.channels

    def _start(self) -> None:
        for p in self._pool.places:
            if p.job is None and p.number in self._cores and self._waiting:
                self._pool.give(p, *self._waiting.popleft())
            elif p.job is None and p.number in self._cores_ahead and self._ahead:
                self._pool.give(p, *self._ahead.popleft())

    def serve(self) -> None:
        """Receives finished builds, ends those that take too long, and starts more."""
        for name, build, answer in self._pool.serve():
            if not isinstance(answer, Lost):
                self._done[name] = answer
            elif answer.late:
                self._done[name] = Failure("timeout", f"while building, after {self._timeout:g} s")
            else:
                self._died(name, build, answer.end)
        self._start()

    def take(self, seconds: float) -> tuple[str, Outcome] | None:
        """The next outcome of a wanted job; None if there is none within `seconds`, or if the rest
        may be left: then the next batch, with the rest, keeps the workers busy. Of those that are
        done, the first that was proposed: it promised most, and the time may end with it.
        """
        until = time.monotonic() + seconds
        while True:
            for name in self._wanted:
                if name in self._done:
                    del self._wanted[name]
                    return name, self._done.pop(name)
            self._start()
            if not self._wanted or not self._pool.busy or time.monotonic() > until:
                return None
            if self._is_short:
                self.left = frozenset(self._wanted)
                self._kept |= self.left
                return None
            nearest = min(until, self._pool.deadline)
            # `begin` wakes nobody, and idle workers wait for it.
            wait = time_left(nearest) if self._knows_next else min(time_left(nearest), _LOOK)
            ready(self.channels, wait + 0.001)
            self.serve()

    @property
    def _is_short(self) -> bool:
        """Whether only jobs that may be left are missing, and soon a worker has nothing to do."""
        few = self._knows_next and len(self._ahead) < len(self._pool.places)
        return few and not self._waiting and len(self._wanted) <= self._may_leave

    def _died(self, name: str, build: Build, end: Exit) -> None:
        """Another process may have killed the worker, perhaps all workers at once. So a job whose
        worker was killed is tried again, up to as many times as there are workers.
        """
        self._kills[name] += was_killed(end)
        if was_killed(end) and self._kills[name] <= len(self._pool.places):
            (self._waiting if name in self._wanted else self._ahead).appendleft((name, build))
        else:
            self._done[name] = explain(end, " while building")


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


class KernelFailed(Exception):
    """A kernel failed while it ran. `slot` is the kernel that ran: REFERENCE for the reference
    kernel, 0 for none. `died` means that the worker process ended; another process may have ended
    it.
    """

    def __init__(self, slot: int, failure: Failure, died: bool = False) -> None:
        super().__init__(failure.text)
        self.slot, self.failure, self.died = slot, failure, died


class Background(Protocol):
    """Other processes that need attention while a kernel runs."""

    @property
    def channels(self) -> list[Channel]:
        """A message on any of these calls for `serve`."""

    def serve(self) -> None: ...


class Runner:
    """`task` is the statement key of a task whose arrays the fork server has. `slack` are seconds
    that a first call may take beyond its limit, for what is not the kernel's: a GPU's driver may
    compile it then. `reference` is the reference kernel if each worker must be given it.
    """

    def __init__(
        self,
        fork_server: ForkServer[Exit],
        task: str,
        limits: Limits,
        cold: bool,
        background: Background,
        slack: float = 0.0,
        reference: Built | None = None,
    ) -> None:
        self._fork_server, self._task = fork_server, task
        self._limits, self._cold = limits, cold
        self._background = background
        self._slack, self._reference = slack, reference
        self._worker: Worker | None = None
        self._kernels: dict[int, Built] = {}
        self._loaded: set[int] = set()  # slots linked in the worker
        self._num_loads = 0

    def start(self) -> None:
        """Starts the worker ahead of its first kernel. If that fails, it will again."""
        with suppress(KernelFailed):
            self._ask(Drop(()), _START_SECONDS)

    def add(self, slot: int, built: Built) -> None:
        self._kernels[slot] = built

    def forget(self, slots: Sequence[int]) -> None:
        self.unload(slots)
        for slot in slots:
            self._kernels.pop(slot, None)

    def unload(self, slots: Sequence[int]) -> None:
        """Frees the memory of kernels until they run again; replaces a worker that loaded many."""
        loaded = tuple(s for s in slots if s in self._loaded)
        if self._num_loads > _MAX_LOADS:
            self.renew()
        elif loaded and self._worker is not None:
            self._loaded.difference_update(loaded)
            with suppress(KernelFailed):  # a worker that died holds nothing
                self._ask(Drop(loaded), _ANSWER_SECONDS)

    def move(self, cores: tuple[int, ...]) -> None:
        if cores != self._limits.cores:
            self._limits = replace(self._limits, cores=cores)
            self.renew()

    def renew(self) -> None:
        """Ends the worker; the next kernel runs in a fresh process."""
        if self._worker is not None:
            self._fork_server.reap(self._worker, kill=True)
            self._worker = None

    def check(self, slot: int, seconds: float) -> float:
        """The seconds of a first call, whose result was correct."""
        self._load(slot)
        answer: float | Failure = self._ask(Check(slot), seconds + self._slack)
        if isinstance(answer, Failure):
            raise KernelFailed(slot, answer)
        return answer

    def verify(self, slot: int, calls: int, timed: bool, seconds: float) -> None:
        """Compares the results of so many calls, and of those that were `timed` just before."""
        self._load(slot)
        failure: Failure | None = self._ask(Verify(slot, calls, timed), seconds + _ANSWER_SECONDS)
        if failure is not None:
            raise KernelFailed(slot, failure)

    def times(self, order: Sequence[tuple[int, int]], seconds: float) -> list[Sample]:
        """One sample for each (slot, calls), taken in this order within `seconds`."""
        for slot, _ in order:
            if slot != REFERENCE:
                self._load(slot)
        samples: list[Sample] = self._ask(Time(tuple(order)), seconds)
        return samples

    def _load(self, slot: int) -> None:
        if self._worker is not None and slot in self._loaded:
            return
        message = Load(slot, self._kernels[slot])
        failure: Failure | None = self._ask(message, _ANSWER_SECONDS + self._slack)
        if failure is not None:
            raise KernelFailed(slot, failure)
        self._loaded.add(slot)
        self._num_loads += 1

    def _ask(self, message: Any, seconds: float) -> Any:
        if self._worker is None:
            self._worker = self._fork_server.start(
                SpawnRunner(self._task, self._limits, self._cold)
            )
            self._loaded.clear()
            self._num_loads = 0
            if self._reference is not None:
                failure = self._exchange(Load(REFERENCE, self._reference), _START_SECONDS)
                if failure is not None:
                    raise MeasureError(f"the reference kernel does not load: {failure.text}")
        return self._exchange(message, seconds)

    def _exchange(self, message: Any, seconds: float) -> Any:
        assert self._worker is not None
        worker = self._worker
        own = worker.channel
        slot = getattr(message, "slot", 0)
        try:
            own.send(message)
            deadline = time.monotonic() + seconds
            self._background.serve()
            while True:
                readable = ready([own, *self._background.channels], time_left(deadline))
                if own in readable:
                    answer = own.receive()
                    if isinstance(answer, Broken):
                        self.renew()
                        raise KernelFailed(answer.slot or slot, answer.failure)
                    return answer
                self._background.serve()
                if time.monotonic() > deadline:
                    end = self._fork_server.reap(worker, kill=True)
                    self._worker = None
                    failure = Failure("timeout", f"no answer after {seconds:.3g} s")
                    if not end.killed:  # it died just before it would have been killed
                        failure = explain(end, " while running")
                    raise KernelFailed(end.slot or slot, failure, died=not end.killed)
        except Gone:
            end = self._fork_server.reap(worker)
            self._worker = None
            failure = explain(end, " while running")
            raise KernelFailed(end.slot or slot, failure, died=True) from None
