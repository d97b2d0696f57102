"""Records that need parts of a user's own, on SQLite and on PostgreSQL: they are stored, moved and
read with these parts, and without them it is said what is missing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

import tilesmith as ts
from tilesmith.records.database import MissingPartsWarning
from tilesmith.schedule.loops import Split
from tilesmith.task.task import CODEGEN_VERSION, Moment
from tilesmith.testing.measurements import measured, task_of, tuning_run

PLAIN = task_of()


@dataclass(frozen=True, slots=True)
class Twist(ts.Step):
    name: ClassVar[str] = "twist"
    loop: str

    def apply(self, func: ts.Function) -> ts.Function:
        return func


@dataclass(frozen=True)
class Careful:
    """It is not asked for kernels here."""

    level: int
    kind: ClassVar[str] = "cpu"

    def compile(
        self, func: ts.Function, target: ts.Target, *, checked: bool = False
    ) -> ts.Artifact:
        raise ts.BuildError("nothing is built")


PARTS = ts.Parts(primitives=(Twist,), backends=(Careful(1),))
OWN = replace(PLAIN, parts=PARTS)
Places = Callable[[], str]


def twisted(task: ts.Task, number: int, seconds: float) -> ts.Measurement:
    trace = ts.Trace((Split("y.i", (None, 2)), Twist(f"y.i.{number % 2}")))
    m = measured(task, number, (seconds,))
    run = replace(tuning_run(number=number), codegen=task.codegen)
    return replace(m, candidate=ts.Candidate(task, trace), moment=Moment(run, 1.0, 1))


RECORDS = [measured(PLAIN, 1, (0.5,)), twisted(OWN, 2, 0.2), twisted(OWN, 3, 0.1)]


def test_records_of_two_back_ends_have_their_own_tasks(new_place: Places) -> None:
    place = new_place()
    with ts.open_database(place) as db:
        db.add(RECORDS)
        assert db.of(OWN) == RECORDS[1:]
        assert db.of(PLAIN) == RECORDS[:1]
        assert db.best(OWN) == RECORDS[2]
        assert db.best(PLAIN) == RECORDS[0]
        assert (db.count(OWN), db.count(PLAIN), db.count()) == (2, 1, 3)
        assert [r.run.codegen for r in db.runs(OWN)] == [OWN.codegen] * 2
        needed = {f"the back end {PARTS.builder('cpu')!r}": 2}
        assert db.missing(PLAIN) == db.missing() == needed
        known = {t.key: t for t in db.tasks()}
        assert known[OWN.key].task.key == PLAIN.key  # it cannot be built with what is known here
    with ts.open_database(place, parts=PARTS) as db:
        assert db.of(PLAIN) == RECORDS[1:]
        assert db.missing() == {}
        assert db.unread() == 0
        assert {t.key: t.task.key for t in db.tasks()} == {k: k for k in (PLAIN.key, OWN.key)}
        changed = replace(PLAIN, parts=ts.Parts(primitives=(Twist,), backends=(Careful(2),)))
        assert db.of(changed) == []
        assert db.best(changed) is None
        assert [c.trace for c in db.earlier(changed)] == [
            m.candidate.trace for m in (RECORDS[2], RECORDS[1])
        ]
        assert {c.task.codegen for c in db.earlier(changed)} == {changed.codegen}


def test_a_missing_primitive_of_the_same_back_end_is_named(new_place: Places) -> None:
    half = replace(PLAIN, parts=ts.Parts(backends=(Careful(1),)))
    with ts.open_database(new_place(), parts=half.parts) as db:
        db.add(RECORDS)
        db.add([measured(half, 7, (0.3,))])
        with pytest.warns(MissingPartsWarning, match="2 records need the primitive 'twist'"):
            best = db.best(PLAIN)
        assert best is not None
        assert best.cost == 0.3
        assert db.missing(PLAIN) == {"the primitive 'twist'": 2}
        assert db.missing() == {"the primitive 'twist'": 2}
        assert db.unread() == 2


def test_they_go_through_files_and_other_databases(new_place: Places, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    with ts.open_database(new_place()) as db, ts.open_database(new_place(), parts=PARTS) as other:
        db.add(RECORDS)
        assert db.export(file) == 3
        done = other.import_(file)
        assert (done.added, done.refused) == (3, 0)
        assert other.of(PLAIN) == RECORDS[1:]
        assert other.of(replace(PLAIN, parts=ts.Parts())) == RECORDS[:1]
        assert other.merge(db) == 0  # they are the same records
    read = ts.read_records(file, PARTS)
    assert read == RECORDS
    assert [m.candidate.task.codegen for m in read] == [CODEGEN_VERSION, OWN.codegen, OWN.codegen]
    with pytest.raises(ts.RecordsError, match="records of the back end 'Careful:"):
        ts.read_records(file)


def test_prune_knows_back_ends_and_parts(new_place: Places) -> None:
    place = new_place()
    with ts.open_database(place) as db:
        db.add(RECORDS)
        assert db.prune(outdated=True) == 0
        assert db.prune(keep=1) == 0  # those that cannot be read stay
    with ts.open_database(place, parts=PARTS) as db:
        assert db.prune(keep=1) == 1
        assert db.of(PLAIN) == RECORDS[2:]
        assert db.count() == 2


def test_a_database_of_before_opens_and_keeps_its_keys(tmp_path: Path) -> None:
    """Nothing in the tables has changed for the built-in back ends."""
    place = tmp_path / "old.db"
    with ts.open_database(place) as db:
        db.add(RECORDS[:1])
    with closing(sqlite3.connect(place)) as c:
        rows = c.execute("SELECT codegen, key, statement FROM tilesmith_tasks").fetchall()
    assert rows == [(CODEGEN_VERSION, PLAIN.key, PLAIN.statement)]
    with ts.open_database(place, parts=ts.Parts(primitives=(Twist,))) as db:
        assert db.of(PLAIN) == RECORDS[:1]
