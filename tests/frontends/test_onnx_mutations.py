"""Damaged models: each ends in arrays or in a TilesmithError, in bounded time and memory. Many
more are tried by `python -m bench.mutations`. Below them, what mutations have found.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.support.onnx_mutations import mutation
from tests.support.onnx_trials import SEED_COUNT, Trial, trials
from tests.support.thorough import by_turns
from tilesmith.base.errors import GraphError
from tilesmith.frontends.onnx.load import load
from tilesmith.graph.oracle import evaluate_program
from tilesmith.tune.compile_model import compile_model

COUNTS = {"oracle": by_turns(135, 270), "compiled": by_turns(15, 30)}


def test_a_number_stands_for_one_mutation() -> None:
    assert mutation(7) == mutation(7)
    assert mutation(7) != mutation(7 + SEED_COUNT)


def test_the_models_run_when_they_are_whole() -> None:
    """Else nothing would be learnt from damage to them."""
    whole = list(trials(-SEED_COUNT, 0, "oracle"))
    assert [t for t in whole if t.outcome != "ran"] == []


@pytest.mark.parametrize("mode", COUNTS)
def test_damaged_models_end_in_an_answer_or_an_error(mode: str) -> None:
    first = COUNTS[mode].start + (0 if mode == "oracle" else 10**6)
    end = first + len(COUNTS[mode])
    tried: list[Trial] = list(trials(first, end, mode))
    assert [t.number for t in tried] == list(range(first, end))
    assert [t for t in tried if not t.is_good] == []
    assert {t.outcome for t in tried} == {"ran", "refused"}


def model_of(
    nodes: list[onnx.NodeProto], inputs: dict[str, list[int]], outputs: list[str], **constants: Any
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, 1, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, 1, None) for n in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_a_compiled_scan_over_numbers() -> None:
    """Each step takes a number of NumPy, which has no lasting address."""
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "v"], ["t"]), helper.make_node("Mul", ["t", "t"], ["u"])],
        "b", [helper.make_tensor_value_info(n, 1, None) for n in "sv"],
        [helper.make_tensor_value_info(n, 1, None) for n in "tu"],
    )  # fmt: skip
    node = helper.make_node("Scan", ["x", "y"], ["last", "all"], body=body, num_scan_inputs=1)
    model = load(model_of([node], {"x": [2, 3], "y": [4]}, ["last", "all"]))
    feeds = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "y": np.arange(4, dtype=np.float32),
    }
    wanted = evaluate_program(model, feeds)
    for name, got in compile_model(model)(feeds).items():
        np.testing.assert_array_equal(got, wanted[name])


def test_split_into_more_parts_than_it_has_outputs() -> None:
    node = helper.make_node("Split", ["x"], ["a", "b"], axis=0, num_outputs=10**12, name="parts")
    with pytest.raises(GraphError, match="Split 'parts': num_outputs"):
        load(model_of([node], {"x": [4]}, ["a", "b"]))
