"""The queries of the built-in database: functions of a connection, which the caller has opened a
transaction on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from tilesmith.base.target import Target
from tilesmith.records.reader import Reader, applies
from tilesmith.records.rows import (
    UNREADABLE,
    RecordRow,
    RunRow,
    TaskRow,
    is_sound,
    run_of,
    task_row,
)
from tilesmith.records.schema import records, runs, tasks
from tilesmith.task.task import Candidate, Measurement, Ranking, Standing, Task, TuningRun

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

_TASK = [tasks.c[name] for name in TaskRow._fields]
_RUN = [runs.c[name] for name in RunRow._fields]
RECORD = [records.c[name] for name in RecordRow._fields]
# The order of `trust`, and of the index `tilesmith_records_best`.
_TRUST = (records.c.standing, records.c.normal_cost, records.c.id)
BATCH = 1000  # rows per transaction of a large transfer, so that other writers get their turn


def statements_of(c: sa.Connection, key: str | None = None) -> dict[int, TaskRow]:
    """The ways in which the task with this key (or any task) was stated, by number. Damaged rows
    are left out.
    """
    query = sa.select(tasks.c.id, *_TASK).order_by(tasks.c.id)
    if key is not None:
        query = query.where(tasks.c.key == key)
    rows = {r[0]: TaskRow._make(r[1:]) for r in c.execute(query)}
    return {k: row for k, row in rows.items() if is_sound(row)}


def statements_by_key(c: sa.Connection) -> dict[str, dict[int, TaskRow]]:
    """The ways in which each task was stated, in the order in which tasks were first stated."""
    by_key: dict[str, dict[int, TaskRow]] = {}
    for k, row in statements_of(c).items():
        by_key.setdefault(row.key, {})[k] = row
    return by_key


def targets_in(c: sa.Connection) -> Iterator[Target]:
    """The machines of all tasks, each once; those that cannot be read are left out."""
    query = sa.select(tasks.c.target).group_by(tasks.c.target).order_by(sa.func.min(tasks.c.id))
    for (text,) in c.execute(query):
        with suppress(*UNREADABLE):
            yield Target.from_json(str(text))


def is_among(stated: Iterable[int]) -> sa.ColumnElement[bool]:
    """Whether a record belongs to one of them. Usually there is one, whose records the index holds
    in order; for several, the database sorts them all to find the best.
    """
    numbers = list(stated)
    one = len(numbers) == 1
    return records.c.task_id == numbers[0] if one else records.c.task_id.in_(numbers)


def runs_of(c: sa.Connection, which: sa.ColumnElement[bool]) -> list[RunRow]:
    """The runs that made these records. Damaged rows are left out."""
    keys = sa.select(records.c.run).where(which, records.c.run.is_not(None))
    query = sa.select(*_RUN).where(runs.c.key.in_(keys))
    rows = [RunRow._make(row) for row in c.execute(query)]
    return [row for row in rows if is_sound(row) and row.seed.removeprefix("-").isdecimal()]


def runs_by_key(rows: Iterable[RunRow]) -> dict[str, TuningRun]:
    return {row.key: run_of(row) for row in rows}


def records_of(c: sa.Connection, which: sa.ColumnElement[bool]) -> Iterator[tuple[int, RecordRow]]:
    """Records with the number of their task, oldest first."""
    query = sa.select(records.c.task_id, *RECORD).where(which).order_by(records.c.id)
    for row in c.execute(query, execution_options={"yield_per": BATCH}):
        yield row[0], RecordRow._make(row[1:])


def best_of(
    c: sa.Connection, reader: Reader, fits: Callable[[Candidate], bool] = applies
) -> Measurement | None:
    """The first by `Ranking` whose trace can be read and applied."""
    if len(reader.stated) > 1:  # the same candidate may be recorded under several names
        rows = records_of(c, is_among(reader.stated))
        ranking = Ranking(m for k, row in rows if (m := reader.read(k, row)) is not None)
        return next((m for m in ranking.ranked if fits(m.candidate)), None)
    # The first by `trust` almost always qualifies, so few rows are fetched at first.
    timed = is_among(reader.stated), records.c.standing < Standing.FAILED
    query = sa.select(records.c.task_id, *RECORD).where(*timed).order_by(*_TRUST)
    offset, size = 0, 1
    while rows_by_trust := c.execute(query.limit(size).offset(offset)).all():
        for row in rows_by_trust:
            record = RecordRow._make(row[1:])
            m = reader.read(row[0], record)
            if m is not None and fits(m.candidate) and _counts(c, reader, record, m):
                return m
        offset, size = offset + size, min(8 * size, BATCH)
    return None


def _counts(c: sa.Connection, reader: Reader, record: RecordRow, m: Measurement) -> bool:
    """Whether no later record of its candidate replaces or cancels it."""
    same = is_among(reader.stated), records.c.candidate == record.candidate
    rows = list(records_of(c, sa.and_(*same)))
    if len(rows) == 1:  # as nearly always: it need not be read again
        return True
    return Ranking(x for k, row in rows if (x := reader.read(k, row)) is not None).best == m


def put(c: sa.Connection, rows: Iterable[tuple[Task | TaskRow, RecordRow, RunRow | None]]) -> int:
    """Inserts records; returns how many were new."""
    ids: dict[str, int] = {}
    values = []
    latest: dict[str, RunRow] = {}
    for task, row, run in rows:
        if task.statement not in ids:
            ids[task.statement] = id_of(c, task)
        values.append({"task_id": ids[task.statement], **row._asdict()})
        if run is not None and (run.key not in latest or run.seconds > latest[run.key].seconds):
            latest[run.key] = run
    for run in latest.values():
        insert = insert_into(c, runs).values(run._asdict())
        seconds = insert.excluded.seconds
        longer = sa.case((seconds > runs.c.seconds, seconds), else_=runs.c.seconds)
        c.execute(insert.on_conflict_do_update(index_elements=["key"], set_={"seconds": longer}))
    once = insert_into(c, records).on_conflict_do_nothing(index_elements=["at", "identity"])
    return c.execute(once, values, execution_options={"preserve_rowcount": True}).rowcount


def id_of(c: sa.Connection, task: Task | TaskRow) -> int:
    """The number of a task's row, which is inserted if missing."""
    own = tasks.c.statement == task.statement
    number = c.execute(sa.select(tasks.c.id).where(own)).scalar()
    if number is None:
        row = task_row(task) if isinstance(task, Task) else task
        insert = tasks.insert().values(row._asdict()).returning(tasks.c.id)
        number = c.execute(insert).scalar_one()
    return int(number)


def insert_into(c: sa.Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """An insert with an ON CONFLICT clause, which each dialect of SQLAlchemy has on its own."""
    if c.dialect.name != "postgresql":
        return sqlite.insert(table)
    # Imported late: it takes 40 ms, an eighth of what opening a database does.
    from sqlalchemy.dialects import postgresql

    return postgresql.insert(table)
