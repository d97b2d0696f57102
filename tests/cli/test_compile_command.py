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


def test_one_file_for_all_sizes(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    """Tuned, compiled, locked, run and exported, without a size in any of it."""
    saved, lock, db = tmp_path / "small.tsm", tmp_path / "small.lock", tmp_path / "open.db"
    sizes = ("--cores", 1, "--sizes", "rows:1..40@4,32x2")
    words = ["tune", model, *sizes, "--trials", 2, "--db", db, "--quiet"]
    status, out, err = run(capsys, *words)
    assert status == 0, err
    assert "small.onnx at rows = 32:" in out
    assert "tuned for rows 1 to 40" in out
    words = ["compile", model, "-o", saved, *sizes, "--db", db, "--save-lock", lock]
    status, out, err = run(capsys, *words)
    assert status == 0, err
    assert "kernels by record" in out
    locked = tmp_path / "locked.tsm"
    words = ["compile", model, "-o", locked, "--cores", 1, "--lock", lock]
    status, out, err = run(capsys, *words)
    assert status == 0, err
    rng = np.random.default_rng(0)
    one, other = ts.load_model(saved), ts.load_model(locked)
    for rows in (1, 7, 32, 40):
        feeds = {n: rng.standard_normal((rows, k), np.float32) for n, k in (("a", 4), ("b", 2))}
        want = feeds["a"] @ np.arange(1, 9, dtype=np.float32).reshape(4, 2) + feeds["b"]
        np.testing.assert_allclose(one(feeds)["y"], want, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(one(feeds)["y"], other(feeds)["y"])
    status, out, err = run(capsys, "run", locked, "--random", "--dim", "rows=5")
    assert status == 0, err
    assert "y: float32[5, 2]" in out
    status, out, err = run(capsys, "export", model, "-o", tmp_path / "c", *sizes, "--static")
    assert status == 0, err
    assert "rows" in (tmp_path / "c/model.h").read_text()


def test_a_run_for_all_sizes_goes_on_in_narrow_numbers(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    db, saved = tmp_path / "open.db", tmp_path / "small.tsm"
    given = (model, "--cores", 1, "--sizes", "rows:1..40@32", "--db", db)
    budget = ("--trials", 1, "--quiet")
    assert run(capsys, "tune", "softmax", 8, 8, "--db", db, *budget)[0] == 0
    status, _, err = run(capsys, "tune", *given, *budget, "--resume")
    assert status == 2
    assert "holds no measurement of a task of" in err
    narrow = ("--precision", "bfloat16")
    for more in ((), ("--resume",)):
        status, out, err = run(capsys, "tune", *given, *budget, *narrow, *more)
        assert status == 0, err
        assert "tuned for rows 1 to 40" in out
    status, _, err = run(capsys, "compile", *given, *narrow, "-o", saved)
    assert status == 0, err
    a, b = np.ones((7, 4), np.float32), np.ones((7, 2), np.float32)
    want = a @ np.arange(1, 9, dtype=np.float32).reshape(4, 2) + b
    np.testing.assert_allclose(ts.load_model(saved)({"a": a, "b": b})["y"], want, rtol=1e-2)


def test_mistakes_with_sizes_are_one_line(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        two (float[rows, cols] a) => (int64[2, n] y) {y = NonZero(a)}"""
    onnx.save(parser.parse_model(text), tmp_path / "two.onnx")
    two, saved, lock = tmp_path / "two.onnx", tmp_path / "x.tsm", tmp_path / "x.lock"
    rows, cols = ("--sizes", "rows:1..8"), ("--sizes", "cols:1..8")
    status, _, err = run(capsys, "compile", model, "-o", tmp_path / "m.tsm", *rows,
                         "--save-lock", lock)  # fmt: skip
    assert status == 0, err
    for words, said in (
        ((model, "--sizes", "row:1..8"), "no open dimension 'row' (did you mean rows?); its open"),
        ((model, "--sizes", "rows:8..1"), "the range of size rows is (8, 1)"),
        ((model, "--sizes", "rows:8"), "an open size is NAME:LOW..HIGH"),
        ((model, "--sizes", "rows:1..8@9"), "sample 9 of size rows is outside of its range"),
        ((model, *rows, *rows), "gives 'rows' twice"),
        ((model, *rows, "--dim", "rows=2"), "--dim gives 'rows' the size 2"),
        ((two, *rows), "leaves 'cols' open, too; give its range, as --sizes cols:1..512"),
        (
            (two, *rows, *cols),
            "cannot be compiled once for all sizes: NonZero 'two/0' runs on the host",
        ),
        ((model, "--sizes", "rows:1..9", "--lock", lock), "for rows from 1 to 8, and sizes= has"),
        ((model, "--dim", "rows=3", "--lock", lock), "small is compiled for fixed sizes"),
    ):
        status, _, err = run(capsys, "compile", *words, "-o", saved)
        assert (status, err.count("\n")) == (2, 1), err
        assert said in err
    assert not saved.exists()
    for words, said in (
        (("run", tmp_path / "m.tsm", "--random"), "as --dim rows=1"),
        (("run", tmp_path / "m.tsm", "--random", "--dim", "row=1"), "no open dimension 'row'"),
        (("tune", "softmax", 8, "--sizes", "n:1..8"), "stands among its sizes, as n:1..512"),
        (
            ("tune", model, *rows, "--resume", "--db", tmp_path / "x.db"),
            "holds no measurement of a task of",
        ),
        (("tune", model, *rows, "--precision", "int8"), 'there are "float16" and "bfloat16"'),
    ):
        status, _, err = run(capsys, *words)
        assert (status, err.count("\n")) == (2, 1), err
        assert said in err


def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    for words, said in (
        (["compile", model, "-o", tmp_path / "x.so"], "a saved model is a file that ends in .tsm"),
        (["compile", model, "-o", tmp_path / "x.tsm"], "cannot be saved while the sizes of a"),
        (["compile", tmp_path / "x.tsm", "-o", tmp_path / "y.tsm"], "not the name of an ONNX file"),
        (["compile", model, "-o", tmp_path / "x.tsm", "--dim", "rows=3", "--strict"], "database"),
        (["run", tmp_path / "x.tsm"], "there is no file"),
        (["run", tmp_path / "x.tsm", "--lock", "l"], "give it to tilesmith compile"),
    ):
        status, _, err = run(capsys, *words)
        assert (status, err.count("\n")) == (2, 1), err
        assert said in err
    assert not (tmp_path / "x.tsm").exists()
