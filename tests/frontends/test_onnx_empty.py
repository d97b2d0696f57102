"""Tensors without elements: what ONNX Runtime gives, by the oracle and by kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from one_node import feeds_of, model_of, ran
from onnx import helper
from small_models import model_of as model_of_nodes

import tilesmith as ts
from tilesmith.base.errors import GraphError
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.graph import Graph
from tilesmith.graph.oracle import evaluate_program

F = np.float32


def z(*shape: int) -> Any:
    return np.zeros(shape, F)


def full(*shape: int) -> Any:
    return np.arange(1, 1 + np.prod(shape, dtype=int), dtype=F).reshape(shape)


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


# Inputs named n are constants.
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Softmax", {"x": z(3, 6, 0)}, {"axis": 1}),
    ("Softmax", {"x": z(3, 0, 2)}, {"axis": 1}),
    ("LogSoftmax", {"x": z(0, 4)}, {"axis": -1}),
    ("Hardmax", {"x": z(0, 4)}, {"axis": 0}),
    ("Max", {"x": z(3, 0), "y0": z(3, 0), "y1": z(3, 1)}, {}),
    ("Min", {"x": z(0), "y0": z(1), "y1": z(0)}, {}),
    ("Sum", {"x": z(2, 0, 3), "y0": z(3), "y1": z(2, 0, 1)}, {}),
    ("Add", {"x": z(2, 0), "y0": z(2, 1)}, {}),
    ("Reshape", {"x": z(2, 0, 3), "n": ints(-1, 6)}, {}),
    ("Reshape", {"x": z(2, 0, 3), "n": ints(0, 0, 7)}, {}),
    ("Flatten", {"x": z(2, 0, 3)}, {"axis": 2}),
    ("Transpose", {"x": z(2, 0, 3)}, {"perm": (2, 0, 1)}),
    ("Tile", {"x": z(2, 0), "n": ints(2, 3)}, {}),
    ("Tile", {"x": full(2, 3), "n": ints(2, 0)}, {}),
    ("Expand", {"x": z(1, 0), "n": ints(3, 1)}, {}),
    ("Concat", {"x": full(2, 3), "y0": z(2, 0), "y1": full(2, 1)}, {"axis": 1}),
    ("Concat", {"x": z(2, 0), "y0": z(2, 0)}, {"axis": 0}),
    ("Slice", {"x": full(4, 3), "n0": ints(0), "n1": ints(5), "n2": ints(0), "n3": ints(-1)}, {}),
    ("Slice", {"x": full(4, 3), "n0": ints(2), "n1": ints(3), "n2": ints(1), "n3": ints(-2)}, {}),
    ("Slice", {"x": full(4, 3), "n0": ints(3), "n1": ints(1)}, {}),
    ("Pad", {"x": z(0, 2), "n": ints(1, 0, 1, 1)}, {}),
    ("Gather", {"x": full(2, 3), "i": np.zeros((0, 2), np.int64)}, {"axis": 1}),
    ("GatherElements", {"x": full(2, 3), "i": np.zeros((0, 3), np.int64)}, {"axis": 1}),
    ("ScatterND", {"x": full(2, 3), "i": np.zeros((0, 1), np.int64), "u": z(0, 3)}, {}),
    ("ScatterElements", {"x": full(2, 3), "i": np.zeros((0, 3), np.int64), "u": z(0, 3)}, {}),
    ("ReduceSum", {"x": z(2, 0), "n": ints(1)}, {}),
    ("ReduceMax", {"x": z(0, 2), "n": ints(0)}, {}),
    ("ReduceProd", {"x": z(2, 0, 3), "n": ints(1)}, {}),
    ("CumSum", {"x": z(2, 0), "n": ints(1)}, {}),
    ("MatMul", {"x": z(2, 0), "w": z(0, 3)}, {}),
    ("MatMul", {"x": z(0, 2, 3), "w": full(3, 4)}, {}),
    ("Gemm", {"x": z(2, 0), "w": z(0, 3), "b": full(3)}, {}),
    ("Conv", {"x": z(0, 2, 4, 4), "w": full(3, 2, 3, 3)}, {}),
    ("ConvTranspose", {"x": z(0, 2, 4, 4), "w": full(2, 3, 3, 3)}, {"strides": (2, 2)}),
    ("MaxPool", {"x": z(0, 2, 4, 4)}, {"kernel_shape": (2, 2)}),
    ("GlobalAveragePool", {"x": z(0, 2, 4, 4)}, {}),
    ("BatchNormalization", {"x": z(0, 2, 4), "s": full(2), "b": full(2), "m": full(2),
                            "v": full(2)}, {}),
    ("LayerNormalization", {"x": z(0, 4), "s": full(4)}, {}),
    ("DepthToSpace", {"x": z(2, 0, 1, 2)}, {"blocksize": 2}),
    ("SpaceToDepth", {"x": z(2, 0, 4, 2)}, {"blocksize": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "arrays", "settings"), CASES, ids=lambda c: c if c else None)
def test_as_the_peer(op: str, arrays: dict[str, Any], settings: dict[str, Any]) -> None:
    fixed = tuple(n for n in arrays if n.startswith("n"))
    model = model_of(op, arrays, fixed, opset=18, **settings)
    feeds = feeds_of(model, arrays)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    np.testing.assert_array_equal(ran(model, arrays), want, strict=True)
    compiled = ts.compile_model(load_onnx(model), ts.cpu(num_cores=1), cache=None)
    np.testing.assert_array_equal(compiled(feeds)["y"], want, strict=True)


@pytest.mark.parametrize(("op", "outputs"), [("TopK", 2), ("Split", 2)])
def test_several_results(op: str, outputs: int) -> None:
    names = tuple(f"y{k}" for k in range(outputs))
    arrays = {"x": full(3, 2), "n": ints(0) if op == "TopK" else ints(0, 3)}
    model = model_of(op, arrays, ("n",), outputs=names, axis=0, types=(F, np.int64 if op == "TopK"
                     else F), opset=18)  # fmt: skip
    feeds = feeds_of(model, arrays)
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    got = ts.compile_model(load_onnx(model), ts.cpu(num_cores=1), cache=None)(feeds)
    for name, w in zip(names, want, strict=True):
        np.testing.assert_array_equal(got[name], w, strict=True)


def test_the_mean_of_nothing_is_no_number() -> None:
    """As in NumPy and in ONNX's own evaluator; the peer gives 0."""
    arrays = {"x": z(0, 2), "n": ints(0)}
    model = model_of("ReduceMean", arrays, ("n",), opset=18, keepdims=0)
    assert np.isnan(ran(model, arrays)).tolist() == [True, True]


