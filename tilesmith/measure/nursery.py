"""The nursery as its owner sees it: it starts one process, asks it for workers, and ends all of
them when it is closed, collected or its process exits.

This process, which may hold threads and devices, is never forked: the nursery is a fresh
executable.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tilesmith.base.errors import MeasureError
from tilesmith.base.target import Target
from tilesmith.ir.function import Function
from tilesmith.measure.messages import Exit, Limits, Prepare, Reap, Spawn
from tilesmith.measure.wire import Channel, Gone, pair, ready

_START_SECONDS = 60.0
# One thread each: libraries must not start their own in a process that forks or is timed.
_SINGLE = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_ARENA_MAX"), "1"
)


@dataclass(frozen=True, slots=True)
class Worker:
    pid: int
    channel: Channel


class Nursery:
    def __init__(self) -> None:
        self._control, theirs = pair()
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tilesmith.measure.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, **_SINGLE, "PYTHONPATH": path},
            )
        finally:
            theirs.close()
        self._end = weakref.finalize(self, _end, self._process, self._control)
        self._started = False

    def _wait(self) -> None:
        """It loads LLVM while its owner does other things."""
        if not self._started:
            if not ready([self._control], _START_SECONDS):
                raise MeasureError(f"no worker process after {_START_SECONDS:.0f} s")
            try:
                self._control.receive()
            except Gone:
                code = self._process.wait()
                raise MeasureError(
                    f"the worker process ended with status {code} while it started; "
                    f"`{sys.executable} -m tilesmith.measure.worker` must be able to import "
                    "tilesmith"
                ) from None
            self._started = True

    def _ask(self, message: object, fds: tuple[int, ...] = ()) -> Any:
        self._wait()
        self._control.send(message, fds)
        return self._control.receive()

    def prepare(self, func: Function, target: Target, limits: Limits) -> Worker:
        """A worker that will say None when the task's arrays are made, or why not."""
        return self._start(Prepare(func, target, limits))

    def spawn(self, kind: str, limits: Limits, cold: bool = False) -> Worker:
        return self._start(Spawn(kind, limits, cold))

    def _start(self, message: object) -> Worker:
        channel, theirs = pair()
        try:
            pid: int = self._ask(message, (theirs.fileno(),))
        finally:
            theirs.close()
        return Worker(pid, channel)

    def reap(self, worker: Worker, kill: bool = False) -> Exit:
        """How a worker ended; with `kill`, it is ended first."""
        worker.channel.close()
        end: Exit = self._ask(Reap(worker.pid, kill))
        return end

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Ends it from another thread: its owner finds it gone."""
        self._process.kill()

    def close(self) -> None:
        self._end()


def _end(process: subprocess.Popen[bytes], control: Channel) -> None:
    """It ends its workers and itself when its socket closes; if it does not, the system does:
    workers are killed with it.
    """
    control.close()
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
