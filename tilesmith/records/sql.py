"""The database of measurements, in SQL: a SQLite file for one machine, PostgreSQL for a team.

Each method is one transaction, but for those that may move millions of records.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from tilesmith.base.errors import RecordsError
from tilesmith.base.target import Target
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.intrinsics import INTRINSICS
from tilesmith.ir.nodes import Intrinsic
from tilesmith.records.database import TaskSummary
from tilesmith.records.lines import rows_of, write_lines
from tilesmith.records.rows import (
    RecordRow,
    TaskRow,
    measurement,
    record_row,
    task_row,
)
from tilesmith.records.schema import records, state, tasks
from tilesmith.records.transactions import Transactions
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import PRIMITIVES
from tilesmith.task.task import CODEGEN_VERSION, Measurement, Standing, Task

_TASK = [tasks.c[name] for name in TaskRow._fields]
_RECORD = [records.c[name] for name in RecordRow._fields]
# The order of `trust`, and of the index `tilesmith_records_best`.
_TRUST = (records.c.standing, records.c.normal_cost, records.c.id)
_BATCH = 1000  # rows of one transaction where there may be millions: others get their turn


class SqlDatabase:
    """Made by `open_database`. Implements the protocol `Database`; what else it can do is for
    those who look after the records.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self._at = Transactions(place)

    @property
    def place(self) -> str:
        """The file, or the URL without its password."""
        return self._at.place

    # what every database does
    def add(self, measurements: Sequence[Measurement]) -> None:
        pairs = [(m.candidate.task, record_row(m)) for m in measurements]
        if pairs:
            with self._at.writing() as c:
                _put(c, pairs)

    def of(
        self,
        task: Task,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> list[Measurement]:
        query = sa.select(*_RECORD).where(_of(task))
        with self._at.reading() as c:
            rows = c.execute(query.order_by(records.c.id)).all()
        return [measurement(RecordRow._make(r), task, primitives, intrinsics) for r in rows]

    def best(
        self,
        task: Task,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> Measurement | None:
        query = (
            sa.select(*_RECORD)
            .where(_of(task), records.c.standing < Standing.FAILED)
            .order_by(*_TRUST)
            .limit(1)
        )
        with self._at.reading() as c:
            row = c.execute(query).first()
        if row is None:
            return None
        return measurement(RecordRow._make(row), task, primitives, intrinsics)

    def tasks(self) -> list[TaskSummary]:
        number, failed = sa.func.count(), sa.func.count(records.c.failure)
        groups = sa.select(records.c.task_id, number, failed).group_by(records.c.task_id)
        first = sa.func.row_number().over(partition_by=records.c.task_id, order_by=_TRUST)
        timed = sa.select(records.c.task_id, records.c.cost, first.label("place"))
        ranked = timed.where(records.c.standing < Standing.FAILED).subquery()
        bests = sa.select(ranked.c.task_id, ranked.c.cost).where(ranked.c.place == 1)
        with self._at.reading() as c:
            found = {row[0]: (row[1], row[2]) for row in c.execute(groups)}
            best = {row[0]: row[1] for row in c.execute(bests)}
            rows = c.execute(sa.select(tasks.c.id, *_TASK).order_by(tasks.c.id)).all()
        return [
            TaskSummary(
                task=Task(function_from_json(t.func), Target.from_json(t.target)),
                key=t.key,
                codegen=t.codegen,
                count=found.get(k, (0, 0))[0],
                failures=found.get(k, (0, 0))[1],
                best_seconds=best.get(k),
            )
            for k, t in ((r[0], TaskRow._make(r[1:])) for r in rows)
        ]

    def count(self, task: Task | None = None) -> int:
        query = sa.select(sa.func.count()).select_from(records)
        if task is not None:
            query = query.where(_of(task))
        with self._at.reading() as c:
            return c.execute(query).scalar_one()

    def save_state(self, task: Task, name: str, data: bytes) -> None:
        with self._at.writing() as c:
            insert = _insert(c, state).values(task_id=_id_of(c, task), name=name, data=data)
            key = [state.c.task_id, state.c.name]
            c.execute(insert.on_conflict_do_update(index_elements=key, set_={"data": data}))

    def load_state(self, task: Task, name: str) -> bytes | None:
        query = sa.select(state.c.data).join(tasks)
        with self._at.reading() as c:
            data = c.execute(query.where(tasks.c.key == task.key, state.c.name == name)).scalar()
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

    # looking after the records
    def merge(self, other: SqlDatabase) -> int:
        """Takes over what the other one has and this one has not; how many that were."""
        return 0 if other is self else self._store(other._rows())

    def export(self, path: str | os.PathLike[str]) -> int:
        """Writes every record as a line of JSON; how many there are."""
        return write_lines(Path(path), self._rows())

    def import_(self, path: str | os.PathLike[str]) -> int:
        """Takes over the lines that `export` wrote and that are not here yet; how many that
        were.
        """
        return self._store(rows_of(Path(path)))

    def prune(self, keep: int | None = None, failures: bool = False, outdated: bool = False) -> int:
        """Forgets all but the `keep` best of each task, failures, and what an older code generator
        made, as far as asked for; how many records that were.
        """
        if keep is not None and keep < 1:
            raise RecordsError(f"keep is {keep}; it takes at least the best one of each task")
        gone = 0
        with self._at.writing() as c:
            if outdated:
                old = sa.select(tasks.c.id).where(tasks.c.codegen != CODEGEN_VERSION)
                gone += c.execute(records.delete().where(records.c.task_id.in_(old))).rowcount
                c.execute(state.delete().where(state.c.task_id.in_(old)))
                c.execute(tasks.delete().where(tasks.c.codegen != CODEGEN_VERSION))
            if failures:
                gone += c.execute(records.delete().where(records.c.failure.is_not(None))).rowcount
            if keep is not None:
                place = sa.func.row_number().over(partition_by=records.c.task_id, order_by=_TRUST)
                ranked = sa.select(records.c.id, place.label("place"))
                inner = ranked.where(records.c.standing < Standing.FAILED).subquery()
                far = sa.select(inner.c.id).where(inner.c.place > keep)
                gone += c.execute(records.delete().where(records.c.id.in_(far))).rowcount
        self._at.shrink()
        return gone

    # inside
    def _store(self, pairs: Iterator[tuple[TaskRow, RecordRow]]) -> int:
        """How many were new."""
        new = 0
        while batch := list(islice(pairs, _BATCH)):
            with self._at.writing() as c:
                new += _put(c, batch)
        return new

    def _rows(self) -> Iterator[tuple[TaskRow, RecordRow]]:
        """Every record with its task, oldest first, as they are when this begins."""
        with self._at.reading(one_moment=True) as c:
            all_tasks = c.execute(sa.select(tasks.c.id, *_TASK)).all()
            by_id = {r[0]: TaskRow._make(r[1:]) for r in all_tasks}
            query = sa.select(records.c.task_id, *_RECORD).order_by(records.c.id)
            options = {"yield_per": _BATCH}
            for row in c.execute(query, execution_options=options):
                yield by_id[row[0]], RecordRow._make(row[1:])


def _of(task: Task) -> sa.ColumnElement[bool]:
    """Whether a record is of the task. Not by a join: PostgreSQL would sort all of the task's
    records to find the best, where the index has them in order.
    """
    found = sa.select(tasks.c.id).where(tasks.c.key == task.key).scalar_subquery()
    return records.c.task_id == found


def _put(c: sa.Connection, pairs: Iterable[tuple[Task | TaskRow, RecordRow]]) -> int:
    """How many were new."""
    ids: dict[str, int] = {}
    values = []
    for task, row in pairs:
        if task.key not in ids:
            ids[task.key] = _id_of(c, task)
        values.append({"task_id": ids[task.key], **row._asdict()})
    once = _insert(c, records).on_conflict_do_nothing(index_elements=["at", "identity"])
    return c.execute(once, values, execution_options={"preserve_rowcount": True}).rowcount


def _id_of(c: sa.Connection, task: Task | TaskRow) -> int:
    """Of a task's row, which is made if there is none."""
    found = c.execute(sa.select(tasks.c.id).where(tasks.c.key == task.key)).scalar()
    if found is None:
        row = task_row(task) if isinstance(task, Task) else task
        insert = tasks.insert().values(row._asdict()).returning(tasks.c.id)
        found = c.execute(insert).scalar_one()
    return int(found)


def _insert(c: sa.Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """An insert that can say what to do when the row is there: each dialect has its own."""
    return postgresql.insert(table) if c.dialect.name == "postgresql" else sqlite.insert(table)
