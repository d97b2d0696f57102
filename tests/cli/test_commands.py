"""The commands as a person types them: output on success, one line and status 2 on a mistake. Each
is a process of its own once; what follows it runs in this one.
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tests.support.command_line import run
from tilesmith.cli import doctor as doctor_module
from tilesmith_contest import peers as peers_module


def tilesmith(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tilesmith", *words],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def test_tune_records_and_db(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db, out = str(tmp_path / "t.db"), tmp_path / "out"
    words = ("matmul", "32", "32", "32", "--cores", "1", "--db", db)
    done = tilesmith("tune", *words, "--trials", "8", "--time", "1m", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "  8 trials in" in done.stdout
    check_folder(out)
    capsys.readouterr()

    def said(*words: str) -> str:
        status, out, err = run(capsys, *words)
        assert status == 0, err
        return out

    assert "8 measurements in all" in said("db", "stats", db)
    lines = tmp_path / "lines.jsonl"
    said("db", "export", db, str(lines))
    printed = tilesmith("db", "export", db, "-")
    assert printed.stdout == lines.read_text()
    assert printed.stderr == "8 measurements written to standard output\n"
    other = str(tmp_path / "other.db")
    assert "8 measurements read" in said("db", "import", other, str(lines))
    assert "0 measurements copied" in said("db", "merge", other, db)
    assert "measurements deleted" in said("db", "prune", other, "--keep", "2")
    again = said("tune", *words, "--trials", "9", "--resume", "--strategy", "random")
    assert "  1 trial in" in again


def check_folder(out: Path) -> None:
    """What `tune --out` wrote can be read, and builds the same kernel."""
    assert "define" in (out / "kernel.ll").read_text()
    assert "ret" in (out / "kernel.s").read_text()
    summary = json.loads((out / "measurements.json").read_text())
    assert summary["trials"] == 8
    assert summary["median_seconds"] > 0
    scope = runpy.run_path(str(out / "kernel.py"))
    a, b = np.random.default_rng(0).standard_normal((2, 32, 32), dtype=np.float32)
    np.testing.assert_allclose(scope["kernel"](a, b), a @ b, rtol=1e-4, atol=1e-4)
    assert scope["kernel"].source == (out / "kernel.ll").read_text()
    assert "split(" in scope["__doc__"]


def test_tune_reaches_layouts_and_constant_weights(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    done = tilesmith(
        "tune", "conv2d", "6", "4", "8", "3", "1", "1", "--layout", "NHWC", "--constant-weights",
        "--strategy", "random", "--timeout", "30s", "--trials", "2", "--cores", "1", "--quiet",
        "--db", str(db),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("conv2d_6_4_8_3_1_1_NHWC: ")
    with ts.open_database(db) as d:
        (summary,) = d.tasks()
        func = summary.task.func
    assert [b.shape[-1].const for b in func.params] == [4, 8, 8]  # channels last
    assert [b.name for b in func.params if b.scope == "constant"] == ["W"]


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
def test_a_mistake_is_one_line_and_status_2(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, error = run(capsys, *words)
    assert status == 2
    assert said in error
    assert len(error.strip().splitlines()) == 1


def test_a_mistake_ends_the_process_with_status_2() -> None:
    done = tilesmith("tune", "matmul", "32")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


def test_doctor() -> None:
    done = tilesmith("doctor")
    assert done.returncode == 0
    assert "a kernel builds and runs" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    target = ts.cpu()
    assert f"{target.num_cores} that this process may use" in done.stdout
    for title in ("Processor", "Packages", "GPUs", "Export", "Kernels", "Timing"):
        assert f"\n{title}\n" in done.stdout
    assert "verdict" in done.stdout


def test_doctor_says_what_is_missing_and_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = ("torch", "onnxruntime", "psycopg", "matplotlib")
    found = doctor_module.find_spec
    for module in (doctor_module, peers_module):
        monkeypatch.setattr(module, "find_spec", lambda n: None if n in missing else found(n))
    monkeypatch.setattr(doctor_module, "_timing", lambda kernel: iter([("verdict", "quiet")]))
    doctor_module.doctor()
    text = " ".join(capsys.readouterr().out.split())
    assert "torch not installed: PyTorch models; a library that `bench` compares with" in text
    for extra in ("peers", "postgres", "report"):
        assert f"pip install 'tilesmith[{extra}]'" in text
    assert "bench compares with numpy; pip install 'tilesmith[peers]' for more" in text
