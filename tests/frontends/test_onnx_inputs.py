"""The inputs of an imported model are those that it declares, in that order and of those sizes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_models import model_of

import tilesmith as ts
from tilesmith.base.errors import GraphError
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.graph import Graph
from tilesmith.graph.oracle import evaluate_program

FEEDS = {"a": np.ones(3, np.float32), "idle": np.ones(2, np.int64), "b": np.full(3, 4, np.float32)}


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_an_input_that_no_node_reads_is_given_like_the_others(is_open: bool) -> None:
    node = helper.make_node("Sub", ["b", "a"], ["y"])
    model = ts.compile_model(load_onnx(model_of([node], FEEDS, ["y"], is_open=is_open)))
    assert [s.name for s in model.inputs] == ["a", "idle", "b"]
    assert model(FEEDS)["y"].tolist() == [3, 3, 3]


def product(a: list[int | None], b: list[int | None]) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, dims)
        for n, dims in zip("ab", (a, b), strict=True)
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [-1, -1])]
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("size", [None, -1, -7])
def test_open_dimensions_without_names_are_called_by_their_places(size: int | None) -> None:
    """Exporters leave the size out, or write a negative one."""
    model = product([size, 2], [2, size])
    assert [str(s) for s in load_onnx(model).inputs] == ["a: float32[a.0, 2]", "b: float32[2, b.1]"]
    feeds = {"a": np.ones((3, 2), np.float32), "b": np.ones((2, 5), np.float32)}
    for dims in ({}, {"a.0": 3}, {"a.0": 3, "b.1": 5}):
        got = evaluate_program(load_onnx(model, dims=dims), feeds)["y"]
        assert got.tolist() == [[2] * 5] * 3
    with pytest.raises(GraphError, match=r"open dimensions are a\.0, b\.1"):
        load_onnx(model, dims={"?": 4})


def test_a_size_of_0_is_that() -> None:
    graph = load_onnx(product([0, 2], [2, 3]))
    assert isinstance(graph, Graph)
    assert [str(v) for v in (graph.values["a"], graph.values["y"])] == [
        "a: float32[0, 2]", "y: float32[0, 3]",
    ]  # fmt: skip
