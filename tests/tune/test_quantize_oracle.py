"""`ts.quantize` beside ONNX Runtime's static quantiser, with the same calibration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.graph.oracle import evaluate_graph

quantization = pytest.importorskip("onnxruntime.quantization")
pytestmark = pytest.mark.usefixtures("short_drafts")
Array = np.ndarray[Any, Any]

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[1, 3, 10, 10] x) => (float[1, 5] y) {
        a = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)  b = Relu(a)
        c = Conv<pads = [1, 1, 1, 1], group = 8>(b, w2)  d = Relu(c)
        e = Conv(d, w3)  f = Add(e, b)  g = Relu(f)
        h = GlobalAveragePool(g)  i = Flatten(h)  y = Gemm<transB = 1>(i, w4, b4)
    }"""
SHAPES = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 1, 3, 3), "w3": (8, 8, 1, 1), "w4": (5, 8),
          "b4": (5,)}  # fmt: skip


class Reader:
    def __init__(self, feeds: list[dict[str, Array]]) -> None:
        self._left: Iterator[dict[str, Array]] = iter(feeds)

    def get_next(self) -> dict[str, Array] | None:
        return next(self._left, None)


def test_as_exact_as_onnxruntime(tmp_path: Path) -> None:
    import onnx
    from onnx.parser import parse_model

    rng = np.random.default_rng(0)
    model = parse_model(MODEL)
    for name, shape in SHAPES.items():
        w = rng.standard_normal(shape) * (2 / max(1, int(np.prod(shape[1:])))) ** 0.5
        model.graph.initializer.append(onnx.numpy_helper.from_array(w.astype(np.float32), name))
    feeds = [{"x": np.asarray(rng.standard_normal((1, 3, 10, 10)), np.float32)} for _ in range(24)]
    path, theirs = tmp_path / "model.onnx", tmp_path / "quantized.onnx"
    onnx.save(model, path)
    quantization.quantize_static(
        path, theirs, Reader(feeds[:16]), per_channel=True,
        quant_format=quantization.QuantFormat.QDQ,
        weight_type=quantization.QuantType.QInt8, activation_type=quantization.QuantType.QUInt8,
    )  # fmt: skip
    graph = ts.load_onnx(path)
    assert isinstance(graph, ts.Graph)
    ours = ts.quantize(graph, feeds[:16], target=ts.cpu(num_cores=1), cache=None)
    (scale,) = {float(s) for s in scales_of(ours, "x")}
    values = {a.name: onnx.numpy_helper.to_array(a) for a in onnx.load(theirs).graph.initializer}
    np.testing.assert_allclose(scale, values["x_scale"], rtol=1e-6)
    peer = ts.load_onnx(theirs)
    assert isinstance(peer, ts.Graph)
    wrong: dict[str, list[Array]] = {"ours": [], "theirs": []}
    for one in feeds[16:]:
        want = evaluate_graph(graph, one)["y"]
        wrong["ours"].append(evaluate_graph(ours, one)["y"] - want)
        wrong["theirs"].append(evaluate_graph(peer, one)["y"] - want)
    of_ours, of_theirs = (float(np.square(e).mean()) ** 0.5 for e in wrong.values())
    assert 0 < of_ours < 1.1 * of_theirs


def scales_of(graph: ts.Graph, value: str) -> list[Array]:
    """Of the quantize nodes that read a value."""
    nodes = [n for n in graph.nodes if n.op == "quantize" and n.inputs[0] == value]
    return [graph.constants[n.inputs[1]] for n in nodes]
