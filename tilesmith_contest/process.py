"""Runs contestants in processes of their own.

Each library has a process that is started with its number of threads and pinned to as many cores.
Only one process runs at a time; the others are stopped (SIGSTOP), because the threads of OpenMP
libraries keep spinning after a call and would take the cores from the next contestant.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from tilesmith.base.errors import MeasureError
from tilesmith.measure.this_machine import usable_cores
from tilesmith.measure.wire import Gone, pair
from tilesmith_contest.pairs import Sampler, Timing
from tilesmith_contest.peer import Start
from tilesmith_contest.problems import Array

# The environment variables from which libraries read their number of threads when loaded.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip
_START_SECONDS = 120.0  # importing a large library from a slow disk takes long
_CALL_SECONDS = 600.0


@dataclass(frozen=True)
class Make:
    """Ask a process to make its contestants by `make(*args)`; it answers with their names."""

    make: Any  # a function at the top of a module, so that it can be pickled
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Sample:
    """Ask for one call that is not timed and `calls` that are; the answer is a Timing."""

    name: str
    calls: int


@dataclass(frozen=True)
class Answer:
    """Ask for what a contestant computes."""

    name: str


@dataclass(frozen=True)
class Facts:
    """Ask for a contestant's further figures, by name."""

    name: str


@dataclass(frozen=True)
class StartOf:
    """Ask how long the start of a contestant took."""

    name: str


@dataclass(frozen=True)
class BusyThreads:
    """Ask how many threads did a notable share of the work since the contestants were created."""


class ContestantProcess:
    """The parent's side of one process. It is stopped except while it answers."""

    def __init__(self, name: str, cores: Sequence[int]) -> None:
        self.name = name
        self._cores = tuple(cores)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._open()

    def _open(self) -> None:
        self._channel, there = pair()
        self._channel.sock.settimeout(_START_SECONDS)
        self._process = _start(there, self._cores, self._errors.fileno())
        self._pause()

    def make(self, recipe: Make) -> list[str]:
        """The names of the contestants, which replace those of an earlier problem. A process that
        has died is started again.
        """
        if self._process.poll() is not None:
            self._channel.close()
            self._open()
        names: list[str] = self._ask(recipe)
        return names

    def sampler(self, name: str) -> Sampler:
        def sample(calls: int) -> Timing:
            timing: Timing = self._ask(Sample(name, calls))
            return timing

        return sample

    def answer(self, name: str) -> Array:
        array: Array = self._ask(Answer(name))
        return array

    def outputs(self, name: str) -> dict[str, Array]:
        """As `answer`, of a contestant that runs a whole model."""
        arrays: dict[str, Array] = self._ask(Answer(name))
        return arrays

    def facts(self, name: str) -> dict[str, float]:
        figures: dict[str, float] = self._ask(Facts(name))
        return figures

    def start(self, name: str) -> Start | None:
        start: Start | None = self._ask(StartOf(name))
        return start

    def busy_threads(self) -> int:
        count: int = self._ask(BusyThreads())
        return count

    def close(self) -> None:
        self._channel.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._errors.close()

    def __enter__(self) -> ContestantProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, message: object) -> Any:
        self._process.send_signal(signal.SIGCONT)
        try:
            self._channel.send(message)
            answer = self._channel.receive()
        except (Gone, TimeoutError) as e:
            raise MeasureError(f"the process of {self.name} ended: {self._last_words(e)}") from None
        finally:
            self._pause()
        self._channel.sock.settimeout(_CALL_SECONDS)
        if isinstance(answer, Exception):
            raise MeasureError(f"{self.name}: {answer}") from answer
        return answer

    def _pause(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP)

    def _last_words(self, error: Exception) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"{error} (status {self._process.poll()})"


def cores_for(num_threads: int) -> list[int]:
    """The last of the usable cores, because systems run their own tasks on the first."""
    usable = usable_cores()
    if num_threads > len(usable):
        raise MeasureError(
            f"{num_threads} threads do not fit the {len(usable)} cores that this process may use"
        )
    return usable[-num_threads:]


def _start(there: socket.socket, cores: Sequence[int], errors: int) -> subprocess.Popen[bytes]:
    fd = there.fileno()
    # The affinity is set before anything is imported: libraries count cores when loaded.
    program = (
        f"import os; os.sched_setaffinity(0, {list(cores)}); "
        f"from tilesmith_contest.process_main import main; main({fd})"
    )
    environment = {
        **os.environ,
        **dict.fromkeys(_THREAD_VARIABLES, str(len(cores))),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    try:
        return subprocess.Popen(
            [sys.executable, "-c", program],
            env=environment,
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,  # Ctrl-C goes to the parent, which ends this process
        )
    finally:
        there.close()
