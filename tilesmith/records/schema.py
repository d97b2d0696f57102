"""The tables, and the migrations from older versions.

Names begin with `tilesmith_`, because a server may be shared with other programs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from statistics import median

import sqlalchemy as sa

from tilesmith.base.errors import RecordsError, TilesmithError
from tilesmith.base.target import Target
from tilesmith.ir.deserialize import function_from_json
from tilesmith.task.task import task_key

metadata = sa.MetaData()
_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite auto-numbers INTEGER only

schema = sa.Table("tilesmith_schema", metadata, sa.Column("version", sa.Integer, nullable=False))

tasks = sa.Table(
    "tilesmith_tasks",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    # One row for each way in which a task was stated. Rows that differ only in names have the same
    # `key`; a record belongs to the row whose names its trace refers to.
    sa.Column("statement", sa.Text, nullable=False, unique=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("func", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("codegen", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Index("tilesmith_tasks_by_key", "key", "id"),
)

runs = sa.Table(
    "tilesmith_runs",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("strategy", sa.Text, nullable=False),
    sa.Column("settings", sa.Text, nullable=False),
    sa.Column("seed", sa.Text, nullable=False),
    sa.Column("budget_trials", _Id),
    sa.Column("budget_seconds", sa.Double),
    sa.Column("budget_patience", _Id),
    sa.Column("started", sa.Double, nullable=False),
    sa.Column("seconds", sa.Double, nullable=False),
    sa.Column("machine", sa.Text, nullable=False),
    sa.Column("codegen", sa.Text, nullable=False),
)

records = sa.Table(
    "tilesmith_records",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("task_id", _Id, sa.ForeignKey("tilesmith_tasks.id"), nullable=False),
    sa.Column("identity", sa.Text, nullable=False),
    sa.Column("candidate", sa.Text, nullable=False),
    sa.Column("trace", sa.Text, nullable=False),
    sa.Column("samples", sa.Text, nullable=False),
    sa.Column("cost", sa.Double),
    sa.Column("standing", sa.Integer, nullable=False),
    sa.Column("failure", sa.Text),
    sa.Column("failure_text", sa.Text, nullable=False),
    sa.Column("contended", sa.Boolean, nullable=False),
    sa.Column("confirmed", sa.Boolean, nullable=False),
    sa.Column("build_seconds", sa.Double, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("versions", sa.Text, nullable=False),
    sa.Column("reference_samples", sa.Text, nullable=False),
    sa.Column("normal_cost", sa.Double),
    # Null for records of older versions, and for those that were not made by a tuning run.
    sa.Column("run", sa.Text, sa.ForeignKey("tilesmith_runs.key")),
    sa.Column("run_seconds", sa.Double),
    sa.Column("trial", sa.Integer),
    sa.Index("tilesmith_records_candidate", "task_id", "candidate", "id"),
    sa.Index("tilesmith_records_best", "task_id", "standing", "normal_cost", "id"),
    sa.Index("tilesmith_records_of", "task_id", "id"),
    # The time comes first, so that new rows go to the end of the index.
    sa.Index("tilesmith_records_once", "at", "identity", unique=True),
)

state = sa.Table(
    "tilesmith_state",
    metadata,
    sa.Column("task_id", _Id, sa.ForeignKey("tilesmith_tasks.id"), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
)


def _to_2(c: sa.Connection) -> None:
    """Adds the versions that made a record, and the states of searches."""
    c.execute(
        sa.text("ALTER TABLE tilesmith_records ADD COLUMN versions TEXT NOT NULL DEFAULT '{}'")
    )
    # Stated again here: the definition above is the current one, which may change.
    then = sa.MetaData()
    sa.Table("tilesmith_tasks", then, sa.Column("id", _Id, primary_key=True))
    table = sa.Table(
        "tilesmith_state",
        then,
        sa.Column("task_id", _Id, sa.ForeignKey("tilesmith_tasks.id"), primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    table.create(c)


def _to_3(c: sa.Connection) -> None:
    """Adds reference times, and orders records by their normal cost."""
    real = sa.Double().compile(dialect=c.dialect)
    for statement in (
        "ALTER TABLE tilesmith_records ADD COLUMN reference_samples TEXT NOT NULL DEFAULT '[]'",
        f"ALTER TABLE tilesmith_records ADD COLUMN normal_cost {real}",
        "UPDATE tilesmith_records SET normal_cost = cost",
        "DROP INDEX tilesmith_records_best",
        "CREATE INDEX tilesmith_records_best ON tilesmith_records "
        "(task_id, standing, normal_cost, id)",
    ):
        c.execute(sa.text(statement))


def _to_4(c: sa.Connection) -> None:
    """Standings depend on whether there are references; invalid times get the last one."""
    then = sa.table(
        "tilesmith_records",
        *map(sa.column, ("id", "samples", "reference_samples", "failure")),
        *map(sa.column, ("contended", "confirmed", "cost", "normal_cost", "standing")),
    )
    at, step = 0, 10_000
    while rows := c.execute(
        sa.select(then).where(then.c.id > at).order_by(then.c.id).limit(step)
    ).all():
        values = []
        for r in rows:
            seconds, references = _times(r.samples), _times(r.reference_samples)
            normal = len(seconds) == len(references) > 0
            cost = median(seconds) if seconds else None
            pairs = zip(seconds, references, strict=False)
            costs = [s * (1e-4 / x) for s, x in pairs] if normal else seconds
            timed = cost is not None and r.failure is None
            calm = 0 if r.confirmed else 2
            standing = (4 if r.contended else calm) + (not normal) if timed else 6
            new = {"cost": cost, "normal_cost": median(costs) if costs else None}
            values.append({"row": r.id, "standing": standing, **new})
        names = ("cost", "normal_cost", "standing")
        update = then.update().where(then.c.id == sa.bindparam("row"))
        c.execute(update.values({n: sa.bindparam(n) for n in names}), values)
        at = rows[-1].id


def _to_5(c: sa.Connection) -> None:
    """The key of a task no longer depends on names; the old key becomes the statement key."""
    c.execute(sa.text("ALTER TABLE tilesmith_tasks RENAME COLUMN key TO statement"))
    if c.dialect.name == "postgresql":
        c.execute(
            sa.text(
                "ALTER TABLE tilesmith_tasks RENAME CONSTRAINT tilesmith_tasks_key_key "
                "TO tilesmith_tasks_statement_key"
            )
        )
    c.execute(sa.text("ALTER TABLE tilesmith_tasks ADD COLUMN key TEXT NOT NULL DEFAULT ''"))
    c.execute(sa.text("CREATE INDEX tilesmith_tasks_by_key ON tilesmith_tasks (key, id)"))
    names = ("id", "func", "target", "codegen", "statement", "key")
    then = sa.table("tilesmith_tasks", *map(sa.column, names))
    for r in c.execute(sa.select(then)).all():
        try:
            key = task_key(function_from_json(r.func), Target.from_json(r.target), r.codegen)
        except TilesmithError:  # it stays, for a version that can read it
            key = r.statement
        c.execute(then.update().where(then.c.id == r.id).values(key=key))


def _to_6(c: sa.Connection) -> None:
    """Records refer to their tuning run; an index finds them by candidate."""
    then = sa.MetaData()
    budget = (("trials", _Id), ("seconds", sa.Double), ("patience", _Id))
    table = sa.Table(
        "tilesmith_runs",
        then,
        sa.Column("key", sa.Text, primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("strategy", "settings", "seed")),
        *(sa.Column(f"budget_{name}", kind) for name, kind in budget),
        *(sa.Column(name, sa.Double, nullable=False) for name in ("started", "seconds")),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("machine", "codegen")),
    )
    table.create(c)
    for statement in (
        "ALTER TABLE tilesmith_records ADD COLUMN run TEXT REFERENCES tilesmith_runs (key)",
        "ALTER TABLE tilesmith_records ADD COLUMN run_seconds "
        f"{sa.Double().compile(dialect=c.dialect)}",
        "ALTER TABLE tilesmith_records ADD COLUMN trial INTEGER",
        "CREATE INDEX tilesmith_records_candidate ON tilesmith_records (task_id, candidate, id)",
    ):
        c.execute(sa.text(statement))


def _times(text: str) -> list[float]:
    """The samples in seconds; empty if one of them is invalid."""
    samples = json.loads(text)
    return samples if all(0 < s < math.inf for s in samples) else []


# MIGRATIONS[k] converts version k + 1 to version k + 2.
MIGRATIONS: tuple[Callable[[sa.Connection], None], ...] = (_to_2, _to_3, _to_4, _to_5, _to_6)
VERSION = len(MIGRATIONS) + 1


def version_of(c: sa.Connection, place: str) -> int:
    """The schema version; 0 for an empty database."""
    if not sa.inspect(c).has_table(schema.name):
        return 0
    version = c.execute(sa.select(schema.c.version)).scalar()
    if version is None:
        return 0
    if not isinstance(version, int) or version < 1:
        raise RecordsError(
            f"{place}: this file is damaged. Restore a copy of it, or import an export into a new "
            f"one (its schema version is {version!r})"
        )
    return version


def newer(place: str, have: int) -> RecordsError:
    return RecordsError(
        f"{place} has schema version {have}; this tilesmith knows versions up to {VERSION}: "
        "open it with a newer one"
    )


def prepare(c: sa.Connection, place: str) -> None:
    """Creates or migrates the tables. The caller's transaction excludes other writers, so a process
    that is killed here leaves the database as it was.
    """
    have = version_of(c, place)
    if have > VERSION:  # another process has migrated it in the meantime
        raise newer(place, have)
    if have == 0:
        metadata.create_all(c)
        c.execute(schema.insert().values(version=VERSION))
    elif have < VERSION:
        for migrate in MIGRATIONS[have - 1 :]:
            migrate(c)
        c.execute(schema.update().values(version=VERSION))
