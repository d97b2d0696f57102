"""`tilesmith compile`, and `tilesmith run` on what it writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tests.support.command_line import run

parser = pytest.importorskip("onnx.parser")
onnx = pytest.importorskip("onnx")


@pytest.fixture
def model(tmp_path: Path, short_drafts: None) -> Path:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        small (float[rows, 4] a, float[rows, 2] b) => (float[rows, 2] y)
        <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {c = MatMul(a, w) y = Add(c, b)}"""
    onnx.save(parser.parse_model(text), tmp_path / "small.onnx")
    return tmp_path / "small.onnx"


def test_compile_then_run(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "new" / "small.tsm"
    status, out, err = run(capsys, "compile", model, "-o", saved, "--dim", "rows=3")
    assert status == 0, err
    digest = out.splitlines()[1].removeprefix("digest ")
    ts.load_model(saved, digest=digest)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((3, 4), np.float32), rng.standard_normal((3, 2), np.float32)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    given = ["--input", f"a={tmp_path}/a.npy", "--input", f"b={tmp_path}/b.npy"]
    status, out, err = run(capsys, "run", saved, *given, "--output", tmp_path / "out")
    assert status == 0, err
    assert "y: float32[3, 2]" in out
    w = np.arange(1, 9, dtype=np.float32).reshape(4, 2)
    np.testing.assert_allclose(np.load(tmp_path / "out/y.npy"), a @ w + b, rtol=1e-5)


def test_weights_apart(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    saved, weights = tmp_path / "small.tsm", tmp_path / "small.weights"
    words = ["compile", model, "-o", saved, "--weights", weights, "--dim", "rows=3"]
    status, out, err = run(capsys, *words)
    assert status == 0, err
    assert [line.split()[0] for line in out.splitlines()[:2]] == [str(saved), str(weights)]
    assert run(capsys, "run", saved, "--random")[0] == 0
    weights.unlink()
    status, _, err = run(capsys, "run", saved, "--random")
    assert (status, err.count("\n")) == (2, 1)
    assert "are missing: there is no file" in err


def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    for words, said in (
        (["compile", model, "-o", tmp_path / "x.so"], "a saved model is a file that ends in .tsm"),
        (["compile", model, "-o", tmp_path / "x.tsm"], "cannot be saved while the sizes of a"),
        (["compile", tmp_path / "x.tsm", "-o", tmp_path / "y.tsm"], "not the name of an ONNX file"),
        (["compile", model, "-o", tmp_path / "x.tsm", "--dim", "rows=3", "--strict"], "database"),
        (["run", tmp_path / "x.tsm"], "there is no file"),
        (["run", tmp_path / "x.tsm", "--dim", "rows=3"], "give it to tilesmith compile"),
    ):
        status, _, err = run(capsys, *words)
        assert (status, err.count("\n")) == (2, 1), err
        assert said in err
    assert not (tmp_path / "x.tsm").exists()
