"""The protocols of measuring: frozen settings (Measurer) open a run, which turns candidates into
measurements.

A measurer of one's own has a run with `measure`, a batch in and its measurements out, as
`examples/custom_measurer.py`; it should pass the suite in `tilesmith.testing.measurers`. Tuners
drive every run as a Stream: `submit` candidates, and take `results` as they finish. `stream_of`
makes one of the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import cache
from typing import Any, Protocol, Self, runtime_checkable

from tilesmith.base.dataclass import dataclass
from tilesmith.codegen.artifact import Artifact
from tilesmith.task.task import Candidate, Measurement, Task

Upcoming = Callable[[], Sequence[Candidate]]
Listener = Callable[[Sequence[Measurement]], None]
Results = Generator[Measurement, None, None]


class Measuring(Protocol):
    """A run of a measurer. It holds processes or machines until it is closed.

    More methods are optional. `prepare(task)` is told which task comes next, before there are
    candidates. `best(task)` returns the measurement of the incumbent, which no other candidate of
    the task has beaten side by side in this run; None while there is none. After
    `report_to(listener)`, the listener gets a list with every measurement once, before `measure`
    returns it or raises, so that an interrupted batch loses only what was being measured.
    """

    def measure(
        self,
        candidates: Sequence[Candidate],
        upcoming: Upcoming | None = None,
        seconds: float | None = None,
    ) -> list[Measurement]:
        """One measurement per candidate, in the order given. Candidates may be of several tasks.
        One that cannot be measured gets a failure; an exception means that measuring is broken.

        `upcoming` returns the candidates of the next batch, which may be built ahead. It is called
        once, perhaps in another thread, when that disturbs no measurement. Its errors are raised
        here. Candidates not reached within `seconds` from now are left out.
        """

    def close(self) -> None:
        """Ends processes and frees machines; closing again does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Measurer(Protocol):
    """Frozen settings."""

    def open(self, task: Task) -> Measuring:
        """A run that is ready for candidates of this task."""


@dataclass(frozen=True, slots=True)
class Winner:
    """The incumbent of a task: no other candidate has beaten it side by side in this run. Its code
    may lack the source; it is None if the run does not keep it.
    """

    measurement: Measurement
    artifact: Artifact | None = None


@runtime_checkable
class Stream(Protocol):
    """What a tuner drives: one CPU, a GPU, several of them or a fleet."""

    @property
    def capacity(self) -> int:
        """How many candidates keep all devices busy; 0 if it measures one batch after the other."""

    def prepare(self, task: Task) -> None:
        """Candidates of this task come next. Returns at once."""

    def submit(self, candidates: Sequence[Candidate]) -> None:
        """The candidates to be measured now. Those that were submitted before and are under way go
        on, and are not measured twice.
        """

    def results(
        self,
        task: Task,
        until: float | None = None,
        upcoming: Upcoming | None = None,
        every: bool = False,
    ) -> Results:
        """The measurements of what was submitted of a task, each once, as they finish. Among them
        may be the failure of an earlier candidate, which ran well then. Candidates that are not
        reached at the moment `until` of time.monotonic() are dropped. An exception means that
        measuring is broken. One that the caller throws in ends the batch; what is measured already
        is given before it is raised.

        `upcoming` returns what will be submitted next, to be built ahead; see `Measuring.measure`.
        Unless `every` one is asked for, those that would leave devices idle, because their builds
        or their device take long, may be `left`.
        """

    def left(self, task: Task) -> Sequence[Candidate]:
        """Those that the last results have left. The caller submits them again, with others."""

    def winner(self, task: Task) -> Winner | None:
        """None while there is none, or if candidates are not compared side by side."""

    def close(self) -> None: ...


def given(waiting: list[Measurement], error: BaseException | None = None) -> Results:
    """All of them, whatever the caller throws in meanwhile; then that is raised, or `error`."""
    while waiting:
        m = waiting.pop(0)
        try:
            yield m
        except GeneratorExit:  # nobody waits for more
            raise
        except BaseException as thrown:
            error = error or thrown
    if error is not None:
        raise error


class StreamRun(Stream):
    """A Stream that can also be used as a Measuring, which measurers of one's own wrap."""

    _listener: Listener | None = None

    def report_to(self, listener: Listener) -> None:
        self._listener = listener

    def measure(
        self,
        candidates: Sequence[Candidate],
        upcoming: Upcoming | None = None,
        seconds: float | None = None,
    ) -> list[Measurement]:
        """See Measuring."""
        until = None if seconds is None else time.monotonic() + seconds
        ahead = None if upcoming is None else cache(upcoming)
        found: dict[str, Measurement] = {}
        self.submit(candidates)
        for task in dict.fromkeys(c.task for c in candidates):
            with closing(self.results(task, until, ahead, every=True)) as results:
                for m in results:
                    found[m.candidate.key] = m
                    if self._listener is not None:
                        self._listener([m])
        if ahead is not None:
            ahead()
        return [found[c.key] for c in candidates if c.key in found]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _BatchByBatch:
    """The Stream of a run that has `measure` only."""

    capacity = 0

    def __init__(self, run: Measuring) -> None:
        self._run: Any = run
        self._batch: list[Candidate] = []

    def prepare(self, task: Task) -> None:
        if hasattr(self._run, "prepare"):
            self._run.prepare(task)

    def submit(self, candidates: Sequence[Candidate]) -> None:
        self._batch = list(candidates)

    def results(
        self, task: Task, until: float | None = None, upcoming: Upcoming | None = None,
        every: bool = False,
    ) -> Results:  # fmt: skip
        heard: list[Measurement] = []
        if hasattr(self._run, "report_to"):
            self._run.report_to(heard.extend)
        batch = [c for c in self._batch if c.task == task]
        seconds = None if until is None else until - time.monotonic()
        error: BaseException | None = None
        try:
            heard += [m for m in self._run.measure(batch, upcoming, seconds) if m not in heard]
        except BaseException as ended:
            error = ended
        yield from given(heard, error)

    def left(self, task: Task) -> Sequence[Candidate]:
        return ()

    def winner(self, task: Task) -> Winner | None:
        best = self._run.best(task) if hasattr(self._run, "best") else None
        return None if best is None else Winner(best)

    def close(self) -> None:
        self._run.close()


def stream_of(run: Measuring | Stream) -> Stream:
    """The only place where runs of one's own differ from built-in ones."""
    return run if isinstance(run, Stream) else _BatchByBatch(run)
