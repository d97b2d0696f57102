"""Runs contestants in processes of their own.

Each library has a process that is started with its number of threads and pinned to as many cores.
Only one process runs at a time; the others are stopped (SIGSTOP), because the threads of OpenMP
libraries keep spinning after a call and would take the cores from the next contestant.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import MeasureError
from tilesmith.measure.this_machine import usable_cores
from tilesmith.workers.pool import Process
from tilesmith.workers.wire import Gone
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
        environment = dict.fromkeys(_THREAD_VARIABLES, str(len(self._cores)))
        errors = self._errors.fileno()
        self._process = Process(
            "tilesmith_contest.process_main", environment=environment, cores=self._cores,
            output=errors, errors=errors, patience=0.0,
        )  # fmt: skip
        self._channel = self._process.channel
        self._channel.sock.settimeout(_START_SECONDS)
        self._pause()

    def make(self, recipe: Make) -> list[str]:
        """The names of the contestants, which replace those of an earlier problem. A process that
        has died is started again.
        """
        if self._process.status() is not None:
            self._process.close()
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
        self._process.close()
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
        self._process.signal(signal.SIGCONT)
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
        if self._process.status() is None:
            self._process.signal(signal.SIGSTOP)

    def _last_words(self, error: Exception) -> str:
        status = self._process.status(1.0)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"{error} (status {status})"


def cores_for(num_threads: int) -> list[int]:
    """The last of the usable cores, because systems run their own tasks on the first."""
    usable = usable_cores()
    if num_threads > len(usable):
        raise MeasureError(
            f"{num_threads} threads do not fit the {len(usable)} cores that this process may use"
        )
    return usable[-num_threads:]
