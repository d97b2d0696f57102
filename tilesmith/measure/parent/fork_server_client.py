"""The parent's side of the fork server: starts worker processes, with a channel to each.

The user's process may hold threads and devices, so it is never forked: the fork server is a fresh
Python process. It ends with all its workers when this object is closed or collected, and when the
user's process exits.
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
from tilesmith.measure.messages import (
    Discard,
    Exit,
    Limits,
    Preload,
    Prepare,
    Reap,
    SpawnBuilder,
    SpawnRunner,
)
from tilesmith.measure.wire import Channel, Gone, pair, ready
from tilesmith.task.task import Task

_MODULE = "tilesmith.measure.child.fork_server"
_START_SECONDS = 60.0
# Libraries must not start threads in a process that forks or is timed.
_ONE_THREAD = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_ARENA_MAX"), "1"
)


@dataclass(frozen=True, slots=True)
class Worker:
    pid: int
    channel: Channel


class ForkServerClient:
    def __init__(self) -> None:
        self._control, theirs = pair()
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, **_ONE_THREAD, "PYTHONPATH": path},
            )
        finally:
            theirs.close()
        self._end = weakref.finalize(self, _end, self._process, self._control)
        self._is_up = False

    def _wait_until_up(self) -> None:
        """Called late, so that the fork server loads LLVM while the parent does other things."""
        if self._is_up:
            return
        if not ready([self._control], _START_SECONDS):
            raise MeasureError(
                f"the process that starts workers was not up after {_START_SECONDS:.0f} s; is the "
                "machine overloaded?"
            )
        try:
            self._control.receive()
        except Gone:
            code = self._process.wait()
            raise MeasureError(
                f"the process that starts workers ended with status {code} while it started; "
                f"`{sys.executable} -m {_MODULE}` must be able to import tilesmith"
            ) from None
        self._is_up = True

    def _ask(self, message: object, fds: tuple[int, ...] = ()) -> Any:
        self._wait_until_up()
        self._control.send(message, fds)
        return self._control.receive()

    def prepare(self, task: Task, limits: Limits) -> Worker:
        """A worker that fills the task's arrays. It sends None, or why they cannot be filled."""
        return self._start(Prepare(task.statement, task.func, task.target, limits))

    def preload(self, kind: str) -> None:
        """Imports what workers of this kind of target need."""
        self._ask(Preload(kind))

    def discard(self, statement: str) -> None:
        """Frees a task's arrays. Its workers must have ended."""
        self._ask(Discard(statement))

    def spawn_builder(self, limits: Limits) -> Worker:
        return self._start(SpawnBuilder(limits))

    def spawn_runner(self, statement: str, limits: Limits, cold: bool) -> Worker:
        return self._start(SpawnRunner(statement, limits, cold))

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
        """Called by another thread than the one that measures, whose next request raises Gone."""
        self._process.kill()

    def close(self) -> None:
        self._end()


def _end(process: subprocess.Popen[bytes], control: Channel) -> None:
    """Closing its socket makes the fork server end its workers and itself. If it does not within a
    second it is killed, and the system kills its workers with it (PR_SET_PDEATHSIG).
    """
    control.close()
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
