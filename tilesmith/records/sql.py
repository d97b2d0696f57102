"""The built-in database of measurements, in SQL: a SQLite file for one machine, PostgreSQL for a
team.

Each method is one transaction, except for those that may move millions of records.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

import sqlalchemy as sa

from tilesmith.base.errors import RecordsError
from tilesmith.base.given import checks_given
from tilesmith.base.target import Target
from tilesmith.records.database import (
    MissingPartsWarning,
    Recorded,
    RunSummary,
    TaskSummary,
    missing_text,
)
from tilesmith.records.lines import Imported, Refused, entries, write_lines
from tilesmith.records.missing import missing_in, missing_of, other_codegens
from tilesmith.records.pack import Packed, Packs
from tilesmith.records.pack_write import PackWritten, pack_database
from tilesmith.records.prune import prune
from tilesmith.records.queries import (
    BATCH,
    best_of,
    id_of,
    insert_into,
    is_among,
    put,
    records_of,
    runs_by_key,
    runs_of,
    statements_by_key,
    statements_of,
    targets_in,
)
from tilesmith.records.reader import Reader, applies, reader_of
from tilesmith.records.rows import (
    Entry,
    TaskRow,
    is_sound,
    record_row,
    run_of,
    run_row,
)
from tilesmith.records.schema import records, state, tasks
from tilesmith.records.transactions import Transactions
from tilesmith.schedule.trace import Parts
from tilesmith.task.task import (
    Candidate,
    Measurement,
    Standing,
    Task,
    builder_of,
    task_key,
    trust,
)

_REASONS = 20  # refused lines of an import for which a reason is kept


@checks_given(error=RecordsError)
class SqlDatabase:
    """Created by `open_database`. Implements the protocol `Database`; the further methods maintain
    the records.
    """

    def __init__(
        self, place: str | os.PathLike[str], parts: Parts | None = None,
        packs: Packs | None = None,
    ) -> None:  # fmt: skip
        if parts is not None and not isinstance(parts, Parts):
            raise RecordsError(f"parts is {parts!r}; it is a ts.Parts")
        self._at = Transactions(place)
        self._parts = parts
        self.packs = Packs(()) if packs is None else packs
        self._told: set[str] = set()  # keys of tasks of which it was said what is missing

    @property
    def place(self) -> str:
        """The file, or the URL without its password."""
        return self._at.place

    @property
    def parts(self) -> Parts | None:
        """Those that it was opened with."""
        return self._parts

    def with_parts(self, parts: Parts) -> SqlDatabase:
        """The same database, as if it had been opened with these parts. It is closed with this."""
        other = copy(self)
        other._parts = parts
        return other

    # the protocol Database
    def add(self, measurements: Sequence[Measurement]) -> None:
        rows = [
            (m.candidate.task, record_row(m), None if m.moment is None else run_row(m.moment))
            for m in measurements
        ]
        if rows:
            with self._at.writing() as c:
                put(c, rows)

    def of(self, task: Task) -> list[Measurement]:
        task = task.with_parts(self._parts)
        measured, reader = self._read(task)
        self._tell(task, reader.missing)
        return [m for m in measured if m is not None]

    def since(
        self, task: Task, mark: int | None, besides: str = ""
    ) -> tuple[list[Measurement], int]:
        task = task.with_parts(self._parts)
        # Rows become visible in the order of their numbers, see `Transactions.writing`.
        with self._at.reading(one_moment=True) as c:
            stated = statements_of(c, task.key)
            which = is_among(stated), records.c.run.is_distinct_from(besides)
            latest = c.execute(sa.select(sa.func.max(records.c.id)).where(*which)).scalar() or 0
            if mark is None or latest <= mark:
                return [], latest if mark is None else mark
            rows = list(records_of(c, sa.and_(*which, records.c.id > mark)))
            made_by = runs_by_key(runs_of(c, is_among(stated)))
        reader = Reader(task, stated, made_by)
        read = (reader.read(k, row) for k, row in rows)
        return [m for m in read if m is not None], latest

    def best(self, task: Task) -> Measurement | None:
        return self._best(task, applies)

    def likely_best(self, task: Task) -> Measurement | None:
        """What `best` returns, if its trace can be applied: that is not tried here."""
        return self._best(task, lambda _: True)

    def _best(self, task: Task, fits: Callable[[Candidate], bool]) -> Measurement | None:
        task = task.with_parts(self._parts)
        with self._at.reading(one_moment=True) as c:
            reader = Reader(task, statements_of(c, task.key))
            best = best_of(c, reader, fits)
        if reader.missing and task.key not in self._told:
            self._tell(task, self._read(task)[1].missing)
        return best

    def packed(self, task: Task) -> list[Packed]:
        """Schedules that its packs have for exactly this computation, those of the machine that is
        most like the task's first.
        """
        return self.packs.packed(task.with_parts(self._parts))

    def near(self, task: Task) -> list[Packed]:
        """Schedules of its packs of the same structure and near sizes, the nearest first."""
        return self.packs.near(task.with_parts(self._parts))

    def find(self, key: str) -> list[Recorded]:
        """Records whose key begins with this text, of any task and any machine, here and in the
        packs.
        """
        found = []
        with self._at.reading(one_moment=True) as c:
            stated = statements_of(c)
            starts = records.c.candidate.startswith(key, autoescape=True)
            for k, row in records_of(c, starts):
                reader = reader_of(stated[k], {k: stated[k]}, self._parts)
                m = None if reader is None else reader.read(k, row)
                if m is not None:
                    codegen = stated[k].codegen
                    found.append(Recorded(row.candidate, m.candidate, m.cost, codegen))
        return found + self.packs.find(key, self._parts)

    def unread(self, task: Task | None = None) -> int:
        if task is not None:
            return sum(m is None for m in self._read(task.with_parts(self._parts))[0])
        with self._at.reading(one_moment=True) as c:
            stated = statements_of(c)
            readers = {k: reader_of(row, {k: row}, self._parts) for k, row in stated.items()}
            count = 0
            for k, row in records_of(c, sa.true()):
                reader = readers.get(k)
                count += reader is None or reader.read(k, row) is None
            return count

    def missing(self, task: Task | None = None) -> Mapping[str, int]:
        """How many measurements, of one task or in all, need a part that was not given, by what
        that is: "the primitive 'square'". Of one task, also those of other back ends.
        """
        with self._at.reading(one_moment=True) as c:
            if task is None:
                return missing_in(c, self._parts)
            return missing_of(c, task.with_parts(self._parts))

    def earlier(self, task: Task) -> list[Candidate]:
        task = task.with_parts(self._parts)
        name = builder_of(task.codegen).partition(":")[0]
        with self._at.reading(one_moment=True) as c:
            stated: dict[int, TaskRow] = {}
            for codegen in other_codegens(c, task):
                if builder_of(codegen).partition(":")[0] == name:
                    stated |= statements_of(c, task_key(task.func, task.target, codegen))
            reader = Reader(task, stated)
            timed = sa.and_(is_among(stated), records.c.standing < Standing.FAILED)
            measured = [reader.read(k, row) for k, row in records_of(c, timed)]
        ranked = sorted((m for m in measured if m is not None), key=trust)
        return list(dict.fromkeys(m.candidate for m in ranked))

    def runs(self, task: Task) -> list[RunSummary]:
        task = task.with_parts(self._parts)
        with self._at.reading(one_moment=True) as c:
            stated = statements_of(c, task.key)
            rows = runs_of(c, is_among(stated))
            in_a_run = sa.and_(is_among(stated), records.c.run.is_not(None))
            reader = Reader(task, stated, runs_by_key(rows))
            measured: dict[str, list[Measurement]] = {row.key: [] for row in rows}
            for k, record in records_of(c, in_a_run):
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
            for key, stated in statements_by_key(c).items():
                first = next(iter(stated.values()))
                reader = reader_of(first, stated, self._parts)
                if reader is None:  # see `unread`
                    continue
                best = best_of(c, reader)
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

    def targets(self) -> list[Target]:
        """The machines of its tasks, each once, in the order in which they were first recorded."""
        with self._at.reading() as c:
            return list(dict.fromkeys(targets_in(c)))

    def count(self, task: Task | None = None) -> int:
        query = sa.select(sa.func.count()).select_from(records)
        with self._at.reading() as c:
            if task is not None:
                key = task.with_parts(self._parts).key
                query = query.where(is_among(statements_of(c, key)))
            return c.execute(query).scalar_one()

    def save_state(self, task: Task, name: str, data: bytes) -> None:
        task = task.with_parts(self._parts)
        with self._at.writing() as c:
            insert = insert_into(c, state).values(task_id=id_of(c, task), name=name, data=data)
            key = [state.c.task_id, state.c.name]
            c.execute(insert.on_conflict_do_update(index_elements=key, set_={"data": data}))

    def load_state(self, task: Task, name: str) -> bytes | None:
        statement = task.with_parts(self._parts).statement
        own = tasks.c.statement == statement, state.c.name == name
        # As it is in the file: SQLAlchemy would make bytes of whatever a damaged one has.
        data = sa.type_coerce(state.c.data, sa.types.NullType())
        with self._at.reading() as c:
            found = c.execute(sa.select(data).select_from(state).join(tasks).where(*own)).scalar()
        return bytes(found) if isinstance(found, bytes | memoryview) else None

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
        if other is self:
            return 0
        with closing(other._rows()) as rows:
            return self._store(rows)[0]

    def export(self, to: str | os.PathLike[str] | TextIO) -> int:
        """Writes every record as a line of JSON, to a file or to an open text stream. Returns the
        number of records.
        """
        with closing(self._rows()) as rows:  # also if writing fails: they are a transaction
            return write_lines(Path(to) if isinstance(to, str | os.PathLike) else to, rows)

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

    def pack(self, to: str | os.PathLike[str], keep: int = 3) -> PackWritten:
        """Writes the `keep` best schedules of each task to a file, for other machines of the kind:
        see `packs` of `ts.open_database`.
        """
        return pack_database(self.tasks(), self.of, to, keep)

    def prune(self, keep: int | None = None, failures: bool = False, outdated: bool = False) -> int:
        """Deletes, as requested, all but the `keep` best of each task, failures, and records of
        older code generators. Returns the number of deleted records. Records that cannot be read
        here are neither counted among the best nor deleted.
        """
        if keep is not None and keep < 1:
            raise RecordsError(f"keep is {keep}; it takes at least the best one of each task")
        with self._at.writing() as c:
            deleted = prune(c, keep, failures, outdated, self._parts)
        self._at.shrink()
        return deleted

    # internals
    def _store(self, entries: Iterator[Entry]) -> tuple[int, int]:
        """Returns how many entries were new, and how many there were."""
        new = seen = 0
        while batch := list(islice(entries, BATCH)):
            with self._at.writing() as c:
                new += put(c, batch)
            seen += len(batch)
        return new, seen

    def _read(self, task: Task) -> tuple[list[Measurement | None], Reader]:
        """The task's measurements, oldest first; None for each that cannot be read."""
        with self._at.reading(one_moment=True) as c:
            stated = statements_of(c, task.key)
            rows = list(records_of(c, is_among(stated)))
            made_by = runs_by_key(runs_of(c, is_among(stated)))
        reader = Reader(task, stated, made_by)
        return [reader.read(k, row) for k, row in rows], reader

    def _tell(self, task: Task, missing: Mapping[str, int]) -> None:
        """Says once for each task what was left out."""
        if missing and task.key not in self._told:
            self._told.add(task.key)
            text = f"{self.place}, {task.func.name}: {missing_text(missing)}"
            warnings.warn(text, MissingPartsWarning, stacklevel=3)

    def _rows(self) -> Generator[Entry, None, None]:
        """Every record with its task and run, oldest first, as of the moment this begins. A warning
        tells of damaged rows, which are left out.
        """
        damaged = 0
        with self._at.reading(one_moment=True) as c:
            by_id = statements_of(c)
            by_key = {row.key: row for row in runs_of(c, sa.true())}
            for k, row in records_of(c, sa.true()):
                if k not in by_id or not is_sound(row):
                    damaged += 1
                elif row.run is None or row.run in by_key:
                    yield Entry(by_id[k], row, by_key.get(row.run or ""))
                else:  # what is known of its run is damaged
                    alone = row._replace(run=None, run_seconds=None, trial=None)
                    yield Entry(by_id[k], alone)
        if damaged:
            warnings.warn(
                f"{self.place} is damaged: {damaged} records cannot be read and were left out; the "
                "file still has them",
                stacklevel=2,
            )
