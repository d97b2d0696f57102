"""Functions, ONNX's and a model's own, are the nodes they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from small_models import by_reference, model_of, run

from tilesmith.base.errors import GraphError
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.graph import Graph

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
node = helper.make_node


def reference(target: str, name: str) -> onnx.AttributeProto:
    a = onnx.AttributeProto()
    a.name, a.ref_attr_name, a.type = name, target, onnx.AttributeProto.FLOAT
    return a


def function(
    name: str, inputs: list[str], outputs: list[str], nodes: list[Any], **settings: Any
) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", settings.pop("opset", 18)), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, inputs, outputs, nodes, opsets, **settings)


def scaled() -> onnx.FunctionProto:
    """x times an attribute, which is 2 if it is left out."""
    held = node("Constant", [], ["c"])
    held.attribute.append(reference("factor", "value_float"))
    default = helper.make_attribute("factor", 2.0)
    return function("Scaled", ["x"], ["y"], [held, node("Mul", ["x", "c"], ["y"])],
                    attribute_protos=[default])  # fmt: skip


def call(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return node(op, inputs, outputs, domain="own", **attributes)


def test_a_function_with_an_attribute_is_used_twice() -> None:
    nodes = [call("Scaled", ["x"], ["c"], factor=3.0), call("Scaled", ["c"], ["y"])]
    got = run(nodes, {"x": X}, functions=[scaled()])
    np.testing.assert_allclose(got, X * 6)


def test_a_function_calls_a_function() -> None:
    inner = call("Scaled", ["a"], ["c"])
    inner.attribute.append(reference("by", "factor"))
    outer = function("Outer", ["a", "b"], ["d", "b"], [inner, node("Add", ["c", "b"], ["d"])],
                     attributes=["by"])  # fmt: skip
    nodes = [call("Outer", ["x", "x"], ["y", "z"], by=4.0), call("Outer", ["x", "z"], ["w", ""])]
    settings: Any = {"functions": [scaled(), outer]}
    got = run(nodes, {"x": X}, ["y", "z", "w"], **settings)
    for a, b in zip(got, (X * 5, X, X * 3), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_function_has_an_opset_of_its_own() -> None:
    old = function("Old", ["x"], ["y"], [node("Squeeze", ["x"], ["y"], axes=[0])], opset=11)
    got = run(call("Old", ["x"], ["y"]), {"x": X[None]}, functions=[old])
    np.testing.assert_array_equal(got, X)


def test_the_body_of_an_if_reads_the_values_of_its_function() -> None:
    def branch(op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info("r", 1, None)
        return helper.make_graph([node(op, ["x", "t"], ["r"])], op, [], [out])

    choose = function("Choose", ["c", "x"], ["y"], [
        node("Add", ["x", "x"], ["t"]),
        node("If", ["c"], ["y"], then_branch=branch("Add"), else_branch=branch("Sub")),
    ])  # fmt: skip
    for c in (True, False):
        got = run(call("Choose", ["flag", "x"], ["y"]), {"flag": np.array(c), "x": X},
                  functions=[choose])  # fmt: skip
        np.testing.assert_allclose(got, X * 3 if c else -X)


def test_a_left_out_input_of_a_function() -> None:
    limited = function("Limited", ["x", "low", "high"], ["y"],
                       [node("Clip", ["x", "low", "high"], ["y"])])  # fmt: skip
    got = run(call("Limited", ["x", "", "h"], ["y"]), {"x": X, "h": np.array(0.5, np.float32)},
              functions=[limited])  # fmt: skip
    np.testing.assert_array_equal(got, np.minimum(X, 0.5))


def test_a_function_that_calls_itself_is_refused() -> None:
    a = function("A", ["x"], ["y"], [call("B", ["x"], ["y"])])
    b = function("B", ["x"], ["y"], [call("A", ["x"], ["y"])])
    with pytest.raises(GraphError, match="the function 'A' of domain 'own' calls itself"):
        run(call("A", ["x"], ["y"]), {"x": X}, functions=[a, b])


def test_too_many_inputs_of_a_function() -> None:
    with pytest.raises(GraphError, match="has 2 inputs and 1 outputs; its function takes 1"):
        run(call("Scaled", ["x", "x"], ["y"]), {"x": X}, functions=[scaled()])


@pytest.mark.parametrize(
    ("made", "opset"),
    [
        (node("CenterCropPad", ["x", "s"], ["y"], axes=[1]), 18),
        (node("MeanVarianceNormalization", ["x"], ["y"], axes=[0]), 13),
        (node("AffineGrid", ["t", "g"], ["y"]), 20),
    ],
)
def test_operators_that_onnx_defines_by_functions(made: Any, opset: int) -> None:
    feeds = {"x": X}
    constants = {"s": np.array([7]), "g": np.array([2, 1, 3, 4]),
                 "t": np.arange(12, dtype=np.float32).reshape(2, 2, 3)}  # fmt: skip
    settings: Any = {"constants": constants, "opset": opset}
    np.testing.assert_allclose(run(made, feeds, **settings), by_reference(made, feeds, **settings),
                               rtol=1e-5, atol=1e-6)  # fmt: skip


def test_a_function_needs_no_stage_of_its_own() -> None:
    nodes = [call("Scaled", ["x"], ["y"])]
    model = load_onnx(model_of(nodes, {"x": X}, ["y"], functions=[scaled()]))
    assert isinstance(model, Graph)
    assert [n.op for n in model.nodes] == ["multiply"]
    assert model.nodes[0].origin == "Mul 'small/0/Scaled/1'"
