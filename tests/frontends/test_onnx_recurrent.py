"""RNN, GRU and LSTM of ONNX models, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from one_node import feeds_of, model_of, ran_all

from tilesmith.base.errors import GraphError
from tilesmith.frontends.onnx.loop_form import MAX_STEPS
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.graph import Graph
from tilesmith.tune.compile_model import compile_model

RNG = np.random.default_rng(9)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def normal(*shape: int) -> Any:
    return (RNG.standard_normal(shape) * 0.7).astype(np.float32)


def given(op: str, ways: int = 1, steps: int = 4, batch: int = 3, full: bool = True) -> Any:
    """The inputs of a node: 5 features, 2 hidden."""
    n = GATES[op] * 2
    arrays = {"x": normal(steps, batch, 5), "w": normal(ways, n, 5), "r": normal(ways, n, 2)}
    if full:
        arrays |= {"b": normal(ways, 2 * n), "n": np.array([2, 4, 1], np.int32)[:batch]}
        arrays["h"] = normal(ways, batch, 2)
        if op == "LSTM":
            arrays |= {"c": normal(ways, batch, 2), "p": normal(ways, 6)}
    return arrays


def model(op: str, arrays: Any, fixed: Any = (), **settings: Any) -> Any:
    outputs = ("y", "yh", "yc") if op == "LSTM" else ("y", "yh")
    return model_of(op, arrays, fixed, outputs=outputs, opset=14, hidden_size=2, **settings)


def same_as_runtime(m: Any, arrays: Any) -> None:
    session = onnxruntime.InferenceSession(m.SerializeToString())
    want = session.run(None, feeds_of(m, arrays))
    for (name, got), w in zip(ran_all(m, arrays).items(), want, strict=True):
        np.testing.assert_allclose(got, w, rtol=2e-4, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("full", [True, False], ids=["all inputs", "fewest inputs"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_directions_lengths_and_states(op: str, full: bool, direction: str) -> None:
    arrays = given(op, 2 if direction == "bidirectional" else 1, full=full)
    same_as_runtime(model(op, arrays, direction=direction), arrays)


SETTINGS = [
    ("RNN", {"clip": 0.4}),
    ("RNN", {"activations": ["Relu"]}),
    ("RNN", {"activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.1]}),
    ("RNN", {"activations": ["ScaledTanh"], "activation_alpha": [0.5], "activation_beta": [2.0]}),
    ("GRU", {"linear_before_reset": 1}),
    ("GRU", {"clip": 0.3}),
    ("GRU", {"activations": ["HardSigmoid", "LeakyRelu"], "activation_alpha": [0.3, 0.2],
             "activation_beta": [0.4]}),
    ("LSTM", {"input_forget": 1}),
    ("LSTM", {"clip": 0.3}),
    ("LSTM", {"activations": ["Sigmoid", "Softsign", "Elu"], "activation_alpha": [0.7]}),
    ("LSTM", {"activations": ["HardSigmoid", "Softplus", "ThresholdedRelu"],
              "activation_alpha": [0.2, 0.1], "activation_beta": [0.5]}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "settings"), SETTINGS, ids=str)
def test_settings(op: str, settings: Any) -> None:
    arrays = given(op)
    if op == "LSTM" and "input_forget" in settings:
        del arrays["p"]
    same_as_runtime(model(op, arrays, **settings), arrays)


def test_linear_before_reset_without_biases() -> None:
    arrays = given("GRU", full=False)
    same_as_runtime(model("GRU", arrays, linear_before_reset=1), arrays)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_layout_with_the_batch_first(op: str) -> None:
    arrays = given(op, ways=2)
    want = ran_all(model(op, arrays, direction="bidirectional"), arrays)
    turned = dict(arrays)
    for name in {"x", "h", "c"} & set(arrays):
        turned[name] = np.ascontiguousarray(np.swapaxes(arrays[name], 0, 1))
    got = ran_all(model(op, turned, direction="bidirectional", layout=1), turned)
    np.testing.assert_array_equal(got["y"], np.transpose(want["y"], (2, 0, 1, 3)))
    for name in set(want) - {"y"}:
        np.testing.assert_array_equal(got[name], np.swapaxes(want[name], 0, 1))


def test_the_inputs_of_all_steps_are_one_product() -> None:
    arrays = given("LSTM", full=False, steps=3)
    graph = load_onnx(model("LSTM", arrays, ("w", "r")))
    assert isinstance(graph, Graph)
    ops = [n.op for n in graph.nodes]
    # The first state is 0, so that what it gives is known ahead.
    assert ops.count("matmul") == 3
    assert ops.count("lstm_cell") == 3
    shapes = [graph.values[n.outputs[0]].shape for n in graph.nodes if n.op == "matmul"]
    assert shapes == [(9, 8), (3, 8), (3, 8)]


LONG = MAX_STEPS + 13
LONG_SETTINGS: Any = [
    ("RNN", {"direction": "bidirectional", "clip": 0.4, "activation_alpha": [0.5, 0.7],
             "activation_beta": [0.1], "activations": ["ScaledTanh", "Affine"]}, ("w", "r", "b")),
    ("GRU", {"direction": "reverse", "activations": ["HardSigmoid", "LeakyRelu"], "clip": 0.3,
             "activation_alpha": [0.3, 0.2], "activation_beta": [0.4]}, ()),
    ("GRU", {"linear_before_reset": 1}, ("w", "r", "b")),
    ("LSTM", {"direction": "bidirectional"}, ()),
]  # fmt: skip


@pytest.mark.parametrize(("op", "settings", "fixed"), LONG_SETTINGS, ids=str)
def test_a_long_sequence_is_run_in_pieces(op: str, settings: Any, fixed: Any) -> None:
    ways = 2 if settings.get("direction") == "bidirectional" else 1
    arrays = given(op, ways, LONG, batch=3) | {"n": np.array([LONG, 5, MAX_STEPS], np.int32)}
    m = model(op, arrays, fixed, **settings)
    assert not isinstance(load_onnx(m), Graph)
    same_as_runtime(m, arrays)


def test_a_long_sequence_with_the_batch_first_and_the_last_state_only() -> None:
    arrays = given("GRU", 1, LONG) | {"n": np.array([LONG, 5, MAX_STEPS], np.int32)}
    want = ran_all(model("GRU", arrays), arrays)
    turned = {n: np.swapaxes(a, 0, 1).copy() if n in "xh" else a for n, a in arrays.items()}
    m = model("GRU", turned, layout=1)
    m.graph.node[0].output[0] = ""
    del m.graph.output[0]
    got = ran_all(m, turned)
    assert set(got) == {"yh"}
    np.testing.assert_array_equal(got["yh"], np.swapaxes(want["yh"], 0, 1))


def test_a_long_sequence_is_compiled() -> None:
    arrays = given("GRU", 1, LONG)
    arrays["n"] = np.array([LONG, 5, 40], np.int32)
    m = model("GRU", arrays, ("w", "r", "b"))
    want = ran_all(m, arrays)
    got = compile_model(load_onnx(m))(feeds_of(m, arrays))
    for name, w in want.items():
        np.testing.assert_allclose(got[name], w, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "change", "settings", "words"),
    [
        ("LSTM", {"w": normal(1, 6, 5)}, {}, "do not fit"),
        ("LSTM", {}, {"direction": "bidirectional"}, "do not fit"),
        ("LSTM", {}, {"direction": "sideways"}, "it must be forward"),
        ("LSTM", {"p": normal(1, 8)}, {}, "peepholes"),
        ("GRU", {}, {"activations": ["Tanh"]}, "there must be 2"),
        ("GRU", {}, {"activations": ["Tanh", "Sine"]}, "'Sine' is not known"),
        ("RNN", {"b": normal(1, 3)}, {}, "must be of shape"),
        ("RNN", {"n": np.array([1, 2], np.int32)}, {}, "must have 3 whole numbers"),
        ("RNN", {"h": normal(1, 2, 2)}, {}, "does not fit"),
        ("RNN", {"x": normal(0, 3, 5)}, {}, "is empty"),
        ("RNN", {"x": normal(LONG, 3, 5)}, {"activations": ["Sine"]}, "'Sine' is not known"),
        ("RNN", {"x": normal(LONG, 3, 5)}, {"direction": "sideways"}, "it must be forward"),
    ],
)
def test_errors_name_the_node(op: str, change: Any, settings: Any, words: str) -> None:
    with pytest.raises(GraphError, match=words) as caught:
        load_onnx(model(op, given(op) | change, **settings))
    assert f"{op} 'n'" in str(caught.value)
