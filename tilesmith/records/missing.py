"""Which parts the records of a database need that were not given, on an open connection."""

from __future__ import annotations

from collections import Counter

import sqlalchemy as sa

from tilesmith.records.queries import is_among, records_of, statements_of
from tilesmith.records.reader import Reader, reader_of
from tilesmith.records.schema import records, tasks
from tilesmith.schedule.trace import Parts
from tilesmith.task.task import Task, builder_of, is_current, task_key


def missing_in(c: sa.Connection, parts: Parts | None) -> Counter[str]:
    """In the whole database, by what is missing."""
    counts: Counter[str] = Counter()
    for k, row in statements_of(c).items():
        reader = reader_of(row, {k: row}, parts)
        if reader is None:
            continue
        if (builder := builder_of(row.codegen)) != builder_of(reader.task.codegen):
            counts[_back_end(builder)] += _count(c, [k])
        else:
            counts += _missing_for(c, reader)
    return counts


def missing_of(c: sa.Connection, task: Task) -> Counter[str]:
    """Of one task, also what other back ends have built."""
    counts = _missing_for(c, Reader(task, statements_of(c, task.key)))
    for codegen in other_codegens(c, task):
        if is_current(codegen) and (builder := builder_of(codegen)):
            stated = statements_of(c, task_key(task.func, task.target, codegen))
            if number := _count(c, list(stated)):
                counts[_back_end(builder)] += number
    return counts


def other_codegens(c: sa.Connection, task: Task) -> list[str]:
    """The other code generators that there are records of, for this target."""
    others = sa.select(tasks.c.codegen).where(
        tasks.c.fingerprint == task.target.fingerprint, tasks.c.codegen != task.codegen
    )
    return list(c.execute(others.distinct()).scalars())


def _missing_for(c: sa.Connection, reader: Reader) -> Counter[str]:
    for k, row in records_of(c, is_among(reader.stated)):
        reader.read(k, row)
    return reader.missing


def _count(c: sa.Connection, stated: list[int]) -> int:
    number = sa.select(sa.func.count()).select_from(records).where(is_among(stated))
    return int(c.execute(number).scalar_one())


def _back_end(builder: str) -> str:
    return f"the back end {builder!r}"
