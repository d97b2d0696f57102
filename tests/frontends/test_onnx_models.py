"""ONNX's collections of whole models, compiled. The oracle would take minutes for the nine large
architectures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from model_cases import COLLECTIONS, ModelCase, model_cases, model_outcome
from onnx import helper

import tilesmith as ts
from tilesmith.base.errors import GraphError
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.oracle import evaluate_program

CASES = model_cases()
SMALL = [n for n, c in CASES.items() if c.collection in COLLECTIONS]


def test_all_collections_are_there() -> None:
    counts = {k: sum(c.collection == k for c in CASES.values()) for k in (*COLLECTIONS, "light")}
    assert min(counts.values()) > 0


def compiled(model: Any, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
    return ts.compile_model(model, ts.cpu(num_cores=1), cache=None)(feeds)


LIGHT = [n for n, c in CASES.items() if c.collection == "light"]
# One with the schedules that users get, found and built by several processes.
WHOLE = {"light/squeezenet": pytest.mark.as_users_compile}


@pytest.mark.turns(5)
@pytest.mark.parametrize("name", [pytest.param(n, marks=WHOLE.get(n, ())) for n in LIGHT])
def test_a_real_architecture(name: str) -> None:
    result = model_outcome(CASES[name], compiled)
    assert result.kind == "passed", result.text


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", SMALL)
def test_a_small_model(name: str) -> None:
    case: ModelCase = CASES[name]
    result = model_outcome(case, compiled)
    if case.reason:  # strings and training may be refused, but never run wrong
        assert result.kind in ("passed", "refused")
    else:
        assert result.kind == "passed", result.text


class TestOpset6:
    """The second input of a binary operator lies where `axis` says."""

    def model(self, op: str, shapes: tuple[list[int], list[int]], **attributes: int) -> bytes:
        inputs = [helper.make_tensor_value_info(n, 1, s) for n, s in zip("xy", shapes, strict=True)]
        graph = helper.make_graph(
            [helper.make_node(op, ["x", "y"], ["z"], name="old", **attributes)], "g", inputs,
            [helper.make_tensor_value_info("z", 1, None)],
        )  # fmt: skip
        made: onnx.ModelProto = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=3
        )
        return made.SerializeToString()

    @pytest.mark.parametrize(
        ("shape", "axis"), [([3], 1), ([3, 4], 1), ([2], 0), ([4], -1), ([2, 3, 4], 0)]
    )
    def test_axis(self, shape: list[int], axis: int) -> None:
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        y = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        model = load_onnx(self.model("Sub", ([2, 3, 4], shape), broadcast=1, axis=axis))
        got = evaluate_program(model, {"x": x, "y": y})["z"]
        behind = 3 - axis % 3 - len(shape)
        np.testing.assert_array_equal(got, x - y.reshape(*shape, *[1] * behind))

    def test_without_axis_the_ends_are_aligned(self) -> None:
        x, y = np.ones((2, 3), np.float32), np.arange(3, dtype=np.float32)
        model = load_onnx(self.model("Add", ([2, 3], [3]), broadcast=1))
        np.testing.assert_array_equal(evaluate_program(model, {"x": x, "y": y})["z"], x + y)

    def test_an_axis_that_does_not_exist(self) -> None:
        with pytest.raises(GraphError, match=r"Add 'old': .*axis 2"):
            load_onnx(self.model("Add", ([2, 3], [3]), broadcast=1, axis=2))


def test_what_nothing_can_run_is_refused_at_load() -> None:
    """Also where the sizes are open, so that nothing is imported yet, and in a branch."""
    info = helper.make_tensor_value_info
    strange = helper.make_node("Strange", ["x"], ["y"], name="it")
    branch = helper.make_graph([strange], "b", [], [info("y", 1, None)])
    nodes = [helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)]
    inputs = [info("x", 1, ["n"]), info("c", onnx.TensorProto.BOOL, [])]
    for given, output in (([strange], "y"), (nodes, "z")):
        graph = helper.make_graph(given, "g", inputs, [info(output, 1, None)])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        with pytest.raises(GraphError, match="Strange 'it'"):
            load_onnx(model)


class TestSequences:
    def model(self, nodes: list[onnx.NodeProto], output: str) -> onnx.ModelProto:
        info = helper.make_tensor_value_info
        graph = helper.make_graph(nodes, "g", [info("x", 1, ["n", 2])], [info(output, 1, None)])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def test_between_compiled_nodes(self) -> None:
        nodes = [
            helper.make_node("Relu", ["x"], ["r"]),
            helper.make_node("SplitToSequence", ["r"], ["parts"], axis=0),
            helper.make_node("Neg", ["x"], ["minus"]),
            helper.make_node("Identity", ["parts"], ["same"]),
            helper.make_node("SequenceInsert", ["same", "minus"], ["more"]),
            helper.make_node("ConcatFromSequence", ["more"], ["joined"], axis=0),
            helper.make_node("Add", ["joined", "joined"], ["y"]),
        ]
        model = load_onnx(self.model(nodes, "y"))
        x = np.arange(6, dtype=np.float32).reshape(3, 2) - 2
        got = evaluate_program(model, {"x": x})["y"]
        np.testing.assert_array_equal(got, 2 * np.concatenate([np.maximum(x, 0), -x]))

    def test_what_cannot_hold_one(self) -> None:
        made = helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0, name="split")
        x = {"x": np.ones((3, 2), np.float32)}
        for nodes, output, why in (
            ([made], "parts", "'parts' is a sequence"),
            ([made, helper.make_node("Relu", ["parts"], ["y"], name="r")], "y", "Relu 'r'"),
        ):
            with pytest.raises(GraphError, match=why):
                evaluate_program(load_onnx(self.model(nodes, output)), x)
