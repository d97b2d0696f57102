"""What a measurer is to the rest of the system: settings that open a run, and a run that turns
candidates into measurements.

Implementations of one's own pass the suite in `tilesmith.testing.measurers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Self, runtime_checkable

from tilesmith.task.task import Candidate, Measurement, Task

Upcoming = Callable[[], Sequence[Candidate]]
Listener = Callable[[Sequence[Measurement]], None]


class Measuring(Protocol):
    """A run: it holds processes or machines until it is closed."""

    def measure(
        self,
        candidates: Sequence[Candidate],
        upcoming: Upcoming | None = None,
        until: float | None = None,
    ) -> list[Measurement]:
        """One measurement per candidate, in the order given. A candidate that cannot be measured
        has a failure; an exception means that measuring itself is failed.

        `upcoming` is called once, perhaps in another thread, where and when that disturbs no
        measurement, and gives the candidates that will come next: they may be prepared for already.
        Its errors are raised here. `until` is a moment of time.monotonic(); candidates that were
        not reached by then are left out.
        """

    def close(self) -> None:
        """Gives everything back; closing again does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


@runtime_checkable
class Reporting(Protocol):
    """A run that hands out measurements before their batch is done, so that they can be stored:
    a batch that is interrupted then loses only what was being measured at that moment.
    """

    def report_to(self, listener: Listener) -> None:
        """From now on every measurement that `measure` will return is given to the listener first,
        once, in small groups; also when `measure` ends with an error. The listener may also be told
        of a candidate that was measured well before and fails now.
        """


@runtime_checkable
class Judging(Protocol):
    """A run that compares candidates side by side."""

    def best(self, task: Task) -> Measurement | None:
        """The incumbent: no other candidate of this run has beaten it."""


class Measurer(Protocol):
    """Frozen settings."""

    def open(self, task: Task) -> Measuring:
        """A run that is ready for candidates of this task."""
