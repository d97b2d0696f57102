"""The run worker as its owner sees it: kernels by number in, verdicts and samples out; a worker
that dies or hangs becomes a Failure of the kernel it was running, and is replaced.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from tilesmith.measure.faults import explain
from tilesmith.measure.messages import (
    REFERENCE,
    Built,
    Check,
    Drop,
    Limits,
    Load,
    Sample,
    Time,
)
from tilesmith.measure.nursery import Nursery, Worker
from tilesmith.measure.wire import Channel, Gone, ready, time_left
from tilesmith.task.task import Failure

_MAX_LOADS = 300  # the linker keeps a little of every library; a new worker costs 4 ms


class Broken(Exception):
    """A kernel failed while it ran. `slot` is what ran: it may be the reference kernel, or 0 when
    nothing did. `died` means that the worker process ended, which another process may have caused.
    """

    def __init__(self, slot: int, failure: Failure, died: bool = False) -> None:
        super().__init__(failure.text)
        self.slot, self.failure, self.died = slot, failure, died


class Beside(Protocol):
    """What goes on while a kernel runs."""

    @property
    def channels(self) -> list[Channel]: ...

    def serve(self) -> None: ...


class Runner:
    def __init__(self, nursery: Nursery, limits: Limits, cold: bool, beside: Beside) -> None:
        self._nursery, self._limits, self._cold = nursery, limits, cold
        self._beside = beside
        self._worker: Worker | None = None
        self._kernels: dict[int, Built] = {}
        self._inside: set[int] = set()  # those that the worker has
        self._loads = 0

    def add(self, slot: int, built: Built) -> None:
        self._kernels[slot] = built

    def forget(self, slots: Sequence[int]) -> None:
        self.unload(slots)
        for slot in slots:
            self._kernels.pop(slot, None)

    def unload(self, slots: Sequence[int]) -> None:
        """Frees what kernels hold until they run again; the worker too, once it has had many."""
        gone = tuple(s for s in slots if s in self._inside)
        if self._loads > _MAX_LOADS:
            self.renew()
        elif gone and self._worker is not None:
            self._inside.difference_update(gone)
            with suppress(Broken):  # a worker that died holds nothing any more
                self._ask(Drop(gone), 10.0)

    def move(self, cores: tuple[int, ...]) -> None:
        if cores != self._limits.cores:
            self._limits = replace(self._limits, cores=cores)
            self.renew()

    def renew(self) -> None:
        """The next kernel runs in a fresh process."""
        if self._worker is not None:
            self._nursery.reap(self._worker, kill=True)
            self._worker = None

    def check(self, slot: int, seconds: float) -> float:
        """Seconds of the first call, whose result was right."""
        self._load(slot)
        answer: float | Failure = self._ask(Check(slot), seconds)
        if isinstance(answer, Failure):
            raise Broken(slot, answer)
        return answer

    def times(self, order: Sequence[tuple[int, int]], seconds: float) -> list[Sample]:
        """A sample each of (slot, calls), one after the other."""
        for slot, _ in order:
            if slot != REFERENCE:
                self._load(slot)
        samples: list[Sample] = self._ask(Time(tuple(order)), seconds)
        return samples

    def _load(self, slot: int) -> None:
        if self._worker is not None and slot in self._inside:
            return
        answer: Failure | None = self._ask(Load(slot, self._kernels[slot]), 10.0)
        if answer is not None:
            raise Broken(slot, answer)
        self._inside.add(slot)
        self._loads += 1

    def _ask(self, message: Any, seconds: float) -> Any:
        if self._worker is None:
            self._worker = self._nursery.spawn("run", self._limits, self._cold)
            self._inside.clear()
            self._loads = 0
        worker = self._worker
        own = worker.channel
        slot = getattr(message, "slot", 0)
        try:
            own.send(message)
            deadline = time.monotonic() + seconds
            self._beside.serve()
            while True:
                readable = ready([own, *self._beside.channels], time_left(deadline))
                if own in readable:
                    return own.receive()
                self._beside.serve()
                if time.monotonic() > deadline:
                    end = self._nursery.reap(worker, kill=True)
                    self._worker = None
                    failure = Failure("timeout", f"no answer after {seconds:.3g} s")
                    if not end.killed:  # it died at the last moment
                        failure = explain(end, " while running")
                    raise Broken(end.slot or slot, failure, died=not end.killed)
        except Gone:
            end = self._nursery.reap(worker)
            self._worker = None
            failure = explain(end, " while running")
            raise Broken(end.slot or slot, failure, died=True) from None