def test_the_place_of_an_extreme_among_none() -> None:
    """NumPy has no answer either, unless nobody asks."""
    for axis, keepdims, shape in ((1, 0, (0, 3)), (1, 1, (0, 1, 3)), (0, 1, (1, 0, 3))):
        arrays = {"x": z(0, 0, 3)}
        model = model_of("ArgMax", arrays, axis=axis, keepdims=keepdims, types=(np.int64,))
        assert ran(model, arrays).shape == shape
    with pytest.raises(GraphError, match="no elements"):
        load_onnx(model_of("ArgMin", {"x": z(0, 3)}, axis=0, types=(np.int64,)))


def test_attention_of_no_queries() -> None:
    arrays = {"q": z(1, 2, 0, 4), "k": full(1, 2, 3, 4), "v": full(1, 2, 3, 5)}
    assert ran(model_of("Attention", arrays, opset=23), arrays).shape == (1, 2, 0, 5)


def test_what_is_empty_needs_no_kernel() -> None:
    """Also if it becomes so within a model, whose other parts are computed."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Slice", ["r", "one", "one"], ["none"]),
        helper.make_node("MatMul", ["none", "w"], ["product"]),
        helper.make_node("Concat", ["product", "r"], ["y"], axis=0),
    ]
    feeds = {"x": full(3, 2)}
    constants = {"one": ints(1), "w": full(2, 2)}
    graph = load_onnx(model_of_nodes(nodes, feeds, ["y"], constants))
    assert isinstance(graph, Graph)
    assert [n.op for n in graph.nodes] == ["relu", "concatenate"]
    assert evaluate_program(graph, feeds)["y"].tolist() == feeds["x"].tolist()
