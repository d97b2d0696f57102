"""`tilesmith show graph` and `tilesmith show tasks` on model files, as a person types them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import tilesmith as ts
from tests.support.command_line import run
from tilesmith.task.describe import place_text

onnx = pytest.importorskip("onnx")


def saved(
    path: Path, nodes: Sequence[Any], inputs: dict[str, Sequence[int | str]],
    outputs: Sequence[str], arrays: dict[str, np.ndarray[Any, Any]] | None = None,
) -> Path:  # fmt: skip
    helper, real = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(n, real, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, real, None) for n in outputs],
        [onnx.numpy_helper.from_array(a, n) for n, a in (arrays or {}).items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two equal layers, relu(x @ W), with a residual around the second, then a softmax."""
    node = onnx.helper.make_node
    rng = np.random.default_rng(0)
    weights = {w: rng.standard_normal((8, 8), dtype=np.float32) for w in ("V", "W")}
    nodes = [
        node("MatMul", ["x", "V"], ["a"], name="/first/MatMul"),
        node("Relu", ["a"], ["b"], name="/first/Relu"),
        node("MatMul", ["b", "W"], ["c"], name="/second/MatMul"),
        node("Relu", ["c"], ["d"], name="/second/Relu"),
        node("Softmax", ["d"], ["e"], name="/Softmax"),
        node("Add", ["e", "b"], ["y"], name="/Add"),
    ]
    return saved(tmp_path / "small.onnx", nodes, {"x": ["rows", 8]}, ["y"], weights)


@pytest.fixture
def hosted(tmp_path: Path) -> Path:
    """How many elements are not zero is known at run time only."""
    node = onnx.helper.make_node
    nodes = [
        node("Relu", ["x"], ["a"], name="relu"),
        node("NonZero", ["a"], ["b"], name="where"),
        node("Cast", ["b"], ["y"], name="cast", to=onnx.TensorProto.FLOAT),
    ]
    return saved(tmp_path / "hosted.onnx", nodes, {"x": [4, 4]}, ["y"])


def test_show_graph_of_a_small_model(
    capsys: pytest.CaptureFixture[str], model: Path, golden: Callable[[object], None]
) -> None:
    status, text, err = run(capsys, "show", "graph", model, "--dim", "rows=4", "--wide")
    assert status == 0, err
    golden(text)


