"""`tilesmith bench` as a person types it; no figure is looked at, only that all parts are there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import run
from tilesmith_contest import bench as bench_module
from tilesmith_contest.rows import Row


def test_one_operator_for_real(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows, db = tmp_path / "rows.json", tmp_path / "t.db"
    words = ["bench", "matmul", "32", "32", "32", "--threads", "1", "--against", "numpy"]
    words += ["--db", str(db), "--json", str(rows), "--seconds", "1"]
    status, out, err = run(capsys, *words)
    assert status == 0, err
    (row,) = json.loads(rows.read_text())
    assert row["name"] == "GMM 32,32,32, 1 thread"
    assert row["peer"] == "numpy"
    assert row["trials"] > 0
    assert row["ratio"] > 0
    assert "geometric mean all, 1 thread" in out
    # Done already: nothing is measured, the table is the same.
    again = run(capsys, *words)
    assert again[1] == out
    assert again[2] == ""
    # Without the row but with the database: nothing is left to tune.
    rows.unlink()
    run(capsys, *words)
    (second,) = json.loads(rows.read_text())
    assert (second["trials"], second["tuning_seconds"]) == (row["trials"], row["tuning_seconds"])


def test_the_suite_saves_each_case_goes_on_and_writes_the_page(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fake(case, contestants, target, database, seconds) -> Row:  # type: ignore[no-untyped-def]
        asked.append(case.name(target.num_cores))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return Row(
            asked[-1], 1.0, "us", "torch", 2.0, 2.0, 0.1, case.op, "1", threads=target.num_cores,
            machine=bench_module.machine_of(target),
        )  # fmt: skip

    monkeypatch.setattr(bench_module, "compare", fake)
    monkeypatch.setattr(bench_module, "require_cores", lambda *_: None)  # on any machine
    rows, page = tmp_path / "rows.json", tmp_path / "page.md"
    words = ["bench", "suite", "--ops", "GMM,nrm", "--shapes", "1,2", "--threads", "1,2"]
    words += ["--against", "", "--json", str(rows), "--page", str(page)]
    status, _, err = run(capsys, *words)
    assert status == 0
    assert "interrupted; what is done is kept" in err
    assert len(json.loads(rows.read_text())) == 2
    status, out, err = run(capsys, *words)
    assert asked[2] == asked[3]  # the one that was interrupted is the next
    assert len(asked) == 2 + 1 + 6
    assert len(set(asked)) == 8
    assert "geometric mean GMM, 2 threads: 2.00" in out
    assert "| GMM | 1 | 1 | 1.0 |" in page.read_text()


def test_a_failed_case_is_said_and_ends_with_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        bench_module, "compare", lambda *_: Row("x", None, error="ours and torch: differ by 3")
    )
    status, out, _ = run(capsys, "bench", "GMM", "4", "4", "4", "--threads", "1", "--against", "")
    assert status == 1
    assert "differ by 3" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("bench nothing 1", "unknown operator 'nothing'; the suite has C1D (conv1d)"),
        ("bench C2D 7 3", "conv2d takes the sizes conv2d H CI CO K S P [N=1]; got 7 3"),
        ("bench suite 3", "the suite has shapes of its own; got 3"),
        ("bench suite --ops C2D,XYZ", "unknown operator 'XYZ'"),
        ("bench suite --threads none", "--threads 'none': write whole numbers from 1, such as 1,2"),
        ("bench suite --against tvm", "unknown peer 'tvm'"),
        ("bench suite --page x.md", "name that file too"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    status, out, err = run(capsys, *words.split())
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err


def rows_of_all_widths() -> list[Row]:
    return [
        Row(
            f"C2D {n}", 123456.7, "us", "onnxruntime NCHW, prepared", 99999.9, 1.25, 0.05, "C2D",
            "224,3,64,7,2,3", threads=64,
            batch=16, tuning_seconds=180.0, near_seconds=20.0, trials=12345, gflops=1234.5,
        )
        for n in range(2)
    ]  # fmt: skip


def test_the_table_fits_80_columns_unless_wide() -> None:
    rows = rows_of_all_widths()
    narrow = bench_module._fitted(rows, 80).splitlines()
    assert max(map(len, narrow)) <= 80
    assert "ratio" in narrow[0]
    assert "1.25" in narrow[1]
    assert len(narrow) == len(bench_module.table(rows).splitlines())
    wide = bench_module._fitted(rows, None).splitlines()
    assert "trials" in wide[0]
    assert "12345" in wide[1]


def test_without_a_library_to_compare_with_it_says_how_to_get_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "installed_peers" if hasattr(bench_module, "installed_peers") else "peers_named"
    monkeypatch.setattr(bench_module, name, lambda names: ([], [f"{n} (gone)" for n in names]))
    monkeypatch.setattr(bench_module, "compare", lambda *_: Row("x", 1.0))
    words = ("bench", "matmul", "8", "8", "8", "--threads", "1", "--seconds", "0")
    status, _, err = run(capsys, *words)
    assert status == 0
    assert "pip install 'tilesmith[peers]'" in err
