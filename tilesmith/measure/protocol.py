"""What a measurer is to the rest of the system: settings that open a run, and a run that turns
candidates into measurements.

Implementations of one's own pass the suite in `tilesmith.testing.measurers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

from tilesmith.task.task import Candidate, Measurement, Task


class Measuring(Protocol):
    """A run: it holds processes or machines until it is closed."""

    def measure(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        """One measurement per candidate, in the order given. A candidate that cannot be measured
        has a failure; an exception means that measuring itself is broken.
        """

    def close(self) -> None:
        """Gives everything back; closing again does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Measurer(Protocol):
    """Frozen settings."""

    def open(self, task: Task) -> Measuring:
        """A run that is ready for candidates of this task."""
