"""`tilesmith tune` with several operators: how they are named, and what is printed and written."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilesmith as ts
from tests.support.command_line import run
from tilesmith.cli.operator_list import functions_of

MINE = """import tilesmith as ts
x = ts.placeholder((8,), name="x")
double = ts.function([x, ts.compute((8,), lambda i: 2 * x[i], name="y")], name="double")
triple = ts.function([x, ts.compute((8,), lambda i: 3 * x[i], name="y")], name="triple")
BOTH = [double, (triple, 4)]
"""


def named(*words: str, **options: str) -> list[tuple[str, float]]:
    return [(func.name, weight) for func, weight in functions_of(words, **options)]  # type: ignore


def test_operators_one_behind_the_other() -> None:
    words = "matmul 8 8 16 x3 sum 9 conv2d 7 4 4 3 1 1 x0.5 matmul 8 8 16 2"
    assert named(*words.split()) == [
        ("matmul_8_8_16", 3), ("sum_9", 1), ("conv2d_7_4_4_3_1_1", 0.5), ("matmul_8_8_16_2", 1),
    ]  # fmt: skip
    # The layout is for those that have one.
    words = "sum 9 conv2d 7 4 4 3 1 1"
    assert named(*words.split(), layout="NHWC") == [
        ("sum_9", 1), ("conv2d_7_4_4_3_1_1_NHWC", 1),
    ]  # fmt: skip


def test_a_file_of_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    Path("all.txt").write_text(
        "# the layers of a network\n\n"
        "matmul 8 8 16 x3            # often\n"
        "conv2d 7 4 4 3 1 1 --layout=NHWC --constant-weights x2\n"
        "matmul 8 8 16 --dtype float16\n"
        "mine.py:BOTH x2\n"
        "mine.py:double\n"
    )
    assert named("all.txt", "sum", "9") == [
        ("matmul_8_8_16", 3), ("conv2d_7_4_4_3_1_1_NHWC", 2), ("matmul_8_8_16_float16", 1),
        ("double", 2), ("triple", 8), ("double", 1), ("sum_9", 1),
    ]  # fmt: skip
    ((_, w, _),) = [f.params for f, _ in functions_of(["all.txt"]) if "conv2d" in f.name]
    assert w.scope == "constant"
    assert named("all.txt", layout="NCHW")[1] == ("conv2d_7_4_4_3_1_1_NHWC", 2)  # its own stays
    for line, text in (
        ("matmul 8 8 8 --time 3", "line 1: --time is not for one operator"),
        ("matmul 8 8 8 --dtype float8", "'float8': it is one of float32"),
        ("matmul 8 8 8 sum 9", "write one operator a line"),
        ("all.txt", "write one operator a line"),
        ("--dtype float16", "name an operator first"),
        ("matmul 'x", "line 1: No closing quotation"),
        ("mine.py:double --dtype float16", "line 1: --dtype is for named operators"),
        ("# nothing", "names no operator; write one a line"),
    ):
        Path("wrong.txt").write_text(line + "\n")
        with pytest.raises(ts.ArgumentError, match=text):
            functions_of(["wrong.txt"])


def test_they_share_a_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db, out = tmp_path / "t.db", tmp_path / "out"
    given = "tune matmul 8 16 8 x3 sum 33 --cores 1 --strategy random --time 1m"
    words = given.split()
    status, said, shown = run(capsys, *words, "--trials", 12, "--db", db, "--out", out)
    assert status == 0, shown
    assert said.startswith("2 operators, 12 trials in ")
    assert [line.split()[:2] for line in said.splitlines()[1:4]] == [
        ["operator", "weight"], ["matmul_8_16_8", "3"], ["sum_33", "1"],
    ]  # fmt: skip
    assert "2 of 2 tasks" in shown or "trials" in shown  # one display for all
    assert {p.name for p in out.iterdir()} == {"matmul_8_16_8", "sum_33"}
    assert (out / "sum_33" / "kernel.py").exists()
    status, said, _ = run(capsys, *words, "--trials", 14, "--db", db, "--resume", "--quiet")
    assert (status, said.splitlines()[0].partition(" in ")[0]) == (0, "2 operators, 2 trials")
    status, said, _ = run(capsys, *words, "--scheduler", "round-robin", "--trials", 8, "--quiet")
    assert said.startswith("2 operators, 8 trials")
