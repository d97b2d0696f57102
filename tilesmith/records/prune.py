"""Deletes records that are no longer needed, on an open connection."""

from __future__ import annotations

import sqlalchemy as sa

from tilesmith.records.queries import BATCH, RECORD, is_among, statements_by_key
from tilesmith.records.reader import reader_of
from tilesmith.records.rows import RecordRow
from tilesmith.records.schema import records, runs, state, tasks
from tilesmith.schedule.trace import Parts
from tilesmith.task.task import CODEGEN_VERSION, Measurement, Ranking, Standing, standing_of


def prune(
    c: sa.Connection, keep: int | None, failures: bool, outdated: bool, parts: Parts | None
) -> int:
    """Returns the number of deleted records; see `SqlDatabase.prune`."""
    deleted = 0
    if outdated:
        is_old = ~sa.or_(
            tasks.c.codegen == CODEGEN_VERSION,
            tasks.c.codegen.startswith(f"{CODEGEN_VERSION}+", autoescape=True),
        )
        old = sa.select(tasks.c.id).where(is_old)
        deleted += c.execute(records.delete().where(records.c.task_id.in_(old))).rowcount
        c.execute(state.delete().where(state.c.task_id.in_(old)))
        c.execute(tasks.delete().where(is_old))
    if failures:
        deleted += c.execute(records.delete().where(_is_mere_failure())).rowcount
    if keep is not None:
        deleted += _keep_best(c, keep, parts)
    c.execute(runs.delete().where(~sa.exists().where(records.c.run == runs.c.key)))
    return deleted


def _keep_best(c: sa.Connection, keep: int, parts: Parts | None) -> int:
    """Deletes timed records but those of each task's `keep` best candidates; returns how many."""
    outranked: list[int] = []
    for stated in statements_by_key(c).values():
        reader = reader_of(next(iter(stated.values())), stated, parts)
        if reader is None:
            continue
        query = sa.select(records.c.id, records.c.task_id, *RECORD).where(is_among(stated))
        by_row: dict[int, Measurement] = {}
        for stored in c.execute(query.order_by(records.c.id)).all():
            m = reader.read(stored[1], RecordRow._make(stored[2:]))
            if m is not None:
                by_row[stored[0]] = m
        best = {id(m) for m in Ranking(by_row.values()).ranked[:keep]}
        timed = {k: m for k, m in by_row.items() if standing_of(m) < Standing.FAILED}
        outranked += [k for k, m in timed.items() if id(m) not in best]
    for at in range(0, len(outranked), BATCH):
        c.execute(records.delete().where(records.c.id.in_(outranked[at : at + BATCH])))
    return len(outranked)


def _is_mere_failure() -> sa.ColumnElement[bool]:
    """Whether a record is a failure of a candidate that never ran before. Other failures cancel
    earlier times of their candidate, which would count again without them.
    """
    timed = records.alias()
    same = timed.c.task_id == records.c.task_id, timed.c.candidate == records.c.candidate
    earlier = timed.c.id < records.c.id, timed.c.standing < Standing.FAILED
    return sa.and_(records.c.failure.is_not(None), ~sa.exists().where(*same, *earlier))
