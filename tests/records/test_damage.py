"""Damaged files, and lines of strangers: an error that names the file, or what is whole of it.
`damage.py` and `strange_lines.py` run for longer.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from damage import FIRST, SECOND, damages, defects, make
from strange_lines import defect, good_lines, nested, strange

import tilesmith as ts
from tilesmith.records.networks import network_uses
from tilesmith.records.sql import SqlDatabase

# Operations that are left to `damage.py`, and those that a single wrong value does not concern.
SLOW = {"report", "exchange", "show records", "show runs", "import", "merge into"}
WRITES = {"open", "count", "add", "save_state", "prune failures", "prune outdated"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("whole") / "whole.db"
    make(file)
    return file


def test_the_whole_file_has_no_defects(whole: Path, tmp_path: Path) -> None:
    file = tmp_path / "copy.db"
    file.write_bytes(whole.read_bytes())
    assert [*defects(file, tmp_path)] == []


@pytest.mark.parametrize("seed", range(3))
def test_what_is_damaged_at_random_is_named(whole: Path, tmp_path: Path, seed: int) -> None:
    file = tmp_path / "damaged.db"
    for what, data in islice(damages(whole.read_bytes(), random.Random(seed)), 3):
        file.write_bytes(data)
        assert [(what, *d) for d in defects(file, tmp_path, SLOW)] == []


def changed(whole: Path, file: Path, *statements: str) -> SqlDatabase:
    file.write_bytes(whole.read_bytes())
    with closing(sqlite3.connect(file)) as c:
        c.execute("PRAGMA ignore_check_constraints = ON")
        for s in statements:
            assert c.execute(s).rowcount > 0
        c.commit()
    return ts.open_database(file)


RECORDS = [
    "trace = x'ff00'", "trace = 7", "trace = CAST(x'7bff7d' AS TEXT)", "samples = 'null'",
    "samples = '[[1]]'", "samples = 3", "samples = '[1e999]'", "at = 'soon'", "versions = '[]'",
    "build_seconds = x''", "standing = 'best'", "failure = 4", "candidate = 0.5",
    "identity = CAST(x'ff' AS TEXT)", "task_id = 99", "task_id = 'search'", "contended = 'yes'",
    "reference_samples = '{}'", "normal_cost = 'little'", "trial = 'first'",
]  # fmt: skip


@pytest.mark.turns(4)
@pytest.mark.parametrize("change", RECORDS)
@pytest.mark.filterwarnings("ignore:.*1 records cannot be read")
def test_a_damaged_record_does_not_hide_the_others(
    whole: Path, tmp_path: Path, change: str
) -> None:
    file = tmp_path / "a.db"
    with changed(whole, file, f"UPDATE tilesmith_records SET {change} WHERE id = 4") as db:
        assert db.count() == 32
        assert len(db.of(FIRST)) >= 21
        assert len(db.of(SECOND)) == 10
        assert db.unread() <= 1
        assert db.best(FIRST) is not None
        assert len(db.tasks()) == 2
        assert len(db.runs(FIRST)) == 2
        with ts.open_database(":memory:") as other:
            assert other.merge(db) >= 31
    assert [*defects(file, tmp_path, SLOW | WRITES)] == []


OTHERS = [
    ("tasks", "func = x'00'"), ("tasks", "func = '[]'"), ("tasks", "target = CAST(x'ff' AS TEXT)"),
    ("tasks", "name = 3"), ("tasks", "codegen = 0.5"), ("tasks", "fingerprint = 1"),
    ("runs", "seed = 'x'"), ("runs", "seed = ''"), ("runs", "started = 'then'"),
    ("runs", "key = CAST(x'ff' AS TEXT)"), ("runs", "seconds = x'00'"), ("runs", "machine = 1"),
    ("runs", "budget_trials = 'many'"),
    ("state", "data = 'text'"), ("state", "data = 1 << 60"), ("state", "data = '[{}]'"),
    ("state", "data = x'ff'"), ("state", "data = x'" + b"[".hex() * 5000 + "'"),
    ("state", "data = x'" + b'[{"network":1e999,"weight":1e999}]'.hex() + "'"),
]  # fmt: skip


@pytest.mark.turns(4)
@pytest.mark.parametrize(("table", "change"), OTHERS, ids=lambda x: x[:40])
def test_so_do_damaged_rows_of_other_tables(
    whole: Path, tmp_path: Path, table: str, change: str
) -> None:
    file = tmp_path / "a.db"
    which = "task_id = 2" if table == "state" else "rowid = 2"
    with changed(whole, file, f"UPDATE tilesmith_{table} SET {change} WHERE {which}") as db:
        assert len(db.of(FIRST)) == 22
        assert db.best(FIRST) is not None
        assert len(network_uses(db, FIRST)) == 1
        assert isinstance(network_uses(db, SECOND), tuple)
    assert [*defects(file, tmp_path, SLOW | WRITES)] == []


def test_what_is_left_out_is_told(whole: Path, tmp_path: Path) -> None:
    change = "UPDATE tilesmith_records SET samples = x'00' WHERE id < 4"
    with changed(whole, tmp_path / "a.db", change) as db:
        with pytest.warns(UserWarning, match=r"a.db is damaged: 3 records .* were left out"):
            assert db.export(tmp_path / "out.jsonl") == 29
        assert db.count() == 32  # they stay


def test_a_file_whose_list_of_tables_is_lost_is_not_filled_anew(
    whole: Path, tmp_path: Path
) -> None:
    data = bytearray(whole.read_bytes())
    data[103:105] = bytes(2)  # the number of entries of the first page
    data[100] = 13  # which is a leaf
    file = tmp_path / "lost.db"
    file.write_bytes(data)
    with pytest.raises(ts.RecordsError, match=r"lost.db: this file is damaged. Restore a copy"):
        ts.open_database(file)
    assert file.read_bytes() == data


# lines
@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return good_lines(tmp_path_factory.mktemp("good"))


def test_strange_lines_are_records_or_refused(good: list[str], tmp_path: Path) -> None:
    rng = random.Random(1)
    for line in good:
        assert defect(line, tmp_path) is None
    for _ in range(60):
        line = strange(rng.choice(good), rng)
        assert defect(line, tmp_path) is None, line


def power(depth: int) -> object:
    """A small text that stands for a polynomial of 3 ** 2 ** depth terms."""
    e: object = [[1, "i"], [1, "j"], [1]]
    for _ in range(depth):
        e = [[1, ["//", e, 1], ["//", e, 1]]]
    return e


def long_chain(line: dict[str, Any]) -> None:
    values = line["func"]["values"]
    values += [["neg", len(values) + k - 1, "float32"] for k in range(20_000)]


def surrogate_key(line: dict[str, Any]) -> None:
    line["run"]["key"] = "a\ud800"


def surrogate_name(line: dict[str, Any]) -> None:
    line["func"]["name"] = "a\ud800"


def nul_name(line: dict[str, Any]) -> None:
    line["func"]["name"] = "a\0b"


def polynomial(line: dict[str, Any]) -> None:
    line["func"]["values"][0][2][0] = power(6)


def deep(line: dict[str, Any]) -> None:
    line["func"]["values"][0][2][0] = nested(800)


def many_steps(line: dict[str, Any]) -> None:
    line["trace"]["steps"] *= 2000


def many_samples(line: dict[str, Any]) -> None:
    line["seconds"] = line["references"] = [1e-3] * 200_000


@pytest.mark.parametrize(
    "change",
    [long_chain, surrogate_key, surrogate_name, nul_name, polynomial, deep, many_steps,
     many_samples],
)  # fmt: skip
def test_lines_that_would_take_long_or_cannot_be_stored_are_refused(
    good: list[str], tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    line = json.loads(good[0])
    change(line)
    (tmp_path / "bad.jsonl").write_text(f"{json.dumps(line)}\n{good[1]}\n")
    with ts.open_database(":memory:") as db:
        done = db.import_(tmp_path / "bad.jsonl")
    assert (done.added, done.refused) == (1, 1)
    assert "bad.jsonl, line 1 is not a record: " in done.reasons[0]
    assert len(done.reasons[0]) < 1000
