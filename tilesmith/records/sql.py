"""The built-in database of measurements, in SQL: a SQLite file for one machine, PostgreSQL for a
team.

Each method is one transaction, except for those that may move millions of records.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from tilesmith.base.errors import RecordsError
from tilesmith.ir.intrinsics import INTRINSICS
from tilesmith.ir.nodes import Intrinsic
from tilesmith.records.database import RunSummary, TaskSummary
from tilesmith.records.lines import Imported, Refused, entries, write_lines
from tilesmith.records.reader import Reader, applies, reader_of
from tilesmith.records.rows import (
    Entry,
    RecordRow,
    RunRow,
    TaskRow,
    record_row,
    run_of,
    run_row,
    task_row,
)
from tilesmith.records.schema import records, runs, state, tasks
from tilesmith.records.transactions import Transactions
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import PRIMITIVES
from tilesmith.task.ranking import Ranking
from tilesmith.task.task import (
    CODEGEN_VERSION,
    Candidate,
    Measurement,
    Standing,
    Task,
    TuningRun,
    standing_of,
    task_key,
    trust,
)

_TASK = [tasks.c[name] for name in TaskRow._fields]
_RUN = [runs.c[name] for name in RunRow._fields]
_RECORD = [records.c[name] for name in RecordRow._fields]
# The order of `trust`, and of the index `tilesmith_records_best`.
_TRUST = (records.c.standing, records.c.normal_cost, records.c.id)
_REASONS = 20  # refused lines of an import for which a reason is kept
_BATCH = 1000  # rows per transaction of a large transfer, so that other writers get their turn


class SqlDatabase:
    """Created by `open_database`. Implements the protocol `Database`; the further methods maintain
    the records.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self._at = Transactions(place)

    @property
    def place(self) -> str:
        """The file, or the URL without its password."""
        return self._at.place

    # the protocol Database
    def add(self, measurements: Sequence[Measurement]) -> None:
        rows = [
            (m.candidate.task, record_row(m), None if m.moment is None else run_row(m.moment))
            for m in measurements
        ]
        if rows:
            with self._at.writing() as c:
                _put(c, rows)

    def of(
        self,
        task: Task,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> list[Measurement]:
        return [m for m in self._read(task, primitives, intrinsics) if m is not None]

    def since(
        self,
        task: Task,
        mark: int | None,
        besides: str = "",
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> tuple[list[Measurement], int]:
        # Rows become visible in the order of their numbers, see `Transactions.writing`.
        with self._at.reading(one_moment=True) as c:
            stated = _stated(c, task.key)
            which = _among(stated), records.c.run.is_distinct_from(besides)
            latest = c.execute(sa.select(sa.func.max(records.c.id)).where(*which)).scalar() or 0
            if mark is None or latest <= mark:
                return [], latest if mark is None else mark
            rows = list(_records(c, sa.and_(*which, records.c.id > mark)))
            made_by = _by_key(_runs(c, _among(stated)))
        reader = Reader(task, stated, primitives, intrinsics, made_by)
        read = (reader.read(k, row) for k, row in rows)
        return [m for m in read if m is not None], latest

    def best(
        self,
        task: Task,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> Measurement | None:
        with self._at.reading(one_moment=True) as c:
            reader = Reader(task, _stated(c, task.key), primitives, intrinsics)
            return _best(c, reader)

    def unread(
        self,
        task: Task | None = None,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> int:
        if task is not None:
            return sum(m is None for m in self._read(task, primitives, intrinsics))
        with self._at.reading(one_moment=True) as c:
            stated = _stated(c)
            readers = {
                k: reader_of(row, {k: row}, primitives, intrinsics) for k, row in stated.items()
            }
            count = 0
            for k, row in _records(c, sa.true()):
                reader = readers[k]
                count += reader is None or reader.read(k, row) is None
            return count

    def earlier(
        self,
        task: Task,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> list[Candidate]:
        fingerprint = task.target.fingerprint
        others = sa.select(tasks.c.codegen).where(
            tasks.c.fingerprint == fingerprint, tasks.c.codegen != CODEGEN_VERSION
        )
        with self._at.reading(one_moment=True) as c:
            versions: Sequence[str] = c.execute(others.distinct()).scalars().all()
            stated: dict[int, TaskRow] = {}
            for version in versions:
                stated |= _stated(c, task_key(task.func, task.target, version))
            reader = Reader(task, stated, primitives, intrinsics)
            timed = sa.and_(_among(stated), records.c.standing < Standing.FAILED)
            measured = [reader.read(k, row) for k, row in _records(c, timed)]
        ranked = sorted((m for m in measured if m is not None), key=trust)
        return list(dict.fromkeys(m.candidate for m in ranked))

    def runs(
        self,
        task: Task,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> list[RunSummary]:
        with self._at.reading(one_moment=True) as c:
            stated = _stated(c, task.key)
            rows = _runs(c, _among(stated))
            in_a_run = sa.and_(_among(stated), records.c.run.is_not(None))
            reader = Reader(task, stated, primitives, intrinsics, _by_key(rows))
            measured: dict[str, list[Measurement]] = {row.key: [] for row in rows}
            for k, record in _records(c, in_a_run):
                if (m := reader.read(k, record)) is not None and m.moment is not None:
                    measured[m.moment.run.key].append(m)
        rows.sort(key=lambda row: row.started)
        return [RunSummary(run_of(row), row.seconds, tuple(measured[row.key])) for row in rows]

    def tasks(self) -> list[TaskSummary]:
        number, failed = sa.func.count(), sa.func.count(records.c.failure)
        groups = sa.select(records.c.task_id, number, failed).group_by(records.c.task_id)
        out = []
        with self._at.reading(one_moment=True) as c:
            counts = {row[0]: (row[1], row[2]) for row in c.execute(groups)}
            by_key: dict[str, dict[int, TaskRow]] = {}
            for k, row in _stated(c).items():
                by_key.setdefault(row.key, {})[k] = row
            for key, stated in by_key.items():
                first = next(iter(stated.values()))
                reader = reader_of(first, stated)
                if reader is None:  # see `unread`
                    continue
                best = _best(c, reader)
                out.append(
                    TaskSummary(
                        task=reader.task,
                        key=key,
                        codegen=first.codegen,
                        count=sum(counts.get(k, (0, 0))[0] for k in stated),
                        failures=sum(counts.get(k, (0, 0))[1] for k in stated),
                        names=tuple(dict.fromkeys(row.name for row in stated.values())),
                        best_seconds=None if best is None else best.cost,
                    )
                )
        return out

    def count(self, task: Task | None = None) -> int:
        query = sa.select(sa.func.count()).select_from(records)
        with self._at.reading() as c:
            if task is not None:
                query = query.where(_among(_stated(c, task.key)))
            return c.execute(query).scalar_one()

    def save_state(self, task: Task, name: str, data: bytes) -> None:
        with self._at.writing() as c:
            insert = _insert(c, state).values(task_id=_id_of(c, task), name=name, data=data)
            key = [state.c.task_id, state.c.name]
            c.execute(insert.on_conflict_do_update(index_elements=key, set_={"data": data}))

    def load_state(self, task: Task, name: str) -> bytes | None:
        own = tasks.c.statement == task.statement, state.c.name == name
        with self._at.reading() as c:
            data = c.execute(sa.select(state.c.data).join(tasks).where(*own)).scalar()
        return None if data is None else bytes(data)

    def close(self) -> None:
        self._at.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<database {self.place}>"

    # maintenance
    def merge(self, other: SqlDatabase) -> int:
        """Copies the records of the other database that are missing here; returns their number."""
        return 0 if other is self else self._store(other._rows())[0]

    def export(self, to: str | os.PathLike[str] | TextIO) -> int:
        """Writes every record as a line of JSON, to a file or to an open text stream. Returns the
        number of records.
        """
        return write_lines(Path(to) if isinstance(to, str | os.PathLike) else to, self._rows())

    def import_(self, path: str | os.PathLike[str]) -> Imported:
        """Adds the records of an exported file that are missing here. Every line is checked; lines
        that are not records are refused, and the others are added.
        """
        reasons: list[str] = []
        refused = 0

        def rows() -> Iterator[Entry]:
            nonlocal refused
            for entry in entries(Path(path)):
                if isinstance(entry, Refused):
                    refused += 1
                    if len(reasons) < _REASONS:
                        reasons.append(entry.text)
                else:
                    yield entry

        added, seen = self._store(rows())
        return Imported(added, seen - added, refused, tuple(reasons))

    def prune(self, keep: int | None = None, failures: bool = False, outdated: bool = False) -> int:
        """Deletes, as requested, all but the `keep` best of each task, failures, and records of
        older code generators. Returns the number of deleted records. Records that cannot be read
        here are neither counted among the best nor deleted.
        """
        if keep is not None and keep < 1:
            raise RecordsError(f"keep is {keep}; it takes at least the best one of each task")
        deleted = 0
        with self._at.writing() as c:
            if outdated:
                old = sa.select(tasks.c.id).where(tasks.c.codegen != CODEGEN_VERSION)
                deleted += c.execute(records.delete().where(records.c.task_id.in_(old))).rowcount
                c.execute(state.delete().where(state.c.task_id.in_(old)))
                c.execute(tasks.delete().where(tasks.c.codegen != CODEGEN_VERSION))
            if failures:
                deleted += c.execute(records.delete().where(_is_mere_failure())).rowcount
            if keep is not None:
                deleted += _keep_best(c, keep)
            c.execute(runs.delete().where(~sa.exists().where(records.c.run == runs.c.key)))
        self._at.shrink()
        return deleted

    # internals
    def _store(self, entries: Iterator[Entry]) -> tuple[int, int]:
        """Returns how many entries were new, and how many there were."""
        new = seen = 0
        while batch := list(islice(entries, _BATCH)):
            with self._at.writing() as c:
                new += _put(c, batch)
            seen += len(batch)
        return new, seen

    def _read(
        self, task: Task, primitives: Sequence[type[Step]], intrinsics: Sequence[Intrinsic]
    ) -> list[Measurement | None]:
        """The task's measurements, oldest first; None for each that cannot be read."""
        with self._at.reading(one_moment=True) as c:
            stated = _stated(c, task.key)
            rows = list(_records(c, _among(stated)))
            made_by = _by_key(_runs(c, _among(stated)))
        reader = Reader(task, stated, primitives, intrinsics, made_by)
        return [reader.read(k, row) for k, row in rows]

    def _rows(self) -> Iterator[Entry]:
        """Every record with its task and run, oldest first, as of the moment this begins."""
        with self._at.reading(one_moment=True) as c:
            by_id = _stated(c)
            by_key = {row.key: row for row in _runs(c, sa.true())}
            for k, row in _records(c, sa.true()):
                yield Entry(by_id[k], row, by_key.get(row.run or ""))


def _stated(c: sa.Connection, key: str | None = None) -> dict[int, TaskRow]:
    """The ways in which the task with this key (or any task) was stated, by number."""
    query = sa.select(tasks.c.id, *_TASK).order_by(tasks.c.id)
    if key is not None:
        query = query.where(tasks.c.key == key)
    return {r[0]: TaskRow._make(r[1:]) for r in c.execute(query)}


def _among(stated: Iterable[int]) -> sa.ColumnElement[bool]:
    """Whether a record belongs to one of them. Usually there is one, whose records the index holds
    in order; for several, the database sorts them all to find the best.
    """
    numbers = list(stated)
    one = len(numbers) == 1
    return records.c.task_id == numbers[0] if one else records.c.task_id.in_(numbers)


def _runs(c: sa.Connection, which: sa.ColumnElement[bool]) -> list[RunRow]:
    """The runs that made these records."""
    keys = sa.select(records.c.run).where(which, records.c.run.is_not(None))
    query = sa.select(*_RUN).where(runs.c.key.in_(keys))
    return [RunRow._make(row) for row in c.execute(query)]


def _by_key(rows: Iterable[RunRow]) -> dict[str, TuningRun]:
    return {row.key: run_of(row) for row in rows}


def _records(c: sa.Connection, which: sa.ColumnElement[bool]) -> Iterator[tuple[int, RecordRow]]:
    """Records with the number of their task, oldest first."""
    query = sa.select(records.c.task_id, *_RECORD).where(which).order_by(records.c.id)
    for row in c.execute(query, execution_options={"yield_per": _BATCH}):
        yield row[0], RecordRow._make(row[1:])


def _best(c: sa.Connection, reader: Reader) -> Measurement | None:
    """The first by `Ranking` whose trace can be read and applied."""
    if len(reader.stated) > 1:  # the same candidate may be recorded under several names
        rows = _records(c, _among(reader.stated))
        ranking = Ranking(m for k, row in rows if (m := reader.read(k, row)) is not None)
        return next((m for m in ranking.ranked if applies(m.candidate)), None)
    # The first by `trust` almost always qualifies, so few rows are fetched at first.
    timed = _among(reader.stated), records.c.standing < Standing.FAILED
    query = sa.select(records.c.task_id, *_RECORD).where(*timed).order_by(*_TRUST)
    offset, size = 0, 1
    while rows_by_trust := c.execute(query.limit(size).offset(offset)).all():
        for row in rows_by_trust:
            record = RecordRow._make(row[1:])
            m = reader.read(row[0], record)
            if m is not None and applies(m.candidate) and _counts(c, reader, record, m):
                return m
        offset, size = offset + size, min(8 * size, _BATCH)
    return None


def _counts(c: sa.Connection, reader: Reader, record: RecordRow, m: Measurement) -> bool:
    """Whether no later record of its candidate replaces or cancels it."""
    same = _among(reader.stated), records.c.candidate == record.candidate
    rows = _records(c, sa.and_(*same))
    return Ranking(x for k, row in rows if (x := reader.read(k, row)) is not None).best == m


def _keep_best(c: sa.Connection, keep: int) -> int:
    """Deletes timed records but those of each task's `keep` best candidates; returns how many."""
    by_key: dict[str, dict[int, TaskRow]] = {}
    for k, row in _stated(c).items():
        by_key.setdefault(row.key, {})[k] = row
    outranked: list[int] = []
    for stated in by_key.values():
        reader = reader_of(next(iter(stated.values())), stated)
        if reader is None:
            continue
        query = sa.select(records.c.id, records.c.task_id, *_RECORD).where(_among(stated))
        by_row: dict[int, Measurement] = {}
        for stored in c.execute(query.order_by(records.c.id)).all():
            m = reader.read(stored[1], RecordRow._make(stored[2:]))
            if m is not None:
                by_row[stored[0]] = m
        best = {id(m) for m in Ranking(by_row.values()).ranked[:keep]}
        timed = {k: m for k, m in by_row.items() if standing_of(m) < Standing.FAILED}
        outranked += [k for k, m in timed.items() if id(m) not in best]
    for at in range(0, len(outranked), _BATCH):
        c.execute(records.delete().where(records.c.id.in_(outranked[at : at + _BATCH])))
    return len(outranked)


def _is_mere_failure() -> sa.ColumnElement[bool]:
    """Whether a record is a failure of a candidate that never ran before. Other failures cancel
    earlier times of their candidate, which would count again without them.
    """
    timed = records.alias()
    same = timed.c.task_id == records.c.task_id, timed.c.candidate == records.c.candidate
    earlier = timed.c.id < records.c.id, timed.c.standing < Standing.FAILED
    return sa.and_(records.c.failure.is_not(None), ~sa.exists().where(*same, *earlier))


def _put(c: sa.Connection, rows: Iterable[tuple[Task | TaskRow, RecordRow, RunRow | None]]) -> int:
    """Inserts records; returns how many were new."""
    ids: dict[str, int] = {}
    values = []
    latest: dict[str, RunRow] = {}
    for task, row, run in rows:
        if task.statement not in ids:
            ids[task.statement] = _id_of(c, task)
        values.append({"task_id": ids[task.statement], **row._asdict()})
        if run is not None and (run.key not in latest or run.seconds > latest[run.key].seconds):
            latest[run.key] = run
    for run in latest.values():
        insert = _insert(c, runs).values(run._asdict())
        seconds = insert.excluded.seconds
        longer = sa.case((seconds > runs.c.seconds, seconds), else_=runs.c.seconds)
        c.execute(insert.on_conflict_do_update(index_elements=["key"], set_={"seconds": longer}))
    once = _insert(c, records).on_conflict_do_nothing(index_elements=["at", "identity"])
    return c.execute(once, values, execution_options={"preserve_rowcount": True}).rowcount


def _id_of(c: sa.Connection, task: Task | TaskRow) -> int:
    """The number of a task's row, which is inserted if missing."""
    own = tasks.c.statement == task.statement
    number = c.execute(sa.select(tasks.c.id).where(own)).scalar()
    if number is None:
        row = task_row(task) if isinstance(task, Task) else task
        insert = tasks.insert().values(row._asdict()).returning(tasks.c.id)
        number = c.execute(insert).scalar_one()
    return int(number)


def _insert(c: sa.Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """An insert with an ON CONFLICT clause, which each dialect of SQLAlchemy has on its own."""
    return postgresql.insert(table) if c.dialect.name == "postgresql" else sqlite.insert(table)
