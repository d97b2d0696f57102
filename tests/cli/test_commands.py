"""The commands as a person types them: output on success, one line and status 2 on a mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def tilesmith(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tilesmith", *words],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_tune_records_and_db(tmp_path: Path) -> None:
    db, out = str(tmp_path / "t.db"), tmp_path / "out"
    words = ("matmul", "32", "32", "32", "--cores", "1", "--db", db)
    done = tilesmith("tune", *words, "--trials", "8", "--time", "1m", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "  8 trials in" in done.stdout
    assert (out / "kernel.s").read_text()
    stats = tilesmith("db", "stats", db)
    assert "8 measurements in all" in stats.stdout
    lines = tmp_path / "lines.jsonl"
    assert tilesmith("db", "export", db, str(lines)).returncode == 0
    other = str(tmp_path / "other.db")
    assert "8 measurements read" in tilesmith("db", "import", other, str(lines)).stdout
    assert "0 measurements copied" in tilesmith("db", "merge", other, db).stdout
    assert "measurements deleted" in tilesmith("db", "prune", other, "--keep", "2").stdout


def test_tune_takes_a_python_file(tmp_path: Path) -> None:
    source = (
        "import tilesmith as ts\n"
        "x = ts.placeholder((40,), name='x')\n"
        "y = ts.compute((40,), lambda i: 2 * x[i], name='y')\n"
        "double = ts.function([x, y], name='double')\n"
    )
    file = tmp_path / "mine.py"
    file.write_text(source)
    done = tilesmith("tune", f"{file}:double", "--trials", "2", "--cores", "1", "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("double:")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tune", "matmul", "32"), "matmul"),
        (("tune", "nothing", "1"), "nothing"),
        (("tune", "matmul", "8", "8", "8", "--time", "soon"), "'soon' is not a time"),
        (("tune", "missing.py"), "there is no file missing.py"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(words: tuple[str, ...], said: str) -> None:
    done = tilesmith(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_doctor() -> None:
    done = tilesmith("doctor")
    assert done.returncode == 0
    assert "a kernel builds and runs" in done.stdout
