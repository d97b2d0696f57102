"""The protocol of measurers: frozen settings that open a run, which turns candidates into
measurements.

`examples/custom_measurer.py` is a complete one. Every measurer should pass the suite in
`tilesmith.testing.measurers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Self, runtime_checkable

from tilesmith.codegen.artifact import Artifact
from tilesmith.task.task import Candidate, Measurement, Task

Upcoming = Callable[[], Sequence[Candidate]]
Listener = Callable[[Sequence[Measurement]], None]


class Measuring(Protocol):
    """A run of a measurer. It holds processes or machines until it is closed."""

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


@runtime_checkable
class Reporting(Protocol):
    """A run that hands out measurements before their batch is done, so that they can be stored. An
    interrupted batch then loses only what was being measured at that moment.
    """

    def report_to(self, listener: Listener) -> None:
        """From now on `listener` gets every measurement once, in small groups, before `measure`
        returns it or raises. It may also get the failure of a candidate of an earlier batch, which
        ran well then.
        """


@runtime_checkable
class Preparing(Protocol):
    """A run that can begin with a task before there are candidates."""

    def prepare(self, task: Task) -> None:
        """Candidates of this task come next. Returns at once."""


@runtime_checkable
class Postponing(Protocol):
    """A run that builds the next batch while it measures one, and need not wait for the slowest
    builds of a batch, which would leave the other cores idle.
    """

    def postpone(self, allowed: bool) -> None:
        """Whether `measure` may leave out candidates from now on, if `upcoming` has others, be they
        of the same task or not.
        """

    @property
    def postponed(self) -> Sequence[Candidate]:
        """Those that the last call of `measure` has left out. The caller puts them into the next
        batch of their task. Their builds go on meanwhile.
        """


@runtime_checkable
class Collecting(Protocol):
    """A run whose devices are elsewhere: candidates are handed out, and their measurements come in
    any order. So a search goes on with what is there, while a slow device is busy.
    """

    @property
    def capacity(self) -> int:
        """How many candidates keep all devices busy."""

    def under_way(self, task: Task) -> int:
        """The number of candidates that were submitted and not collected."""

    def submit(self, candidates: Sequence[Candidate]) -> None:
        """Takes candidates to be measured, without waiting."""

    def collect(self, task: Task, seconds: float | None = None) -> list[Measurement]:
        """What is measured of the task since the last call, as soon as there is anything; nothing
        if nothing is under way, or `seconds` are over.
        """


@runtime_checkable
class Judging(Protocol):
    """A run that compares candidates of a task side by side."""

    def best(self, task: Task) -> Measurement | None:
        """The incumbent: no other candidate of the task has beaten it in this run."""


@runtime_checkable
class Keeping(Protocol):
    """A run that keeps the compiled code of each task's incumbent."""

    def artifact(self, task: Task) -> Artifact | None:
        """The code of `best(task)`, which may lack its source; None if there is none."""


class Measurer(Protocol):
    """Frozen settings."""

    def open(self, task: Task) -> Measuring:
        """A run that is ready for candidates of this task."""
