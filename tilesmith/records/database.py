"""The protocol of a database of measurements. Every implementation must pass the test suite in
`testing/databases.py`; `open_database` opens the built-in one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from tilesmith.base.dataclass import dataclass
from tilesmith.base.target import Target
from tilesmith.schedule.trace import Parts
from tilesmith.task.task import Candidate, Curve, Measurement, Task, TuningRun, curve_of


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """The records of one task: `task` as it was first stated, and the names of the Functions under
    which it was stated.

    `key` and `codegen` are those under which it was recorded. They differ from those of `task` if
    it was an older code generator, or a back end that the database was not opened with.
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
    ) -> list[Measurement]:
        """All measurements of a task, under its names, oldest first: those of its back end, read
        with its parts (`ts.Task(func, target, parts)`). Measurements that cannot be read with them
        are left out, see `unread`.
        """

    def best(
        self,
        task: Task,
    ) -> Measurement | None:
        """The best measurement, the first by `trust`: the fastest confirmed one, else the fastest
        on a calm machine, else the fastest on a busy one. None if nothing was ever timed.
        """

    def unread(
        self,
        task: Task | None = None,
    ) -> int:
        """The number of measurements, of one task or in all, that cannot be read: their traces need
        parts that were not given, or their values are invalid. They stay in the database.
        """

    def earlier(
        self,
        task: Task,
    ) -> list[Candidate]:
        """The fastest candidates recorded by other versions of the code generator, or of the user's
        back end, best first. Their times are not valid for today's code, so they must be measured
        again.
        """

    def runs(
        self,
        task: Task,
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
    ) -> tuple[list[Measurement], int]:
        """The measurements of a task that were added after a mark by other runs than `besides`, and
        the next mark. With None, only the present mark.
        """


@runtime_checkable
class Surveyed(Protocol):
    """A database that answers quickly what a model's start asks of it for every task."""

    def targets(self) -> list[Target]:
        """The machines of its tasks, each once, in the order in which they were first recorded."""

    def likely_best(self, task: Task) -> Measurement | None:
        """What `best` returns, if its trace can be applied: that is not tried here."""


def targets_of(database: Database) -> list[Target]:
    """The machines that a database has tasks of."""
    if isinstance(database, Surveyed):
        return database.targets()
    return list(dict.fromkeys(s.task.target for s in database.tasks()))


def likely_best(database: Database, task: Task) -> Measurement | None:
    """The best record, whose trace need not be one that can still be applied."""
    return database.likely_best(task) if isinstance(database, Surveyed) else database.best(task)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A record that was found by its key: the candidate as it was stated, its seconds, and the code
    generator that it was recorded with.
    """

    key: str
    candidate: Candidate
    seconds: float
    codegen: str


@runtime_checkable
class Keyed(Protocol):
    """A database that finds a record by its key alone."""

    def find(self, key: str) -> list[Recorded]:
        """Records whose key begins with this text, of any task and any machine."""


def find_records(database: Database, key: str) -> list[Recorded]:
    if isinstance(database, Keyed):
        return database.find(key)
    return [
        Recorded(m.candidate.key, m.candidate, m.cost, s.codegen)
        for s in database.tasks()
        for m in database.of(s.task)
        if m.candidate.key.startswith(key)
    ]


@runtime_checkable
class Explaining(Protocol):
    """A database that was opened with parts, and says which others its records need."""

    @property
    def parts(self) -> Parts | None:
        """Those of tasks that have none of their own."""

    def with_parts(self, parts: Parts) -> Database:
        """The same database, as if it had been opened with these parts."""

    def missing(self, task: Task | None = None) -> Mapping[str, int]:
        """How many measurements, of one task or in all, need a part that was not given, by what
        that is: "the primitive 'square'". Of one task, also those of other back ends.
        """


def with_parts(parts: Parts | None, database: Database) -> tuple[Parts | None, Database]:
    """The parts that were given, or else those that the database was opened with; and the database
    as if it had been opened with them.
    """
    if not isinstance(database, Explaining):
        return parts, database
    return (database.parts, database) if parts is None else (parts, database.with_parts(parts))


class MissingPartsWarning(UserWarning):
    """Records were left out, because they need parts that were not given."""


def missing_text(missing: Mapping[str, int]) -> str:
    """What is missing, and what to do about it; empty if nothing is."""
    needs = [
        f"{count} record{' needs' if count == 1 else 's need'} {part}"
        for part, count in missing.items()
    ]
    how = "open the database with parts=ts.Parts(...), on the command line with --parts"
    return f"{', '.join(needs)}; {how}" if needs else ""