def test_lines_fit_and_name_every_group(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    _, text, _ = run(capsys, "show", "graph", model, "--dim", "rows=4")
    assert max(map(len, text.splitlines())) <= 80
    source = ts.load_onnx(str(model), dims={"rows": 4})
    assert sum(weight for _, weight in ts.extract_tasks(source)) == 3
    assert [line.split()[0] for line in text.splitlines()[5:8]] == ["1", "2", "3"]


def test_pictures_parse_and_name_every_group(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    svg, html = tmp_path / "out" / "g.svg", tmp_path / "g.html"
    given = ["--dim", "rows=4", "--svg", svg, "--html", html]
    status, _, err = run(capsys, "show", "graph", model, *given)
    assert status == 0, err
    ids = [e.get("id") for e in ElementTree.parse(svg).iter() if e.get("id")]
    assert [i for i in ids if i != "tip"] == [
        "input-0", "group-1", "group-2", "group-3", "output-0",
    ]  # fmt: skip
    page = html.read_text()
    assert svg.read_text() in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")  # loads nothing


def test_an_open_model_says_which_sizes_to_give(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    svg = tmp_path / "open.svg"
    status, text, _ = run(capsys, "show", "graph", model, "--svg", svg)
    assert status == 0
    assert text.splitlines()[1] == "  input  x: float32[rows, 8]"
    assert "its dimensions rows are open; give their sizes, as in --dim rows=1" in text
    assert "output-0" in svg.read_text()
    assert "--dim rows=1" in run(capsys, "show", "tasks", model)[1]


def test_what_runs_on_the_host_is_said_with_its_reason(
    capsys: pytest.CaptureFixture[str], hosted: Path, tmp_path: Path
) -> None:
    svg = tmp_path / "h.svg"
    status, text, err = run(capsys, "show", "graph", hosted, "--svg", svg)
    assert status == 0, err
    (line,) = [t for t in text.splitlines() if t.startswith("on the host")]
    assert line.startswith("on the host: NonZero 'where': ")
    assert "1 nodes follow; their sizes depend on the results of NonZero 'where'" in text
    assert 'data-from="group-1" data-to="host-2"' in svg.read_text()


def test_random_numbers_show_what_depends_on_results(
    capsys: pytest.CaptureFixture[str], hosted: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    svg = tmp_path / "h.svg"
    status, text, err = run(capsys, "show", "graph", hosted, "--random", "--svg", svg)
    assert status == 0, err
    steps = [line.split() for line in text.splitlines()[5:8]]
    assert [(s[0], s[-1]) for s in steps] == [("1", "relu"), ("2", "where"), ("3", "cast")]
    assert "follow" not in text
    for pair in ('data-from="host-2" data-to="group-3"', 'data-from="group-3" data-to="output-0"'):
        assert pair in svg.read_text()


def test_show_tasks_of_a_model_with_and_without_records(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    words = ["show", "tasks", model, "--dim", "rows=4", "--cores", 1]
    status, text, err = run(capsys, *words)
    assert status == 0, err
    tasks = ts.extract_tasks(ts.load_onnx(str(model), dims={"rows": 4}), ts.cpu(1))
    lines = text.splitlines()[1 : 1 + 2 * len(tasks)]
    listed = {line.split()[1]: line.split() for line in lines[::2]}
    assert set(listed) == {t.key[:12] for t, _ in tasks}
    heavy, weight = max(tasks, key=lambda t: t[0].func.flops * t[1])
    assert weight == 2
    assert listed[heavy.key[:12]][2:4] == ["matmul_relu", "2"]
    below = [line.strip() for line in lines[1::2]]
    assert below[0] == "4x8, 8x8 -> 4x8 float32  /first/{MatMul, Relu} and 1 more"
    _, text, _ = run(capsys, *words, "--match", "MatMul /second/")  # the second place counts, too
    assert "matmul_relu" in text
    assert "softmax_add" not in text
    status, _, err = run(capsys, *words, "--match", "conv2d")
    assert status == 2
    assert "--match 'conv2d': no task of" in err

    place = tmp_path / "t.db"
    with ts.open_database(str(place)) as db:
        candidate = ts.Candidate(heavy, ts.Schedule(heavy.func).trace)
        db.add([ts.Measurement(candidate, (2e-6,) * 3, confirmed=True)])
    _, text, _ = run(capsys, *words, "--db", place, "--wide")
    first = text.splitlines()[1].split()
    gflops = heavy.func.flops / 2e-6 / 1e9
    assert first[1] == heavy.key[:12]
    assert first[-5:] == ["2.00", "us", f"{gflops:.1f}", "100.0", "%"]
    assert f"records of 1 of {len(tasks)} tasks, 0.00 ms together" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("show graph model.txt", "is not the name of an ONNX file; it ends in .onnx"),
        ("show graph nowhere.onnx", "there is no file nowhere.onnx"),
        ("show graph MODEL --dim batch=1", "its open dimensions are rows"),
        ("show graph MODEL --random", "give the size of 'rows', as --dim rows=1"),
        ("show graph MODEL --svg /dev/null/x.svg", "--svg"),
        ("show tasks", "name MODEL.onnx or --db FILE"),
        ("show tasks --db nowhere.db --dim rows=1", "are for the tasks of a model"),
        ("show tasks MODEL --dim rows=1 --db nowhere.db", "there is no database nowhere.db"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], model: Path, words: str, said: str
) -> None:
    status, out, err = run(capsys, *(str(model) if w == "MODEL" else w for w in words.split()))
    assert (status, out) == (2, "")
    assert err.count("\n") == 1, err
    assert said in err


def test_names_of_nodes_share_their_path() -> None:
    assert place_text(["Conv '/a/b/Conv'", "Relu '/a/Relu'"]) == "/a/{b/Conv, Relu}"
    assert place_text(["Conv '/ab/Conv'", "Relu '/a/Relu'"]) == "/ab/Conv, /a/Relu"
    assert place_text(["Conv '7'"]) == "Conv 7"
    assert place_text([]) == ""
