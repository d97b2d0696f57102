"""Versions of the schema: old databases are brought up to date, newer ones are left alone."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
import sqlalchemy as sa

import tilesmith as ts
from tilesmith.base.identity import digest
from tilesmith.ir.serialize import function_to_json
from tilesmith.records import schema
from tilesmith.records.connect import make_engine
from tilesmith.task.task import CODEGEN_VERSION, Failure, Moment
from tilesmith.testing.measurements import measured, task_of, tuning_run

TASK = task_of(8)

# The tables of version 1, as they were.
VERSION_1 = """
CREATE TABLE tilesmith_schema (version INTEGER NOT NULL);
CREATE TABLE tilesmith_tasks (
  id {id} NOT NULL PRIMARY KEY, key TEXT NOT NULL UNIQUE, name TEXT NOT NULL, func TEXT NOT NULL,
  target TEXT NOT NULL, fingerprint TEXT NOT NULL, codegen TEXT NOT NULL
);
CREATE TABLE tilesmith_records (
  id {id} NOT NULL PRIMARY KEY, task_id {ref} NOT NULL REFERENCES tilesmith_tasks (id),
  identity TEXT NOT NULL, candidate TEXT NOT NULL, trace TEXT NOT NULL, samples TEXT NOT NULL,
  cost {real}, standing INTEGER NOT NULL, failure TEXT, failure_text TEXT NOT NULL,
  contended BOOLEAN NOT NULL, confirmed BOOLEAN NOT NULL,
  build_seconds {real} NOT NULL, at {real} NOT NULL
);
CREATE INDEX tilesmith_records_best ON tilesmith_records (task_id, standing, cost, id);
CREATE INDEX tilesmith_records_of ON tilesmith_records (task_id, id);
CREATE UNIQUE INDEX tilesmith_records_once ON tilesmith_records (at, identity);
INSERT INTO tilesmith_schema VALUES (1);
"""


def make_version_1(place, measurements):
    """A database as version 1 left it."""
    engine = make_engine(place)
    lite = engine.dialect.name == "sqlite"
    types = {"id": "INTEGER", "ref": "INTEGER", "real": "DOUBLE"}
    if not lite:
        types = {"id": "BIGSERIAL", "ref": "BIGINT", "real": "DOUBLE PRECISION"}
    key = digest(TASK.func.digest, TASK.target.fingerprint, CODEGEN_VERSION)
    with engine.begin() as c:
        for statement in VERSION_1.format(**types).split(";"):
            if statement.strip():
                c.exec_driver_sql(statement)
        c.execute(
            sa.text("INSERT INTO tilesmith_tasks VALUES (1, :k, 'clip8', :f, :t, :p, :g)"),
            {
                "k": key,
                "f": function_to_json(TASK.func),
                "t": TASK.target.to_json(),
                "p": TASK.target.fingerprint,
                "g": CODEGEN_VERSION,
            },
        )
        for k, m in enumerate(measurements):
            failure = m.failure or Failure("", "")
            trace = m.candidate.trace.to_json()
            said = (failure.kind or None, failure.text, m.contended, m.confirmed)
            candidate = digest(key, trace)
            identity = digest(
                candidate, str(list(m.seconds)), repr(said), repr((m.build_seconds, m.when))
            )
            c.execute(
                sa.text(
                    "INSERT INTO tilesmith_records VALUES (:id, 1, :identity, :candidate, :trace, "
                    ":samples, :cost, :standing, :failure, :text, :contended, :confirmed, :b, :at)"
                ),
                {
                    "id": k + 1,
                    "identity": identity,
                    "candidate": candidate,
                    "trace": trace,
                    "samples": str(list(m.seconds)),
                    "cost": m.cost if m.seconds else None,
                    "standing": 3 if m.failure else 1,
                    "failure": failure.kind or None,
                    "text": failure.text,
                    "contended": m.contended,
                    "confirmed": m.confirmed,
                    "b": m.build_seconds,
                    "at": m.when,
                },
            )
        if not lite:
            c.exec_driver_sql("SELECT setval('tilesmith_tasks_id_seq', 1)")
            c.exec_driver_sql(f"SELECT setval('tilesmith_records_id_seq', {len(measurements)})")
    engine.dispose()


def shape(place):
    """What the tables look like."""
    engine = make_engine(place)
    look = sa.inspect(engine)
    out = {}
    for table in sorted(look.get_table_names()):
        columns = [(c["name"], str(c["type"]), c["nullable"]) for c in look.get_columns(table)]
        indexes = [(i["name"], i["column_names"], i["unique"]) for i in look.get_indexes(table)]
        keys = look.get_pk_constraint(table)["constrained_columns"]
        foreign = sorted(f["referred_table"] for f in look.get_foreign_keys(table))
        out[table] = (columns, sorted(indexes, key=str), keys, foreign)
    with engine.connect() as c:
        version = c.execute(sa.text("SELECT version FROM tilesmith_schema")).scalars().all()
    engine.dispose()
    return out, version


OLD = [measured(TASK, 1, (2.0,)), measured(TASK, 2, (), Failure("build", "no"))]


def test_a_database_of_version_1_is_brought_up_to_date(new_place):
    old, new = new_place(), new_place()
    make_version_1(old, OLD)
    with ts.open_database(old) as db:
        assert db.of(TASK) == OLD
        assert db.best(TASK) == OLD[0]
        db.add([measured(TASK, 3, (1.0,))])
        db.save_state(TASK, "search", b"x")
        assert db.count() == 3
    with ts.open_database(old) as db:  # and once is enough
        assert db.best(TASK) == measured(TASK, 3, (1.0,))
        assert db.load_state(TASK, "search") == b"x"
    ts.open_database(new).close()
    assert shape(old) == shape(new)
    assert shape(new)[1] == [schema.VERSION]


def make_version(number, place, measurements, *changes):
    """A database as that version left it, then changed by SQL."""
    make_version_1(place, measurements)
    engine = make_engine(place)
    with engine.begin() as c:
        for migrate in schema.MIGRATIONS[: number - 1]:
            migrate(c)
        c.execute(sa.text("UPDATE tilesmith_schema SET version = :v"), {"v": number})
        for change in changes:
            c.execute(sa.text(change))
    engine.dispose()


def test_standings_of_version_3_tell_scales_apart(new_place):
    place = new_place()
    every = [measured(TASK, k, (float(k),)) for k in range(1, 9)]
    row = "UPDATE tilesmith_records SET {} WHERE id = {}"
    make_version(
        3, place, every,
        # a time with references is not compared with those that have none
        row.format("reference_samples = '[0.001]', normal_cost = 0.3", 3),
        row.format("contended = '1', standing = 2", 4),
        row.format("samples = '[0.0]', cost = 0, normal_cost = 0", 5),
        row.format("samples = '[-1.0]', cost = -1, normal_cost = -1", 6),
        row.format("samples = '[NaN]'", 7),
        row.format("samples = '[0.5, 0.5]', reference_samples = '[0.1]', cost = 0.5", 8),
    )  # fmt: skip
    with ts.open_database(place) as db:
        best = db.best(TASK)
        assert best is not None
        assert (best.seconds, best.references) == ((3.0,), (0.001,))
        assert db.tasks()[0].best_seconds == 3.0
        db.add([replace(measured(TASK, 20, (2.0,)), references=(0.001,))])
        assert db.best(TASK).seconds == (2.0,)
    engine = make_engine(place)
    with engine.connect() as c:
        found = c.execute(
            sa.text("SELECT standing, cost, normal_cost FROM tilesmith_records ORDER BY id")
        ).all()
    engine.dispose()
    assert [r[0] for r in found] == [3, 3, 2, 5, 6, 6, 6, 3, 2]
    assert [r[1] for r in found] == [1, 2, 3, 4, None, None, None, 0.5, 2]
    assert [r[2] for r in found] == pytest.approx([1, 2, 0.3, 4, None, None, None, 0.5, 0.2])


def test_records_of_version_4_are_found_under_other_names(new_place):
    place, new = new_place(), new_place()
    make_version(4, place, OLD)
    other = task_of(8, names=("in", "out", "a", "b", "named_otherwise"))
    with ts.open_database(place) as db:
        assert db.of(TASK) == OLD
        assert [m.seconds for m in db.of(other)] == [m.seconds for m in OLD]
        assert db.best(other).candidate.trace.apply(other.func)
        assert [t.key for t in db.tasks()] == [TASK.key] == [other.key]
        db.add(OLD)  # they are known by the same identity as before
        assert db.count() == len(OLD)
    ts.open_database(new).close()
    assert shape(place) == shape(new)


def test_records_of_version_5_belong_to_no_run(new_place):
    place = new_place()
    make_version(5, place, OLD)
    with ts.open_database(place) as db:
        assert db.of(TASK) == OLD
        assert [m.moment for m in db.of(TASK)] == [None] * len(OLD)
        assert db.runs(TASK) == []
        made = replace(measured(TASK, 5, (1.0,)), moment=Moment(tuning_run(), 1.5, 1))
        db.add([made])
        (run,) = db.runs(TASK)
        assert (run.run, run.measurements) == (tuning_run(), (made,))


def test_a_task_that_cannot_be_read_is_migrated_as_it_is(new_place):
    place = new_place()
    make_version(3, place, OLD, "UPDATE tilesmith_tasks SET func = 'of tomorrow'")
    with ts.open_database(place) as db:
        assert db.count() == 2
        assert db.unread() == 2
        assert db.tasks() == []
        assert db.of(TASK) == []
        db.add(OLD)  # it has the same statement, so they are there
        assert db.count() == 2


def test_a_migration_that_fails_changes_nothing(new_place, monkeypatch):
    place = new_place()
    make_version_1(place, OLD)
    before = shape(place)

    with monkeypatch.context() as m:
        original = schema._to_2

        def stop(c):
            original(c)
            raise RuntimeError("the power went")

        m.setattr(schema, "MIGRATIONS", (stop,))
        with pytest.raises(RuntimeError, match="the power went"):
            ts.open_database(place)
    assert shape(place) == before
    with ts.open_database(place) as db:
        assert db.of(TASK) == OLD


def test_a_newer_database_is_left_alone(new_place):
    place = new_place()
    with ts.open_database(place) as db:
        db.add(OLD)
    engine = make_engine(place)
    with engine.begin() as c:
        c.exec_driver_sql("UPDATE tilesmith_schema SET version = 99")
    before = shape(place)
    with pytest.raises(ts.RecordsError, match=r"has schema version 99.* newer"):
        ts.open_database(place)
    assert shape(place) == before
    engine.dispose()


def test_every_version_has_a_way_to_today():
    assert len(schema.MIGRATIONS) == schema.VERSION - 1


@pytest.mark.parametrize("wal", [False, True])
def test_another_programs_file_is_left_alone(tmp_path, wal):
    file = tmp_path / "theirs.db"
    with closing(sqlite3.connect(file)) as theirs:
        if wal:
            theirs.execute("PRAGMA journal_mode = WAL")
        theirs.execute("CREATE TABLE bookmarks (x)")
        theirs.execute("INSERT INTO bookmarks VALUES (7)")
        theirs.execute("CREATE VIEW tilesmith_schema AS SELECT 6 AS version")
        theirs.commit()
    before = file.read_bytes()
    says = r"theirs.db is a database of another program, with the tables 'bookmarks'; name a new"
    for _ in range(2):
        with pytest.raises(ts.RecordsError, match=says):
            ts.open_database(file)
    assert file.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["theirs.db"]
    file.chmod(0o444)
    with pytest.raises(ts.RecordsError, match=r"theirs.db"):
        ts.open_database(file)


def test_tables_beside_ours_are_no_obstacle(tmp_path):
    """Such as those of a user's own notes, which an earlier version let be there first."""
    with ts.open_database(tmp_path / "a.db") as db:
        db.add(OLD)
    with closing(sqlite3.connect(tmp_path / "a.db")) as c:
        c.execute("CREATE TABLE notes (x)")
        c.commit()
    with ts.open_database(tmp_path / "a.db") as db:
        assert db.of(TASK) == OLD


@pytest.mark.parametrize("emptied", [False, True])
def test_an_empty_file_of_sqlite_becomes_a_database(tmp_path, emptied):
    file = tmp_path / "new.db"
    with closing(sqlite3.connect(file)) as c:
        c.execute("PRAGMA auto_vacuum = INCREMENTAL")
        c.execute("CREATE TABLE t (x)")
        c.executemany("INSERT INTO t VALUES (?)", [("x" * 5000,)] * (20 if emptied else 0))
        c.commit()
        c.execute("DROP TABLE t")
        c.commit()
    with ts.open_database(file) as db:
        db.add(OLD)
        assert db.of(TASK) == OLD


@pytest.mark.parametrize("version", ["'six'", "-1", "x'00'", "0.5"])
def test_a_damaged_version_is_named(tmp_path, version):
    file = tmp_path / "a.db"
    ts.open_database(file).close()
    with closing(sqlite3.connect(file)) as c:
        c.execute(f"UPDATE tilesmith_schema SET version = {version}")
        c.commit()
    with pytest.raises(ts.RecordsError, match=r"a.db: this file is damaged.*schema version is"):
        ts.open_database(file)
