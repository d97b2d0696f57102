"""Records that move: merge, export, import, prune, on SQLite and on PostgreSQL."""

from __future__ import annotations

import io
import json
import random
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

import tilesmith as ts
from tilesmith.records import lines
from tilesmith.task.task import CODEGEN_VERSION, Failure, Moment
from tilesmith.testing.measurements import measured, task_of, tuning_run

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
    assert empty.import_(file).added == 4
    assert contents(empty) == contents(full)
    assert [m.candidate.key for m in empty.of(ONE)] == [m.candidate.key for m in full.of(ONE)]
    assert [t.key for t in empty.tasks()] == [t.key for t in full.tasks()]
    assert empty.import_(file).added == 0
    assert full.import_(file).added == 0
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
    assert empty.import_(file).added == 4
    assert empty.count() == 4
    assert (empty.of(ONE), empty.unread(ONE), empty.unread()) == ([], 3, 4)
    again = tmp_path / "again.jsonl"
    assert empty.export(again) == 4
    assert again.read_text() == file.read_text()
    assert full.merge(empty) == 4
    assert (full.count(), full.unread()) == (8, 4)
    assert full.of(ONE) == [EVERY[0], *EVERY[2:]]


LONG = "x" * 2000
BAD = [
    ({"version": 7}, "version 7"),
    ({"version": None}, "version None"),
    ({"func": {"version": 1}}, "'values' is missing"),
    ({"func": 3}, "not the text of a Function"),
    ({"func": {"version": 9, "values": []}}, "version 9"),
    ({"target": {}}, "not the text of a target"),
    ({"target": ("num_cores", 0)}, "num_cores is 0"),
    ({"target": ("num_cores", True)}, "Target(num_cores=True) is given the bool True"),
    ({"target": ("vector_bits", -128)}, "vector_bits is -128"),
    ({"target": ("l3_nbytes", 1 << 80)}, "l3_nbytes is"),
    ({"target": ("kind", "abacus")}, "kind is 'abacus'"),
    ({"target": ("features", [1])}, "features are"),
    ({"target": ("model", LONG)}, "model has 2000 characters"),
    ({"target": ("unknown", 1)}, "not the text of a target"),
    ({"trace": []}, "no steps"),
    ({"trace": {"steps": 3}}, "no steps"),
    ({"trace": {"steps": []}}, "this is not a trace"),
    ({"trace": {"version": 2, "steps": []}}, "version 2"),
    ({"trace": {"version": 1, "steps": [3]}}, "has the step 3"),
    ({"trace": {"version": 1, "steps": [["split", []]]}}, "has the step"),
    ({"trace": {"version": 1, "steps": [["split", {"tool": "saw"}]]}}, "no field 'tool'"),
    ({"trace": {"version": 1, "steps": [["split", {"loop": "y.i"}]]}}, "factors"),
    ({"trace": {"version": 1, "steps": [["vectorize", {"loop": "z.i"}]]}}, "no loop"),
    ({"trace": {"version": 1, "steps": [["vectorize", {"loop": 7}]]}}, "no loop"),
    ({"trace": {"version": 1, "steps": [["split", {"loop": "y.i", "factors": 7}]]}}, "line 2"),
    ({"trace": {"version": 1, "steps": [["split", {"loop": "y.i", "factors": [0, 8]}]]}}, "by 0"),
    ({"trace": {"version": 1, "steps": [["split", {"loop": "y.i", "factors": [2, 3]}]]}}, "cover"),
    ({"seconds": ["1"]}, "'1' is no number of seconds"),
    ({"seconds": [0.0]}, "0.0 is no number of seconds"),
    ({"seconds": [-1.0]}, "-1.0 is no number of seconds"),
    ({"seconds": [True]}, "True is no number of seconds"),
    ({"seconds": [float("nan")]}, "nan is no number of seconds"),
    ({"seconds": [float("inf")]}, "inf is no number of seconds"),
    ({"seconds": [1e-3, None]}, "None is no number of seconds"),
    ({"seconds": 1e-3}, "seconds are 0.001, not a list"),
    ({"seconds": {"0": 1}}, "not a list"),
    ({"references": [1e-4]}, "3 seconds and 1 references"),
    ({"references": [1e-4, 1e-4, 0.0]}, "0.0 is no number of seconds"),
    ({"references": None}, "references are None"),
    ({"failure": "wrong"}, "'wrong' is no failure"),
    ({"failure": [1, 2]}, "no failure"),
    ({"failure": ["bad luck", ""]}, "no failure; kinds are schedule, build"),
    ({"codegen": 1}, "codegen is 1"),
    ({"codegen": ""}, "codegen is ''"),
    ({"codegen": LONG}, "codegen is 'x"),
    ({"contended": "no"}, "contended is 'no'"),
    ({"confirmed": 1}, "confirmed is 1"),
    ({"build_seconds": -1.0}, "build_seconds is -1.0"),
    ({"build_seconds": float("nan")}, "build_seconds is nan"),
    ({"when": None}, "when is None, which is no number of seconds"),
    ({"when": -5.0}, "when is -5.0"),
    ({"when": 1e300}, "when is 1e"),
    ({"versions": ["python"]}, "versions are"),
    ({"versions": {"python": 3}}, "versions are"),
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    file = tmp_path_factory.mktemp("exported") / "good.jsonl"
    with ts.open_database(":memory:") as db:
        db.add([EVERY[1], EVERY[0], *EVERY[2:]])  # a timed one in the second line
        db.export(file)
    return file.read_text().splitlines()


def changed(line, change):
    data = json.loads(line)
    for name, value in change.items():
        data[name] = data[name] | dict([value]) if isinstance(value, tuple) else value
    return json.dumps(data)


@pytest.mark.parametrize(("change", "says"), BAD, ids=lambda x: str(x)[:50])
def test_a_line_that_is_no_record_is_refused_and_the_others_come_in(
    tmp_path, exported, change, says
):
    file = tmp_path / "bad.jsonl"
    bad = changed(exported[1], change)
    file.write_text("\n".join([exported[0], bad, *exported[2:]]))
    with ts.open_database(":memory:") as db:
        done = db.import_(file)
        assert (done.added, done.present, done.refused) == (3, 0, 1)
        (reason,) = done.reasons
        assert "bad.jsonl, line 2 is not a record: " in reason
        assert says in reason
        assert len(reason) < 1000
        assert db.of(ONE) == EVERY[2:]
        assert db.best(ONE) == EVERY[3]
        assert db.unread() == 0


@pytest.mark.parametrize(
    "name",
    ["version", "func", "target", "codegen", "trace", "seconds", "failure", "contended",
     "confirmed", "build_seconds", "when", "versions"],
)  # fmt: skip
def test_a_line_without_a_field_is_refused(tmp_path, exported, name):
    file = tmp_path / "bad.jsonl"
    data = json.loads(exported[1])
    del data[name]
    file.write_text(json.dumps(data))
    with ts.open_database(":memory:") as db:
        done = db.import_(file)
        assert (done.added, done.refused) == (0, 1)
        assert f"line 1 is not a record: '{name}' is missing" in done.reasons[0]


def absurd(func):
    """Functions that no machine runs, by name."""
    yield "negative", func.replace("[8,4]", "[8,-4]")
    yield "huge", func.replace("[8,4]", f"[8,{1 << 70}]")
    yield "open", func.replace("[8,4]", '[8,"#n"]')
    yield "no such buffer", func.replace('["load","x"', '["load","w"')
    yield "no such value", func.replace('"writes":[["y",["i","j"],', '"writes":[["y",["i","j"],9')
    yield "no outputs", func.replace('"num_outputs":1', '"num_outputs":0')
    yield "no such loop", func.replace('"y.j"]', '"y.k"]')


def test_a_function_that_is_none_is_refused(tmp_path, exported):
    text = json.dumps(json.loads(exported[1])["func"], separators=(",", ":"))
    for what, func in absurd(text):
        assert func != text, what
        file = tmp_path / "bad.jsonl"
        file.write_text(changed(exported[1], {"func": json.loads(func)}))
        with ts.open_database(":memory:") as db:
            done = db.import_(file)
            assert (done.added, done.refused) == (0, 1), what
            assert db.tasks() == []


@pytest.mark.parametrize(
    "line",
    [b"3", b"null", b"[]", b'"text"', b"{", b"\xff\xfe", b"\0", b"[" * 100_000, b"1" * 10_000,
     b'{"a":' * 50_000, b"{}"],
    ids=lambda x: repr(x)[:12],
)  # fmt: skip
def test_a_line_of_anything_else_is_refused(tmp_path, exported, line):
    file = tmp_path / "bad.jsonl"
    file.write_bytes(b"\n".join([exported[0].encode(), line, exported[2].encode()]))
    with ts.open_database(":memory:") as db:
        done = db.import_(file)
        assert (done.added, done.refused) == (2, 1)
        assert "bad.jsonl, line 2 is not a record" in done.reasons[0]


def test_a_very_long_line_is_refused_without_being_held(tmp_path, exported, monkeypatch):
    monkeypatch.setattr(lines, "_LONGEST", 10_000)
    file = tmp_path / "bad.jsonl"
    file.write_text("\n".join([exported[0], "x" * 50_000, "y" * 9_999, *exported[1:]]))
    with ts.open_database(":memory:") as db:
        done = db.import_(file)
    assert (done.added, done.refused) == (4, 2)
    assert "bad.jsonl, line 2 has more than 10000 bytes" in done.reasons[0]
    assert "line 3 is not a record" in done.reasons[1]


def test_lines_twice_and_empty_lines_do_no_harm(tmp_path, exported):
    file = tmp_path / "twice.jsonl"
    file.write_text("\n\n".join([*exported, "", *exported]) + "\r\n")
    with ts.open_database(":memory:") as db:
        done = db.import_(file)
        assert (done.added, done.present, done.refused) == (4, 4, 0)
        assert db.count() == 4


def test_many_bad_lines_are_counted_and_some_are_named(tmp_path, exported):
    file = tmp_path / "bad.jsonl"
    file.write_text("\n".join(["?"] * 3000 + exported))
    with ts.open_database(":memory:") as db:
        done = db.import_(file)
    assert (done.added, done.refused) == (4, 3000)
    assert len(done.reasons) == 20


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_a_torn_archive_gives_what_is_whole(tmp_path, exported, ending):
    file = tmp_path / f"torn.jsonl{ending}"
    with ts.open_database(":memory:") as db:
        rng = random.Random(1)
        every = [
            measured(ONE, k, tuple(rng.random() + 1e-9 for _ in range(50))) for k in range(300)
        ]
        db.add(every)
        db.export(file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with ts.open_database(":memory:") as db:
        done = db.import_(file)
        assert 10 < done.added < 290
        assert done.refused == 1
        assert f"torn.jsonl{ending} cannot be read after line {done.added}" in done.reasons[0]
        assert db.of(ONE) == every[: done.added]


def test_the_rest_of_a_torn_line_and_no_file_are_named(tmp_path, exported):
    file = tmp_path / "torn.jsonl"
    file.write_text("\n".join(exported)[:-20])
    with ts.open_database(":memory:") as db:
        done = db.import_(file)
        assert (done.added, done.refused) == (3, 1)
        assert "torn.jsonl, line 4 is not a record" in done.reasons[0]
        with pytest.raises(ts.RecordsError, match=r"torn.jsonl, line 4 is not a record"):
            ts.read_records(file)
        with pytest.raises(ts.RecordsError, match=r"none.jsonl cannot be read"):
            db.import_(tmp_path / "none.jsonl")
        with pytest.raises(ts.RecordsError, match=r"cannot be read"):
            db.import_(tmp_path)
        with pytest.raises(ts.RecordsError, match=r"out.jsonl cannot be written"):
            db.export(tmp_path / "no" / "out.jsonl")


def test_an_export_to_a_stream(full, tmp_path):
    file, stream = tmp_path / "out.jsonl", io.StringIO()
    full.export(file)
    assert full.export(stream) == 4
    assert stream.getvalue() == file.read_text()


def test_an_export_keeps_even_what_is_damaged(tmp_path):
    file = tmp_path / "out.jsonl"
    with ts.open_database(tmp_path / "a.db") as db:
        db.add(EVERY)
    with closing(sqlite3.connect(tmp_path / "a.db")) as c:
        c.execute("UPDATE tilesmith_records SET trace = 'torn' WHERE id = 1")
        c.commit()
    with ts.open_database(tmp_path / "a.db") as db:
        assert db.unread() == 1
        assert db.export(file) == 4
        assert json.loads(file.read_text().splitlines()[0])["trace"] == "torn"
    with ts.open_database(":memory:") as db:
        assert db.import_(file).refused == 1


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


@pytest.mark.parametrize("pruned", [{"failures": True}, {"keep": 1}, {"keep": 1, "failures": True}])
def test_prune_brings_back_no_candidate_that_failed_since(empty, pruned):
    fast, slow = measured(ONE, 1, (1.0,)), measured(ONE, 2, (2.0,))
    failed = replace(fast, seconds=(), failure=Failure("crash"), when=fast.when + 1)
    empty.add([fast, slow, failed, measured(ONE, 3, (), Failure("build"))])
    assert empty.best(ONE) == slow
    empty.prune(**pruned)
    assert empty.best(ONE) == slow


def test_prune_drops_what_an_older_code_generator_made(full, tmp_path):
    full.save_state(ONE, "search", b"kept")
    full.export(tmp_path / "out.jsonl")
    text = (tmp_path / "out.jsonl").read_text()
    assert f'"codegen":"{CODEGEN_VERSION}"' in text
    (tmp_path / "old.jsonl").write_text(
        text.replace(f'"codegen":"{CODEGEN_VERSION}"', '"codegen":"0"')
    )
    assert full.import_(tmp_path / "old.jsonl").added == 4
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
    assert empty.import_(path).added == 4
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


def made_by_a_run(number=0):
    m = measured(ONE, 7, (1.0,))
    return replace(m, moment=Moment(tuning_run(number=number), 2.5, 3))


def test_a_line_carries_its_run(new_place, tmp_path):
    file = tmp_path / "out.jsonl"
    later = replace(measured(ONE, 8), moment=Moment(tuning_run(), 4.0, 4))
    with ts.open_database(new_place()) as db, ts.open_database(new_place()) as other:
        db.add([made_by_a_run(), later])
        db.prune(keep=1)
        db.export(file)
        other.import_(file)
        assert other.runs(ONE) == db.runs(ONE)
        (run,) = other.runs(ONE)
        assert (run.run, run.seconds, len(run.measurements)) == (tuning_run(), 4.0, 1)
    (m,) = ts.read_records(file)
    assert m.moment is not None
    assert m.moment.run == tuning_run()


@pytest.mark.parametrize(
    ("name", "value"),
    [("key", 5), ("seed", "one"), ("started", -1.0), ("budget_trials", 2.5), ("settings", None),
     ("seconds", "4"), ("budget_seconds", "NaN")],
)  # fmt: skip
def test_a_run_that_is_none_is_refused(tmp_path, name, value):
    file = tmp_path / "out.jsonl"
    with ts.open_database(":memory:") as db:
        db.add([made_by_a_run()])
        db.export(file)
    data = json.loads(file.read_text())
    data["run"][name] = value
    file.write_text(json.dumps(data))
    with ts.open_database(":memory:") as db:
        assert (db.import_(file).refused, db.count()) == (1, 0)


def test_runs_are_merged_and_go_with_their_last_record(new_place):
    with ts.open_database(new_place()) as db, ts.open_database(new_place()) as other:
        db.add([made_by_a_run(), replace(measured(ONE, 1, (5.0,)), moment=made_by_a_run(1).moment)])
        other.merge(db)
        assert [r.run for r in other.runs(ONE)] == [tuning_run(number=1), tuning_run()]
        other.prune(keep=1)
        assert [r.run for r in other.runs(ONE)] == [tuning_run()]
        assert len(db.runs(ONE)) == 2
