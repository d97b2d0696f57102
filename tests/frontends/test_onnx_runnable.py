"""A model that nothing can run is refused when it is loaded, whatever its sizes are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_models import model_of

from tilesmith.base.errors import GraphError
from tilesmith.frontends.onnx import operators
from tilesmith.frontends.onnx.call import OnHost
from tilesmith.frontends.open import load_onnx

X = np.zeros((2, 3), np.float32)
node = helper.make_node


def load(nodes: list[Any], functions: Any = (), extra: str = "") -> Any:
    model = model_of(nodes, {"x": X}, ["y"], is_open=True, functions=functions)
    if extra:
        model.opset_import.append(helper.make_opsetid(extra, 1))
    return load_onnx(model)


def branch(inner: Any) -> onnx.GraphProto:
    out = helper.make_tensor_value_info("r", TensorProto.FLOAT, None)
    return helper.make_graph([inner], "branch", [], [out])


def test_an_unknown_operator() -> None:
    with pytest.raises(GraphError, match="Nonsense 'n' has no kernel"):
        load([node("Relu", ["x"], ["a"]), node("Nonsense", ["a"], ["y"], name="n")])


def test_an_unknown_domain() -> None:
    with pytest.raises(GraphError, match="FusedThing 'n' has no kernel"):
        load([node("FusedThing", ["x"], ["y"], name="n", domain="com.example")],
             extra="com.example")  # fmt: skip


def test_in_a_branch() -> None:
    unknown = node("Nonsense", ["x"], ["r"], name="n")
    both = {"then_branch": branch(node("Relu", ["x"], ["r"])), "else_branch": branch(unknown)}
    nodes = [node("Size", ["x"], ["s"]), node("Cast", ["s"], ["c"], to=TensorProto.BOOL),
             node("If", ["c"], ["y"], **both)]  # fmt: skip
    with pytest.raises(GraphError, match="Nonsense 'n' has no kernel"):
        load(nodes)


def test_in_a_function() -> None:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    inner = helper.make_function("own", "Inner", ["x"], ["y"],
                                 [node("Nonsense", ["x"], ["y"], name="n")], opsets)  # fmt: skip
    outer = helper.make_function("own", "Outer", ["x"], ["y"],
                                 [node("Inner", ["x"], ["y"], domain="own")], opsets)  # fmt: skip
    with pytest.raises(GraphError, match="Nonsense 'n' has no kernel"):
        load([node("Outer", ["x"], ["y"], domain="own")], functions=[inner, outer])


def test_a_loop_without_a_body() -> None:
    with pytest.raises(GraphError, match="Loop 'n' has no graph 'body'"):
        load([node("Loop", ["", "", "x"], ["y"], name="n")])


def test_sequences_between_tensors_run_on_the_host() -> None:
    load([node("SplitToSequence", ["x"], ["s"], name="n"),
          node("ConcatFromSequence", ["s"], ["y"], axis=0)])  # fmt: skip


def test_what_runs_on_the_host_is_accepted() -> None:
    load([node("NonZero", ["x"], ["y"])])
    load([node("Unique", ["x"], ["y"])])
    load([node("MelWeightMatrix", ["x"] * 5, ["y"])])


def test_an_operator_of_the_host_that_the_package_does_not_have(monkeypatch: Any) -> None:
    monkeypatch.setitem(operators.IMPORTERS, "Nonsense", OnHost("it is only a test"))
    with pytest.raises(GraphError, match=r"Nonsense 'n' has no kernel \(it is only a test\)"):
        load([node("Nonsense", ["x"], ["y"], name="n")])


def test_attributes_of_the_caller_are_not_known_yet() -> None:
    opsets = [helper.make_opsetid("", 18)]
    inner = node("RandomNormal", [], ["y"], name="n")
    inner.attribute.add(name="shape", ref_attr_name="size", type=onnx.AttributeProto.INTS)
    own = helper.make_function("own", "Noise", [], ["y"], [inner], opsets, ["size"])
    load([node("Noise", [], ["r"], domain="own", size=[2, 3]), node("Add", ["x", "r"], ["y"])],
         functions=[own])  # fmt: skip
