"""Models that ask for more than there is: each is refused at once, by the name of the node."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tilesmith.base.errors import GraphError
from tilesmith.frontends.onnx import program
from tilesmith.frontends.onnx.load import load
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph
from tilesmith.ops.elementwise import add

ONE = np.ones((2, 2), np.float32)


def model_of(op: str, *inputs: Any, **attributes: Any) -> onnx.ModelProto:
    """One node whose inputs are constants, but for the first where that is None."""
    names = [f"i{k}" for k in range(len(inputs))]
    given = [
        helper.make_tensor_value_info(n, 1, [2, 2])
        for n, a in zip(names, inputs, strict=True)
        if a is None
    ]
    constants = [
        numpy_helper.from_array(np.asarray(a), n)
        for n, a in zip(names, inputs, strict=True)
        if a is not None
    ]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], name="big", **attributes)], "g", given,
        [helper.make_tensor_value_info("y", 1, None)], constants,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def ints(*numbers: int) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.int64)


BOMBS = {
    "ConstantOfShape": model_of("ConstantOfShape", ints(10**4, 10**4, 10**4)),
    "Expand": model_of("Expand", None, ints(10**8, 10**4, 2, 2)),
    "Tile": model_of("Tile", None, ints(10**9, 10**9)),
    "Pad": model_of("Pad", None, ints(10**9, 10**9, 10**9, 10**9)),
    "Range": model_of("Range", np.int64(0), np.int64(10**18), np.int64(1)),
    "Resize": model_of(
        "Resize", None, np.zeros(0, np.float32), np.array([1e9, 1e9], np.float32), mode="nearest"
    ),
    "empty but wide": model_of("ConstantOfShape", ints(2**40, 0, 2**40)),
    "high rank": model_of("Reshape", None, ints(2, 2, *[1] * 60)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_value_that_no_memory_holds(name: str) -> None:
    with pytest.raises(GraphError, match="big"):
        load(BOMBS[name])


def test_a_large_constant_is_not_folded() -> None:
    """It would take as long to load as to run, and stay in memory."""
    graph = load(model_of("ConstantOfShape", ints(2**14, 2**13)))
    assert isinstance(graph, Graph)
    assert len(graph.nodes) == 1
    small = load(model_of("ConstantOfShape", ints(2**4, 2**3)))
    assert isinstance(small, Graph)
    assert not small.nodes


def test_folding_stops_when_it_has_taken_its_time() -> None:
    builder = GraphBuilder()
    builder._folder.steps = 100
    x = builder.constant(np.ones(8, np.float32))
    for _ in range(20):
        x = builder.add(add, x, x)
    graph = builder.finish({"y": x})
    assert len(graph.nodes) == 20 - 100 // 8


def test_doubling_is_refused_where_it_becomes_too_large() -> None:
    nodes = [
        helper.make_node("Concat", [f"v{k}", f"v{k}"], [f"v{k + 1}"], axis=0) for k in range(60)
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("v0", 1, [2, 2])],
        [helper.make_tensor_value_info("v60", 1, None)],
    )  # fmt: skip
    with pytest.raises(GraphError, match="memory"):
        load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))


def test_functions_that_call_each_other_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 functions of two nodes, which stand for 2^30 nodes."""
    monkeypatch.setattr(program, "_MAX_PUT_IN", 2000)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    functions = [
        helper.make_function(
            "own", f"f{k}", ["a"], ["c"],
            [helper.make_node(f"f{k + 1}" if k < 29 else "Relu", [x], [y],
                              domain="own" if k < 29 else "") for x, y in (("a", "b"), ("b", "c"))],
            opsets,
        )
        for k in range(30)
    ]  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("f0", ["x"], ["y"], domain="own")], "g",
        [helper.make_tensor_value_info("x", 1, [2, 2])],
        [helper.make_tensor_value_info("y", 1, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)
    with pytest.raises(GraphError, match="more than 2000 nodes"):
        load(model)
