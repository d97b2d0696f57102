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


def test_diff_of_two_databases(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def product(n: int, name: str) -> ts.Task:
        a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
        func = ts.function([a, b, ts.ops.matmul(a, b, name="C")], name=name)
        return ts.Task(func, ts.cpu(1))

    tasks = {name: product(n, name) for n, name in ((8, "gained"), (12, "lost"), (16, "left"))}
    tasks["new"] = product(20, "new")
    new, old = str(tmp_path / "new.db"), str(tmp_path / "old.db")
    for place, times in (
        (new, {"gained": 1e-6, "lost": 4e-6, "new": 1e-6}),
        (old, {"gained": 2e-6, "lost": 2e-6, "left": 1e-6}),
    ):
        with ts.open_database(place) as d:
            for name, seconds in times.items():
                candidate = ts.Candidate(tasks[name], ts.Trace())
                d.add([ts.Measurement(candidate, (seconds,) * 3, confirmed=True)])
    status, out, _ = run(capsys, "db", "diff", new, old)
    assert status == 0
    assert out.splitlines() == [
        "     DB    OTHER  ratio  task",
        "4.00 us  2.00 us  0.500  lost 12x12, 12x12 -> 12x12 float32",
        "1.00 us  2.00 us  2.000  gained 8x8, 8x8 -> 8x8 float32",
        "2 of 2 tasks have a time in both. Geometric mean: 1.000",
        f"only in {new}: 1 task",
        "  new 20x20, 20x20 -> 20x20 float32",
        f"only in {old}: 1 task",
        "  left 16x16, 16x16 -> 16x16 float32",
    ]
    assert "gained" not in run(capsys, "db", "diff", new, old, "--match", "lost")[1]
