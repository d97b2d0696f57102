"""`tilesmith run` and `tilesmith bench` on a model file, as a person types them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tests.support.command_line import run
from tilesmith.cli.run import file_names
from tilesmith_contest import bench_model as bench_model_module
from tilesmith_contest.model_rows import EngineResult, ModelRow

onnx = pytest.importorskip("onnx")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = (a @ W) + b, where the rows of a and b are open."""
    helper = onnx.helper
    real = onnx.TensorProto.FLOAT
    weights = np.arange(12, dtype=np.float32).reshape(4, 3)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["a", "W"], ["product"]),
            helper.make_node("Add", ["product", "b"], ["out/y"]),
        ],
        "small",
        [
            helper.make_tensor_value_info("a", real, ["rows", 4]),
            helper.make_tensor_value_info("b", real, ["rows", 3]),
        ],
        [helper.make_tensor_value_info("out/y", real, ["rows", 3])],
        [onnx.numpy_helper.from_array(weights, "W")],
    )
    path = tmp_path / "small.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_run_computes_what_the_model_says(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((5, 4), np.float32), rng.standard_normal((5, 3), np.float32)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    out = tmp_path / "out"
    given = ["--input", f"a={tmp_path / 'a.npy'}", "--input", f"b={tmp_path / 'b.npy'}"]
    status, text, err = run(capsys, "run", model, *given, "--output", out, "--cores", 1)
    assert status == 0, err
    assert text.startswith("out/y: float32[5, 3], from ")
    assert "ms for a second run" in text
    (file,) = out.iterdir()
    assert file.name == "out_y.npy"
    want = a @ np.arange(12, dtype=np.float32).reshape(4, 3) + b
    np.testing.assert_allclose(np.load(file), want, rtol=1e-5, atol=1e-5)


def test_run_with_random_inputs(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    words = ["run", model, "--random", "--dim", "rows=2", "--cores", 1]
    status, text, err = run(capsys, *words)
    assert status == 0, err
    assert text.startswith("out/y: float32[2, 3]")
    again = run(capsys, *words)[1]
    assert again.splitlines()[0] == text.splitlines()[0]  # the same numbers


def test_names_of_files_are_plain_and_different() -> None:
    files = file_names(["a/b", "a:b", "../../x", "", "a_b", ".."])
    assert files["a/b"] == "a_b.npy"
    assert len(set(files.values())) == 6
    assert all("/" not in f and not f.startswith(".") for f in files.values())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run MODEL", "also needs a: float32[rows, 4], b: float32[rows, 3]; give --input"),
        ("run MODEL --input a=X", "also needs b: float32[rows, 3]; give --input NAME=FILE.npy"),
        ("run MODEL --random", "give the size of 'rows', as --dim rows=1"),
        ("run MODEL --input X", "write NAME=FILE.npy"),
        ("run MODEL --input c=X", "has no input 'c'"),
        ("run MODEL --input a=nowhere.npy --random", "there is no file nowhere.npy"),
        ("run MODEL --input a=TEXT --random", "is no array of numpy.save"),
        ("run MODEL --random --dim rows", "--dim 'rows': write NAME=N, such as batch=1"),
        ("run MODEL --random --dim batch=1", "its open dimensions are rows"),
        ("run MODEL --random --dim rows=5 --input a=X", "dimension 0 must be 5"),
        ("run nowhere.onnx", "there is no file nowhere.onnx"),
        ("run MODEL.txt", "is not the name of an ONNX file; it ends in .onnx"),
        ("run BROKEN", "BROKEN"),
        ("run MODEL --random --cores 1000000", "--cores 1000000"),
        ("run MODEL --random --output /dev/null/sub", "--output"),
        ("bench nowhere.onnx", "there is no file nowhere.onnx"),
        ("bench MODEL 3", "SHAPE is for operators, not for a model"),
        ("bench MODEL --batch 4", "--batch is for operators, not for a model; an open dimension"),
        ("bench MODEL --ops C2D", "--ops is for operators, not for a model"),
        ("bench MODEL --dim rows=1 --against tvm", "unknown engine 'tvm'; known are onnxruntime"),
        ("bench MODEL --against onnxruntime", "give the size of 'rows'"),
        ("bench MODEL --dim rows=1 --seconds 1", "--db FILE; name one"),
        ("tune nowhere.onnx", "there is no file nowhere.onnx"),
        ("tune MODEL", "give the size of 'rows', as --dim rows=1"),
        ("tune MODEL 3", "are for operators, not for a model"),
        ("tune MODEL --dim rows=2 --out made", "are for operators, not for a model"),
        ("tune MODEL --dim rows=2 --resume", "--resume continues from a database; name it"),
        ("tune MODEL --dim rows=2 --resume --db EMPTY", "holds no measurement of a task of"),
        ("tune MODEL --dim rows=2 --cores 1000000", "--cores 1000000"),
        ("tune matmul 8 8 8 --dim rows=1", "--dim gives sizes to a model's open dimensions"),
        ("bench matmul 8 8 8 --dim rows=1", "--dim gives sizes to a model's open dimensions"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path, words: str, said: str
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 4), np.float32))
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "broken.onnx").write_bytes(model.read_bytes()[:40])
    places = {
        "MODEL": model, "X": tmp_path / "x.npy", "TEXT": tmp_path / "text.npy",
        "BROKEN": tmp_path / "broken.onnx", "MODEL.txt": tmp_path / "model.txt",
        "EMPTY": tmp_path / "empty.db",
    }  # fmt: skip
    told = [str(places.get(w, w)) for w in words.split()]
    told = [t.replace("=X", f"={places['X']}").replace("=TEXT", f"={places['TEXT']}") for t in told]
    status, out, err = run(capsys, *told)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1, err
    assert said.replace("BROKEN", "broken.onnx") in err


