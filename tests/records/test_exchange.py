"""Records that move: merge, export, import, prune, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import tilesmith as ts
from tilesmith.task.task import CODEGEN_VERSION, Failure
from tilesmith.testing.databases import measured, task_of

ONE, OTHER = task_of(8), task_of(9)
EVERY = [
    measured(ONE, 0, (0.1, 1 / 3, 5e-324)),
    measured(OTHER, 1, (), Failure("wrong", "größer 😀 than\n'; --")),
    measured(ONE, 2, (2.0,), contended=True),
    measured(ONE, 3, (0.2,), confirmed=True),
]


@pytest.fixture
def full(new_place):
    with ts.open_database(new_place()) as db:
        db.add(EVERY)
        yield db


@pytest.fixture
def empty(new_place):
    with ts.open_database(new_place()) as db:
        yield db


def contents(db):
    return db.of(ONE), db.of(OTHER)


def test_merge_takes_what_is_missing(full, empty):
    own = measured(OTHER, 9, (7.0,))
    empty.add([EVERY[2], own])
    assert empty.merge(full) == 3
    assert empty.of(ONE) == [EVERY[2], EVERY[0], EVERY[3]]
    assert empty.of(OTHER) == [own, EVERY[1]]
    assert empty.best(ONE) == EVERY[3]
    assert empty.merge(full) == 0
    assert full.merge(empty) == 1
    assert full.merge(full) == 0
    assert full.count() == empty.count() == 5


def test_merge_from_another_kind_of_database(full, tmp_path):
    with ts.open_database(tmp_path / "mine.db") as mine, ts.open_database(":memory:") as memory:
        assert mine.merge(full) == 4
        assert memory.merge(mine) == 4
        assert full.merge(memory) == 0
        assert contents(memory) == contents(full)


def test_more_than_one_batch_is_merged_in_order(full, empty):
    many = [measured(ONE, 100 + k) for k in range(2500)]
    full.add(many)
    assert empty.merge(full) == 2504
    assert empty.of(ONE) == full.of(ONE)


def test_export_and_import_give_the_same_records(full, empty, tmp_path):
    file = tmp_path / "out.jsonl"
    assert full.export(file) == 4
    assert empty.import_(file) == 4
    assert contents(empty) == contents(full)
    assert [m.candidate.key for m in empty.of(ONE)] == [m.candidate.key for m in full.of(ONE)]
    assert [t.key for t in empty.tasks()] == [t.key for t in full.tasks()]
    assert empty.import_(file) == 0
    assert full.import_(file) == 0
    again = tmp_path / "again.jsonl"
    empty.export(again)
    assert again.read_text() == file.read_text()
    names = [json.loads(line)["func"]["name"] for line in file.read_text().splitlines()]
    assert names == ["clip8", "clip9", "clip8", "clip8"]  # oldest first, whatever the task
    assert sorted(p.name for p in tmp_path.glob("*.jsonl*")) == ["again.jsonl", "out.jsonl"]


def test_a_line_says_all(full, tmp_path):
    full.export(tmp_path / "out.jsonl")
    line = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[1])
    assert ts.Target.from_json(json.dumps(line["target"])) == OTHER.target
    assert line["func"]["name"] == "clip9"
    assert ts.Trace.from_json(json.dumps(line["trace"])) == EVERY[1].candidate.trace
    assert line["failure"] == ["wrong", "größer 😀 than\n'; --"]
    assert line["codegen"] == CODEGEN_VERSION
    assert {"python", "llvmlite"} <= set(line["versions"])
    assert line["when"] == EVERY[1].when


def test_a_users_primitive_needs_no_class_to_travel(full, empty, tmp_path):
    file = tmp_path / "out.jsonl"
    full.export(file)
    text = file.read_text().replace('["vectorize"', '["twist"')
    file.write_text(text)
    assert empty.import_(file) == 4
    assert empty.count() == 4
    assert (empty.of(ONE), empty.unread(ONE), empty.unread()) == ([], 3, 4)
    again = tmp_path / "again.jsonl"
    assert empty.export(again) == 4
    assert again.read_text() == file.read_text()
    assert full.merge(empty) == 4
    assert (full.count(), full.unread()) == (8, 4)
    assert full.of(ONE) == [EVERY[0], *EVERY[2:]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 7}, "version 7"),
        ({"func": {"version": 1}}, "'values' is missing"),
        ({"target": {}}, "not the text of a target"),
        ({"trace": []}, "line 2"),
        ({"trace": {"steps": 3}}, "no steps"),
        ({"seconds": ["1"]}, "no number of seconds"),
        ({"failure": "wrong"}, "line 2"),
        ({"failure": [1, 2]}, "no failure"),
        ({"codegen": 1}, "codegen is 1"),
        ({"when": None}, "no number of seconds"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path, change, says):
    file = tmp_path / "bad.jsonl"
    with ts.open_database(":memory:") as db:
        db.add(EVERY)
        db.export(file)
        lines = file.read_text().splitlines()
        lines[1] = json.dumps(json.loads(lines[1]) | change)
        file.write_text("\n".join(lines))
        with pytest.raises(ts.RecordsError, match=says) as e:
            db.import_(file)
        assert "bad.jsonl, line 2" in str(e.value)


def test_a_torn_line_and_no_file_are_named(tmp_path):
    file = tmp_path / "torn.jsonl"
    with ts.open_database(":memory:") as db:
        db.add(EVERY)
        db.export(file)
        file.write_text(file.read_text()[:-20])
        with pytest.raises(ts.RecordsError, match=r"torn.jsonl, line 4 is not a record"):
            db.import_(file)
        with pytest.raises(ts.RecordsError, match=r"none.jsonl cannot be read"):
            db.import_(tmp_path / "none.jsonl")
        with pytest.raises(ts.RecordsError, match=r"out.jsonl cannot be written"):
            db.export(tmp_path / "no" / "out.jsonl")


def test_an_export_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "out.jsonl"
    with ts.open_database(tmp_path / "a.db") as db:
        db.add(EVERY)
        db.export(file)
        before = file.read_text()
        db.add([measured(ONE, 50)])

        def fail(_):
            raise OSError("no space left")

        rows = db._rows()
        with monkeypatch.context() as m:
            m.setattr(db, "_rows", lambda: (fail(r) if k else r for k, r in enumerate(rows)))
            with pytest.raises(ts.RecordsError, match="no space left"):
                db.export(file)
    assert file.read_text() == before
    assert not file.with_name("out.jsonl.part").exists()


def test_prune_keeps_the_best_of_each_task(full):
    full.add([measured(OTHER, 10 + k, (9.0 - k,)) for k in range(5)])
    assert full.prune(keep=2) == 4  # one of ONE, three of OTHER
    assert full.of(ONE) == [EVERY[0], EVERY[3]]  # the contended one comes last, so it goes
    assert full.of(OTHER) == [EVERY[1], *(measured(OTHER, 10 + k, (9.0 - k,)) for k in (3, 4))]
    assert full.best(OTHER) == measured(OTHER, 14, (5.0,))
    assert full.prune(keep=2) == 0


def test_prune_keeps_what_it_cannot_read(full, tmp_path):
    """Nobody here knows what it is worth, so that it counts for nothing and stays."""
    file = tmp_path / "out.jsonl"
    full.export(file)
    text = (
        file.read_text()
        .replace('["vectorize"', '["twist"')
        .replace('"seconds":[0.', '"seconds":[0.0')
    )
    file.write_text(text)
    full.import_(file)
    assert full.prune(keep=1) == 2  # of three that can be read
    assert full.of(ONE) == [EVERY[3]]
    assert (full.unread(ONE), full.unread()) == (3, 4)
    assert full.prune(keep=1) == 0


def test_candidates_of_an_older_code_generator_are_no_timings(full, tmp_path):
    file, old = tmp_path / "out.jsonl", tmp_path / "old.jsonl"
    full.add([measured(ONE, 7, (0.3,)), replace(measured(ONE, 7, (0.05,)), when=1.8e9)])
    full.export(file)
    full.prune(failures=True)
    now = f'"codegen":"{CODEGEN_VERSION}"'
    old.write_text(file.read_text().replace(now, '"codegen":"0.9"'))
    assert full.earlier(ONE) == []
    before = full.of(ONE)
    with ts.open_database(":memory:") as db:
        db.import_(old)
        assert db.best(ONE) is None
        assert db.of(ONE) == []
        # confirmed, then the fastest, then the contended one; each once, and never a failure
        assert db.earlier(ONE) == [
            EVERY[3].candidate,
            measured(ONE, 7).candidate,
            *(EVERY[k].candidate for k in (0, 2)),
        ]
        assert db.earlier(OTHER) == []
        other = task_of(8, names=("in", "out", "a", "b", "named_otherwise"))
        assert [c.task for c in db.earlier(other)] == [other] * 4
        assert db.earlier(task_of(8, "zen3")) == []
        db.add(before)
        assert db.of(ONE) == before
        assert len(db.earlier(ONE)) == 4


def test_prune_drops_failures_if_asked_to(full):
    assert full.prune() == 0
    assert full.prune(failures=True) == 1
    assert full.of(OTHER) == []
    assert full.of(ONE) == [EVERY[0], *EVERY[2:]]


def test_prune_drops_what_an_older_code_generator_made(full, tmp_path):
    full.save_state(ONE, "search", b"kept")
    full.export(tmp_path / "out.jsonl")
    text = (tmp_path / "out.jsonl").read_text()
    assert f'"codegen":"{CODEGEN_VERSION}"' in text
    (tmp_path / "old.jsonl").write_text(
        text.replace(f'"codegen":"{CODEGEN_VERSION}"', '"codegen":"0"')
    )
    assert full.import_(tmp_path / "old.jsonl") == 4
    assert (full.count(), len(full.tasks())) == (8, 4)
    assert contents(full) == (full.of(ONE), [EVERY[1]])  # other keys: they answer for nothing
    assert [t.codegen for t in full.tasks()] == [CODEGEN_VERSION] * 2 + ["0"] * 2
    assert len({t.key for t in full.tasks()}) == 4
    assert full.prune(outdated=True) == 4
    assert [t.key for t in full.tasks()] == [ONE.key, OTHER.key]
    assert full.of(ONE) == [EVERY[0], *EVERY[2:]]
    assert full.load_state(ONE, "search") == b"kept"


def test_prune_refuses_to_keep_nothing(full):
    with pytest.raises(ts.RecordsError, match="keep is 0"):
        full.prune(keep=0)


def test_a_pruned_file_is_smaller(tmp_path):
    file = tmp_path / "a.db"
    with ts.open_database(file) as db:
        db.add([measured(ONE, k, (), Failure("build", "x" * 2000)) for k in range(1000)])
    before = file.stat().st_size
    with ts.open_database(file) as db:
        db.add(EVERY[:1])
        assert db.prune(failures=True) == 1000
    assert file.stat().st_size < before / 10


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_compressed_files_say_the_same(full, empty, tmp_path, ending):
    path = tmp_path / f"records.jsonl{ending}"
    assert full.export(path) == 4
    head = path.read_bytes()[:2]
    assert head == {"": b'{"', ".gz": b"\x1f\x8b", ".xz": b"\xfd7"}[ending]
    assert empty.import_(path) == 4
    assert contents(empty) == contents(full)


def test_records_are_read_without_a_database(full, tmp_path):
    path = tmp_path / "records.jsonl.xz"
    full.export(path)
    assert ts.read_records(path) == EVERY


def test_a_record_of_another_machine_keeps_its_target(tmp_path):
    task = ts.Task(ONE.func, ts.Target.named("cortex-a76"))
    path = tmp_path / "records.jsonl.gz"
    with ts.open_database(":memory:") as db:
        db.add([measured(task, 0, (0.1,))])
        db.export(path)
    (m,) = ts.read_records(path)
    assert m.candidate.task.target == task.target
    assert m.candidate.task.key == task.key


def test_a_broken_archive_is_named(full, tmp_path):
    path = tmp_path / "records.jsonl.xz"
    full.export(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ts.RecordsError, match=r"records\.jsonl\.xz cannot be read"):
        ts.read_records(path)
    path.write_bytes(b"no archive")
    with pytest.raises(ts.RecordsError, match=r"records\.jsonl\.xz cannot be read"):
        ts.read_records(path)
