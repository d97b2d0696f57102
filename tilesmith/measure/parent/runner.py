"""The parent's side of a run worker: checks and times kernels, which are known by slot number.

A worker that dies or hangs is replaced, and a KernelFailed names the kernel that it was running.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from tilesmith.base.errors import MeasureError
from tilesmith.measure.messages import (
    REFERENCE,
    Broken,
    Built,
    Check,
    Drop,
    Limits,
    Load,
    Sample,
    Time,
    Verify,
    explain,
)
from tilesmith.measure.parent.fork_server_client import ForkServerClient, Worker
from tilesmith.measure.wire import Channel, Gone, ready, time_left
from tilesmith.task.task import Failure

# The linker leaks a little memory per library, so a worker is replaced after this many; starting
# one takes 4 ms.
_MAX_LOADS = 300
_START_SECONDS = 60.0  # for a worker that opens a device
_ANSWER_SECONDS = 10.0  # timeout for loading and dropping kernels, which runs nothing


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
        fork_server: ForkServerClient,
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
            self._worker = self._fork_server.spawn_runner(self._task, self._limits, self._cold)
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
