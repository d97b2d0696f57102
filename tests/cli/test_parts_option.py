"""`--parts MODULE:OBJECT`: a module of the user's own in the current folder, for every command that
reads records or builds candidates.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

import tilesmith as ts
from tests.support.command_line import run
from tilesmith.cli.main import app

MODULE = """
from dataclasses import dataclass, replace
from typing import ClassVar

import tilesmith as ts


@dataclass(frozen=True)
class Signed:
    word: str
    kind: ClassVar[str] = "cpu"

    def compile(self, func, target, *, checked=False):
        made = ts.LlvmBackend().compile(func, target, checked=checked)
        return replace(made, source=f"; {self.word}\\n{made.source}")


class Held:
    PARTS = ts.Parts(backends=(Signed("mine"),))
"""
NAME = "parts_of_a_user:Held.PARTS"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts_of_a_user.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "parts_of_a_user", raising=False)


def tune(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    what = ("tune", "matmul", "16", "16", "16", "--cores", "1", "--trials", "2", "--quiet")
    status, out, err = run(capsys, *what, "--db", "t.db", *words)
    assert status == 0, err
    return out


def test_tune_show_and_build_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "2 trials" in tune(capsys, "--parts", NAME, "--out", "tuned")
    assert "0 trials" in tune(capsys, "--parts", NAME, "--resume")
    status, out, _ = run(capsys, "show", "source", "matmul", "--db", "t.db", "--parts", NAME)
    assert status == 0
    assert out.startswith("; mine")
    for what in ("records", "runs", "trace"):
        assert run(capsys, "show", what, "--db", "t.db", "--parts", NAME)[0] == 0
    assert (tmp_path / "tuned" / "kernel.ll").read_text().startswith("; mine")
    path = ":".join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", "from tuned.kernel import kernel; print(kernel.source)"],
        capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": path},
    )  # fmt: skip
    assert done.stdout.startswith("; mine"), done.stderr


def test_without_the_option_it_is_said_what_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    tune(capsys, "--parts", NAME)
    status, out, _ = run(capsys, "db", "stats", "t.db")
    assert status == 0
    assert re.search(r"2 of them need the back end 'Signed:\w+'; give it by --parts", out)
    assert re.search(r"by the back end Signed:\w+ of other --parts", out)
    status, out, _ = run(capsys, "db", "stats", "t.db", "--parts", NAME)
    assert "need" not in out
    assert re.search(r"\(by Signed:\w+\)", out)
    status, _, err = run(capsys, "show", "records", "--db", "t.db")
    assert status == 2
    assert "2 records need the back end 'Signed:" in err
    assert "2 trials" in tune(capsys)  # the built-in back end has none yet
    assert run(capsys, "db", "prune", "t.db", "--keep", "1", "--parts", NAME)[1].startswith("2 ")


def test_models(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    real, helper = onnx.TensorProto.FLOAT, onnx.helper
    weights = onnx.numpy_helper.from_array(np.ones((16, 24), np.float32), "W")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "W"], ["y"])], "small",
        [helper.make_tensor_value_info("a", real, [8, 16])],
        [helper.make_tensor_value_info("y", real, [8, 24])], [weights],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), "m.onnx")
    own = ("--db", "t.db", "--parts", NAME)
    status, out, err = run(
        capsys, "tune", "m.onnx", "--cores", "1", "--trials", "2", "--quiet", *own
    )
    assert status == 0, err
    assert "2 trials" in out
    status, out, err = run(capsys, "run", "m.onnx", "--random", "--cores", "1", *own)
    assert status == 0, err
    status, out, err = run(
        capsys, "export", "m.onnx", "-o", "out", "--static", "--cores", "1", *own
    )
    assert status == 0, err
    assert "1 kernels by record" in out
    status, out, _ = run(capsys, "show", "tasks", "m.onnx", "--cores", "1", *own)
    assert "records of 1 of 1 tasks" in out
    with ts.open_database(tmp_path / "t.db") as db:
        (task,) = db.tasks()
        assert "+Signed:" in task.codegen


def test_bench_and_report(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("bench", "matmul", "16", "16", "16", "--threads", "1", "--against", "numpy")
    status, _, err = run(capsys, *words, "--seconds", "1", "--db", "t.db", "--parts", NAME)
    assert status == 0, err
    with ts.open_database("t.db") as db:
        assert all("+Signed:" in t.codegen for t in db.tasks())
    pytest.importorskip("plotly", reason="the page needs plotly")
    status, _, err = run(capsys, "report", "t.db", "-o", "r.html", "--parts", NAME)
    assert status == 0, err
    assert "; mine" in Path("r.html").read_text()
    status, _, err = run(capsys, "report", "t.db", "-o", "r.html")
    assert status == 2
    assert re.search(r"records? needs? the back end 'Signed:", err)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no_such_module:PARTS", "--parts: the parts 'no_such_module:PARTS' cannot be imported"),
        ("parts_of_a_user:NONE", "the module parts_of_a_user has no 'NONE'"),
        ("parts_of_a_user:Signed", "it is a ts.Parts"),
        ("parts_of_a_user", "write MODULE:OBJECT"),
    ],
)
def test_a_wrong_name_is_refused(capsys: pytest.CaptureFixture[str], name: str, text: str) -> None:
    for words in (("db", "stats", "t.db"), ("tune", "matmul", "8", "8", "8", "--trials", "1")):
        ts.open_database("t.db").close()
        status, _, err = run(capsys, *words, "--parts", name)
        assert status == 2
        assert text in err


def test_every_command_that_reads_records_or_builds_takes_it() -> None:
    def names(command: Any, path: str = "") -> dict[str, set[str]]:
        subs = getattr(command, "commands", {})
        if not subs:
            return {path: {p.name for p in command.params}}
        return {k: v for n, c in subs.items() for k, v in names(c, f"{path} {n}".strip()).items()}

    options = names(get_command(app))
    moving = {"db merge", "db export", "db import"}  # whatever a record says, it is moved
    reading = {"show tasks", "show records", "show runs", "show trace", "show source"}
    for words in {"tune", "bench", "run", "export", "report", "worker", *reading}:
        assert "parts" in options[words], words
    assert {w for w in options if w.startswith("db ") and "parts" not in options[w]} == moving
