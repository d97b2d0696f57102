"""`tilesmith db`: what it says of files that hold more, or less, than records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tilesmith as ts
from tilesmith.cli.main import app
from tilesmith.testing.measurements import measured, task_of

TASK = task_of()


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    try:
        status = app(list(args))
    except SystemExit as e:
        status = int(e.code or 0)
    out, err = capsys.readouterr()
    return int(status or 0), out, err


@pytest.fixture
def db(tmp_path: Path) -> str:
    with ts.open_database(tmp_path / "a.db") as d:
        d.add([measured(TASK, k, (1e-3,)) for k in range(3)])
    return str(tmp_path / "a.db")


def test_an_export_to_a_dash_is_printed(capsys, db, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, _ = run(capsys, "db", "export", db, "-")
    assert status == 0
    assert [json.loads(line)["seconds"] for line in out.splitlines()] == [[1e-3]] * 3
    assert not (tmp_path / "-").exists()


def test_an_import_says_what_it_refused(capsys, db, tmp_path):
    file, other = tmp_path / "out.jsonl", str(tmp_path / "b.db")
    run(capsys, "db", "export", db, str(file))
    lines = file.read_text().splitlines()
    lines[1] = lines[1].replace('"seconds":[0.001]', '"seconds":[0.0]')
    file.write_text("\n".join(lines))
    status, out, err = run(capsys, "db", "import", other, str(file))
    assert status == 1
    assert "2 measurements read" in out
    assert "line 2 is not a record: 0.0 is no number of seconds" in err
    assert "1 lines refused" in err or "1 line refused" in err
    file.write_text("\n".join(lines[:1]))
    status, out, err = run(capsys, "db", "import", other, str(file))
    assert (status, err) == (0, "")
    assert "0 measurements read" in out


def test_stats_and_records_count_what_cannot_be_read(capsys, db, tmp_path):
    file = tmp_path / "out.jsonl"
    run(capsys, "db", "export", db, str(file))
    file.write_text(file.read_text().replace('"vectorize"', '"twist"'))
    run(capsys, "db", "import", db, str(file))
    _, out, _ = run(capsys, "db", "stats", db)
    assert "6 measurements in all" in out
    assert "3 of them cannot be read here" in out
    _, out, _ = run(capsys, "show", "records", "--db", db)
    assert "3 cannot be read here" in out