def test_tune_a_model_and_go_on(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    words = ["tune", model, "--dim", "rows=8", "--db", tmp_path / "t.db", "--threads", 1]
    status, text, err = run(capsys, *words, "--trials", 4, "--time", "5m")
    assert status == 0, err
    first, second = text.splitlines()
    assert re.fullmatch(
        rf"{re.escape(str(model))}: [0-9.]+ ms untuned, [0-9.]+ ms tuned: [0-9.]+ times as fast",
        first,
    )
    assert second.startswith("  1 task, 4 trials in ")
    assert "matmul_add" in err  # the table of tasks
    status, text, err = run(capsys, *words, "--trials", 6, "--time", "5m", "--resume", "--quiet")
    assert (status, err) == (0, "")
    assert text.splitlines()[1].startswith("  1 task, 2 trials in ")


@pytest.mark.skipif(not ts.cpu().features & {"fp16", "f16c"}, reason="no half precision here")
def test_half_precision(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    words = ["run", model, "--dim", "rows=8", "--random", "--cores", 1]
    status, whole, err = run(capsys, *words)
    assert status == 0, err
    status, half, err = run(capsys, *words, "--precision", "float16")
    assert status == 0, err
    assert whole.split(",")[0] == half.split(",")[0]  # the same name, dtype and shape
    status, _, err = run(capsys, "tune", "matmul", 8, 8, 8, "--precision", "float16")
    assert (status, "--precision is for a model" in err) == (2, True)


@pytest.mark.filterwarnings("always")
def test_a_warning_is_one_line(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    words = ["run", model, "--dim", "rows=8", "--random", "--cores", 1, "--precision"]
    status, _, err = run(capsys, *words, "tf32")  # no processor has it
    assert status == 0
    (line,) = [x for x in err.splitlines() if "warning" in x]
    assert line.startswith("tilesmith: warning: ")
    assert line.endswith(
        "has no faster products of tf32 than of float32: products are computed in float32"
    )


def test_int8(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    typical = tmp_path / "typical"
    typical.mkdir()
    for k in range(3):
        np.savez(
            typical / f"{k}.npz", a=rng.standard_normal((8, 4), np.float32),
            b=rng.standard_normal((8, 3), np.float32),
        )  # fmt: skip
    words = [model, "--dim", "rows=8", "--cores", 1, "--precision", "int8"]
    given = ["--calibration", typical]
    status, out, err = run(capsys, "run", "--random", *words, *given)
    assert status == 0, err
    assert out.startswith("out/y: float32[8, 3]")
    status, out, err = run(capsys, "compile", *words, *given, "-o", tmp_path / "m.tsm")
    assert status == 0, err
    assert "layers: 1 in int8" in out
    assert run(capsys, "run", tmp_path / "m.tsm", "--random")[0] == 0
    np.save(tmp_path / "one.npy", np.zeros(3))
    for option, why in {
        (): "typical inputs",
        ("--calibration", tmp_path / "none"): "there is no such file or folder",
        ("--calibration", tmp_path): "the folder has no files of numpy.savez",
        ("--calibration", tmp_path / "one.npy"): "write the inputs with numpy.savez",
        ("--calibration", typical, "--dim", "rows=4"): "input a: float32[4, 4] is given shape",
    }.items():
        status, _, err = run(capsys, "run", "--random", *words, *option)
        assert (status, why in err) == (2, True), err


def test_bench_of_a_model_for_real(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    rows = tmp_path / "rows.json"
    words = ["bench", model, "--dim", "rows=8", "--threads", 1, "--json", rows]
    status, out, err = run(capsys, *words, "--against", "onnxruntime,torch")
    assert status == 0, err
    assert "absent: torch: it reads no ONNX files" in err
    (row,) = json.loads(rows.read_text())
    assert row["name"] == "small, 1 thread"
    assert row["reference"] == "onnxruntime"
    assert row["error"] < 1e-5
    assert row["ratio"] > 0
    assert row["arena_bytes"] >= 0
    assert row["first_start_seconds"] > 0
    (engine,) = row["engines"]
    assert engine["name"] == row["peer"] == "onnxruntime"
    assert out.splitlines()[0].split()[:3] == ["model", "threads", "ours"]


def test_a_model_that_we_fail_at_ends_with_status_1_and_the_table_fits(
    capsys: pytest.CaptureFixture[str], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = tuple(EngineResult(n, 123.456, 1.234, 0.012, 1e-6, 12.3) for n in ("mnn", "openvino"))
    row = ModelRow("x" * 60, None, model="x" * 60, failed="no kernel", engines=engines)
    monkeypatch.setattr(bench_model_module, "compare_ours", lambda *_, **__: row)
    status, out, _ = run(capsys, "bench", model, "--dim", "rows=1", "--threads", 1)
    assert status == 1
    assert "no kernel" in out
    tables = out.partition("\n\n" + "x" * 20)[0].splitlines()
    assert max(map(len, tables)) <= 80
