"""The build workers of a run: jobs in, in the order given; Built kernels or Failures out, as they
come.

Each worker has a core of its own. Which of them may work at the moment is for the caller to say.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tilesmith.measure.faults import explain
from tilesmith.measure.messages import Build, Built, Exit, Limits
from tilesmith.measure.nursery import Nursery, Worker
from tilesmith.measure.wire import Channel, Gone, ready, time_left
from tilesmith.task.task import Failure

_MAX_BUILDS = 200  # LLVM keeps a little of every module; a new worker costs 4 ms

Outcome = Built | Failure


@dataclass(slots=True)
class _Bench:
    """A core with its worker and what that is doing."""

    core: int
    worker: Worker
    job: int | None = None
    deadline: float = 0.0
    done: int = 0


class Builders:
    def __init__(
        self, nursery: Nursery, cores: Iterable[int], timeout: float, memory_nbytes: int
    ) -> None:
        self._nursery, self._timeout, self._nbytes = nursery, timeout, memory_nbytes
        self._benches = [_Bench(c, self._spawn(c)) for c in cores]
        self._waiting: deque[tuple[int, Build]] = deque()
        self._done: deque[tuple[int, Outcome]] = deque()
        self._allowed: Collection[int] = ()

    def _spawn(self, core: int) -> Worker:
        return self._nursery.spawn("build", Limits((core,), self._nbytes))

    def submit(self, jobs: Iterable[tuple[int, Build]]) -> None:
        self._waiting.extend(jobs)

    @property
    def pending(self) -> bool:
        return bool(self._waiting) or self.busy

    @property
    def busy(self) -> bool:
        return any(b.job is not None for b in self._benches)

    @property
    def channels(self) -> list[Channel]:
        """To wait for beside one's own."""
        return [b.worker.channel for b in self._benches if b.job is not None]

    def allow(self, cores: Collection[int]) -> None:
        """From now on jobs are handed out on these cores only."""
        self._allowed = cores
        self._start()

    def _start(self) -> None:
        for b in self._benches:
            if b.job is None and b.core in self._allowed and self._waiting:
                if b.done >= _MAX_BUILDS:
                    self._renew(b, kill=True)
                number, job = self._waiting.popleft()
                b.job, b.deadline = number, time.monotonic() + self._timeout
                b.done += 1
                try:
                    b.worker.channel.send(job)
                except Gone:
                    self._died(b)

    def serve(self, readable: Collection[Channel]) -> None:
        """Takes what has been built, and ends what takes too long."""
        now = time.monotonic()
        for b in self._benches:
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

    def take(self) -> tuple[int, Outcome] | None:
        """The next result, waited for; None when nothing is left to build."""
        self._start()
        while not self._done:
            if not self.busy:
                return None
            nearest = min(b.deadline for b in self._benches if b.job is not None)
            self.serve(ready(self.channels, time_left(nearest) + 0.001))
        return self._done.popleft()

    def _finish(self, b: _Bench, outcome: Outcome) -> None:
        assert b.job is not None
        self._done.append((b.job, outcome))
        b.job = None

    def _died(self, b: _Bench) -> None:
        self._finish(b, explain(self._renew(b), " while building"))

    def _renew(self, b: _Bench, kill: bool = False) -> Exit:
        end = self._nursery.reap(b.worker, kill)
        b.worker, b.done = self._spawn(b.core), 0
        return end
