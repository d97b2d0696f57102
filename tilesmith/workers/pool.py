"""Processes of our own, with a channel to each: one at a time, from a fork server, or as a pool in
which each does one job after another.

The user's process may hold threads and devices, so it is never forked: every process is a fresh
Python. Where many are needed and each must start within milliseconds, one fresh process forks
itself (`workers/child.py` is their side). All end when their owner closes or drops them, and when
the user's process exits, in whatever way.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import MeasureError
from tilesmith.workers.wire import Channel, Gone, pair, ready

# How a worker ended; and what a job is known by.
E = TypeVar("E")
K = TypeVar("K")

_CHILD = "tilesmith.workers.child"
_START_SECONDS = 300.0
# Libraries must not start threads in a process that forks, that is timed, or is one of many.
ONE_THREAD = MappingProxyType(
    dict.fromkeys(
        ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_ARENA_MAX"), "1"
    )
)
UNLIMITED = -1  # as Limits.nbytes
NO_MEMORY = 98  # exit status of a worker that was refused memory


def python_path() -> str:
    """PYTHONPATH of a process that shall import what this one can."""
    return os.pathsep.join(p or os.getcwd() for p in sys.path)


class Process:
    """A fresh process that runs `main(channel, *args)` of a module, on `cores` if any are named:
    set before it imports anything, because libraries count cores when they are loaded. When it is
    closed or collected, it has `patience` seconds to end by itself.
    """

    def __init__(
        self, module: str, *args: str, environment: Mapping[str, str] = ONE_THREAD,
        cores: Iterable[int] = (), output: int = subprocess.DEVNULL, errors: int | None = None,
        patience: float = 1.0,
    ) -> None:  # fmt: skip
        self.channel, theirs = pair()
        fd = theirs.fileno()
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", _CHILD),
                    *(str(fd), ",".join(map(str, cores)), module, *args),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                pass_fds=(fd,),
                start_new_session=True,  # Ctrl-C goes to this process, which ends that one
                env={**os.environ, **environment, "PYTHONPATH": python_path()},
            )
        finally:
            theirs.close()
        self.close = weakref.finalize(self, _end, self._process, self.channel, patience)

    @property
    def pid(self) -> int:
        return self._process.pid

    def status(self, seconds: float = 0.0) -> int | None:
        """How it ended, within `seconds`; None if it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)


def _end(process: subprocess.Popen[bytes], channel: Channel, patience: float) -> None:
    """A process ends itself, and what it has started, when its channel is closed. If it does not in
    time it is killed with its group. The system then kills what a fork server has forked
    (PR_SET_PDEATHSIG).
    """
    channel.close()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that a forked worker may use."""

    cores: tuple[int, ...]
    nbytes: int  # private memory, in addition to what it has when it starts; or UNLIMITED


@dataclass(frozen=True, slots=True)
class Reap:
    """Asks a fork server to wait up to a second for a worker to end (with `kill`, not at all), and
    to kill it then. The answer says how it ended.
    """

    pid: int
    kill: bool


@dataclass(frozen=True, slots=True)
class Worker:
    pid: int
    channel: Channel


class ForkServer(Generic[E]):
    """A fresh process, running `main` of a module, that forks workers on request."""

    def __init__(self, module: str) -> None:
        self._process = Process(module)
        self._control = self._process.channel
        self._is_up = False

    def wait_until_up(self) -> None:
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
            raise MeasureError(
                f"the process that starts workers ended with status {self._process.status(inf)} "
                f"while it started; `{sys.executable} -m {_CHILD}` must be able to import tilesmith"
            ) from None
        self._is_up = True

    def ask(self, message: object, fds: tuple[int, ...] = ()) -> Any:
        self.wait_until_up()
        self._control.send(message, fds)
        return self._control.receive()

    def start(self, message: object) -> Worker:
        """The worker that a message asks for. The descriptor of its socket goes with the message,
        and the answer is its process id.
        """
        channel, theirs = pair()
        try:
            pid: int = self.ask(message, (theirs.fileno(),))
        finally:
            theirs.close()
        return Worker(pid, channel)

    def reap(self, worker: Worker, kill: bool = False) -> E:
        """How a worker ended; with `kill`, it is ended first."""
        worker.channel.close()
        end: E = self.ask(Reap(worker.pid, kill))
        return end

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Called by another thread than the one that asks, whose next request raises Gone."""
        self._process.signal(signal.SIGKILL)

    def close(self) -> None:
        self._process.close()


