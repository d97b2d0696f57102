"""What a database of measurements can do, whoever writes it; `testing/databases.py` has the suite
that every implementation passes. `open_database` opens ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tilesmith.ir.intrinsics import INTRINSICS
from tilesmith.ir.nodes import Intrinsic
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import PRIMITIVES
from tilesmith.task.curve import Curve, curve_of
from tilesmith.task.task import Candidate, Measurement, Task, TuningRun


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """What is known of one task: `task` as it was stated first, and under which names of Functions
    it was.

    `key` and `codegen` are those under which it was recorded: with an older code generator they
    differ from what `task` would have today.
    """

    task: Task
    key: str
    codegen: str
    count: int
    failures: int
    names: tuple[str, ...]
    best_seconds: float | None  # of the one that `best` gives


@dataclass(frozen=True)
class RunSummary:
    """A tuning run and what it measured, in that order. `seconds` is the time from its start to its
    last measurement.
    """

    run: TuningRun
    seconds: float
    measurements: tuple[Measurement, ...]

    @property
    def trials(self) -> int:
        return max((m.moment.trial for m in self.measurements if m.moment), default=0)

    @property
    def curve(self) -> Curve:
        """(seconds, trials, best cost) at every improvement, as `Result.curve`."""
        return curve_of(self.measurements)


class Database(Protocol):
    """Safe for use by several threads. Every method either does all of its work or, with a
    RecordsError, none.
    """

    def add(self, measurements: Sequence[Measurement]) -> None:
        """All of them at once, kept when this returns. One that is already there is not doubled,
        so that an add may be repeated.
        """

    def of(
        self,
        task: Task,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> list[Measurement]:
        """Everything known of a task, under its names, oldest first. `primitives` and `intrinsics`
        are what names in traces may mean; add your own to the built-in ones. What cannot be read
        with them is left out, see `unread`.
        """

    def best(
        self,
        task: Task,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> Measurement | None:
        """The one to trust, the first by `trust`: the fastest that was confirmed, else the fastest
        of a calm machine, else the fastest of a busy one; None if nothing was ever timed.
        """

    def unread(
        self,
        task: Task | None = None,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> int:
        """How many measurements, of one task or in all, cannot be read: their traces have
        primitives that are not among these, or they hold what is no measurement. They stay.
        """

    def earlier(
        self,
        task: Task,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> list[Candidate]:
        """What other versions of the code generator were fastest with, best first. Their times say
        nothing about today's code: these are candidates to measure anew.
        """

    def runs(
        self,
        task: Task,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> list[RunSummary]:
        """The tuning runs of a task that left measurements here, by their start. Measurements that
        belong to no run, such as those of older versions, are not among them.
        """

    def tasks(self) -> list[TaskSummary]:
        """One summary for each task, in the order in which they came."""

    def count(self, task: Task | None = None) -> int:
        """How many measurements there are, of one task or in all."""

    def save_state(self, task: Task, name: str, data: bytes) -> None:
        """Keeps what a search needs to go on; replaces what had this name."""

    def load_state(self, task: Task, name: str) -> bytes | None: ...

    def close(self) -> None:
        """May be called twice; everything else then raises a RecordsError."""
