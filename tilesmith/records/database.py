"""The protocol of a database of measurements. Every implementation must pass the test suite in
`testing/databases.py`; `open_database` opens the built-in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tilesmith.ir.intrinsics import INTRINSICS
from tilesmith.ir.nodes import Intrinsic
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import PRIMITIVES
from tilesmith.task.curve import Curve, curve_of
from tilesmith.task.task import Candidate, Measurement, Task, TuningRun


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """The records of one task: `task` as it was first stated, and the names of the Functions under
    which it was stated.

    `key` and `codegen` are those under which it was recorded. For an older code generator they
    differ from those of `task` today.
    """

    task: Task
    key: str
    codegen: str
    count: int
    failures: int
    names: tuple[str, ...]
    best_seconds: float | None  # of the measurement that `best` returns


@dataclass(frozen=True)
class RunSummary:
    """A tuning run and its measurements in order. `seconds` is the time from its start to its last
    measurement.
    """

    run: TuningRun
    seconds: float
    measurements: tuple[Measurement, ...]

    @property
    def trials(self) -> int:
        return max((m.moment.trial for m in self.measurements if m.moment), default=0)

    @property
    def curve(self) -> Curve:
        """(seconds, trials, best cost) at every improvement, like `Result.curve`."""
        return curve_of(self.measurements)


class Database(Protocol):
    """The records of tuning: what `ts.open_database` returns, and what one of your own must do.
    Safe for use by several threads. Every method either does all of its work or raises a
    RecordsError and does nothing.

    Example:

        db = ts.open_database(":memory:")
        for summary in db.tasks():
            print(summary.task, summary.count, summary.best_seconds)
        for m in db.of(ts.Task(func, ts.cpu())):
            print(m.seconds, m.failure, m.candidate.trace)
    """

    def add(self, measurements: Sequence[Measurement]) -> None:
        """Stores all of them in one transaction; they are durable when this returns. Duplicates are
        ignored, so an add may be repeated.
        """

    def of(
        self,
        task: Task,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> list[Measurement]:
        """All measurements of a task, under its names, oldest first. `primitives` and `intrinsics`
        are the types that names in traces may refer to; to read your own, add them to the built-in
        ones. Measurements that cannot be read with them are left out, see `unread`.
        """

    def best(
        self,
        task: Task,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> Measurement | None:
        """The best measurement, the first by `trust`: the fastest confirmed one, else the fastest
        on a calm machine, else the fastest on a busy one. None if nothing was ever timed.
        """

    def unread(
        self,
        task: Task | None = None,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> int:
        """The number of measurements, of one task or in all, that cannot be read: their traces use
        other primitives than these, or their values are invalid. They stay in the database.
        """

    def earlier(
        self,
        task: Task,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> list[Candidate]:
        """The fastest candidates recorded by other versions of the code generator, best first.
        Their times are not valid for today's code, so they must be measured again.
        """

    def runs(
        self,
        task: Task,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> list[RunSummary]:
        """The tuning runs of a task that left measurements here, by start time. Measurements
        without a run, such as those of older versions, are not included.
        """

    def tasks(self) -> list[TaskSummary]:
        """One summary per task, in the order in which they were first recorded."""

    def count(self, task: Task | None = None) -> int:
        """The number of measurements, of one task or in all."""

    def save_state(self, task: Task, name: str, data: bytes) -> None:
        """Stores the state of a search under a name, in place of an earlier one."""

    def load_state(self, task: Task, name: str) -> bytes | None:
        """What `save_state` stored under the name; None if there is nothing."""

    def close(self) -> None:
        """May be called twice. All other methods raise a RecordsError afterwards."""


@runtime_checkable
class Followed(Protocol):
    """A database in which several tuners work at a time: each follows what the others add."""

    def since(
        self,
        task: Task,
        mark: int | None,
        besides: str = "",
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> tuple[list[Measurement], int]:
        """The measurements of a task that were added after a mark by other runs than `besides`, and
        the next mark. With None, only the present mark.
        """