def _processor_seconds(pid: int) -> tuple[float, bool]:
    """Of a process, and whether it runs or would if a core were free, so that it waits for nothing
    else.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has ended
        return 0.0, False
    state, *numbers = text.rpartition(")")[2].split()  # behind a name that may hold anything
    return (int(numbers[10]) + int(numbers[11])) / os.sysconf("SC_CLK_TCK"), state == "R"


@dataclass(frozen=True, slots=True)
class Lost(Generic[E]):
    """In place of an answer: the worker died, or it was `late` and ended for that."""

    end: E
    late: bool


@dataclass(slots=True)
class Place(Generic[K]):
    """For one worker at a time. `number` is what the worker is started with, such as a core."""

    number: int
    worker: Worker | Process
    job: K | None = None  # what its worker does
    message: Any = None  # which it was given for that
    deadline: float = inf
    used: float = 0.0  # processor seconds of its worker when it was given the job
    num_jobs: int = 0  # given to this worker


class Pool(Generic[K, E]):
    """`start` starts the worker of a place, and `end` ends one, by force if asked to. A job may
    take `seconds`, without those in which other processes had its core. A worker that is lost, or
    has done `most_jobs`, is replaced.
    """

    def __init__(
        self,
        numbers: Iterable[int],
        start: Callable[[int], Worker | Process],
        end: Callable[[Any, bool], E],
        seconds: float = inf,
        most_jobs: float = inf,
    ) -> None:
        self._start, self._end = start, end
        self._seconds, self._most_jobs = seconds, most_jobs
        self.places: list[Place[K]] = [Place(n, start(n)) for n in numbers]

    @property
    def busy(self) -> list[Place[K]]:
        return [p for p in self.places if p.job is not None]

    @property
    def channels(self) -> list[Channel]:
        """Of workers that have a job: `serve` must be called on a message."""
        return [p.worker.channel for p in self.busy]

    @property
    def deadline(self) -> float:
        """The next moment of time.monotonic() at which a job is late."""
        return min((p.deadline for p in self.busy), default=inf)

    def give(self, place: Place[K], job: K, message: object) -> None:
        if place.num_jobs >= self._most_jobs:
            self.renew(place)
        place.job, place.message = job, message
        place.deadline = time.monotonic() + self._seconds
        if self._seconds < inf:
            place.used, _ = _processor_seconds(place.worker.pid)
        place.num_jobs += 1
        with suppress(Gone):  # `serve` finds that its worker is lost
            place.worker.channel.send(message)

    def serve(self) -> list[tuple[K, Any, Any | Lost[E]]]:
        """Jobs that are done or lost, with their messages and answers. Does not wait."""
        now, readable, out = time.monotonic(), ready(self.channels, 0.0), []
        for p in self.busy:
            answer: Any
            if p.worker.channel in readable:
                try:
                    answer = p.worker.channel.receive()
                except Gone:
                    answer = Lost(self.renew(p, kill=False), late=False)
            elif now > p.deadline:
                if (left := self._left(p)) > 0:
                    p.deadline = now + left
                    continue
                answer = Lost(self.renew(p), late=True)
            else:
                continue
            assert p.job is not None
            out.append((p.job, p.message, answer))
            p.job = p.message = None
        return out

    def _left(self, place: Place[K]) -> float:
        """The seconds that a job has left though its time is over: others had its core."""
        used, runs = _processor_seconds(place.worker.pid)
        left = self._seconds - (used - place.used)
        return left if runs and left > 0.1 * self._seconds else 0.0

    def renew(self, place: Place[K], kill: bool = True) -> E:
        """Another worker takes the place; says how the one that was there ended."""
        end = self._end(place.worker, kill)
        place.worker, place.num_jobs = self._start(place.number), 0
        return end

    def close(self) -> None:
        for p in self.places:
            self._end(p.worker, True)
