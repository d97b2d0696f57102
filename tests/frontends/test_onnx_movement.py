"""Operators that move elements: what ONNX's own cases leave out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from small_models import model_of, run

from tilesmith.base.errors import GraphError
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.graph import Graph

X = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
node = helper.make_node


def test_slices_of_old_models() -> None:
    got = run(node("Slice", ["x"], ["y"], starts=[1, -3], ends=[100, -1], axes=[0, 2]), {"x": X},
              opset=9)  # fmt: skip
    np.testing.assert_array_equal(got, X[1:, :, -3:-1])


@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [
        (-1, -(2**63), -1), (10, 0, -2), (0, 2**63 - 1, 3), (-9, 9, 1), (3, 1, 1), (-9, -9, -1),
        (2, -4, -1), (4, -99, -7),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_constant", [True, False])
def test_slices_are_clamped(start: int, stop: int, step: int, is_constant: bool) -> None:
    given = {"s": np.array([start]), "e": np.array([stop]), "a": np.array([-1]),
             "t": np.array([step])}  # fmt: skip
    feeds = {"x": X} if is_constant else {"x": X, **given}
    got = run(
        node("Slice", ["x", "s", "e", "a", "t"], ["y"]), feeds,
        constants=given if is_constant else None,
    )  # fmt: skip
    np.testing.assert_array_equal(got, X[:, :, slice(start, stop, step)])


@pytest.mark.parametrize(
    ("opset", "attributes", "sizes", "want"),
    [
        (11, {"axis": 1}, None, [2, 2]),
        (11, {"axis": -1, "split": [1, 4]}, None, [1, 4]),
        (13, {"axis": 1}, [3, 1], [3, 1]),
        (13, {"axis": 1}, [0, 4], [0, 4]),
        (18, {"axis": 2, "num_outputs": 2}, None, [3, 2]),
        (18, {"axis": 0, "num_outputs": 2}, None, [2, 1]),
    ],
)
def test_split(opset: int, attributes: Any, sizes: Any, want: list[int]) -> None:
    constants = {"s": np.array(sizes)} if sizes else None
    got = run(
        node("Split", ["x", "s"] if sizes else ["x"], ["a", "b"], **attributes), {"x": X},
        ["a", "b"], opset=opset, constants=constants,
    )  # fmt: skip
    axis = attributes["axis"]
    assert [g.shape[axis] for g in got] == want
    np.testing.assert_array_equal(np.concatenate(got, axis), X)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pads_may_be_negative(mode: str) -> None:
    cut = X[:, :3, :4]
    got = run(node("Pad", ["x", "p"], ["y"], mode=mode), {"x": X}, opset=19,
              constants={"p": np.array([1, 2, 0, 0, -1, -1])})  # fmt: skip
    np.testing.assert_array_equal(got, np.pad(cut, [(1, 0), (2, 0), (0, 0)], mode=mode))


def test_pads_of_some_axes_with_a_value() -> None:
    given = {"p": np.array([1, 0, 2, 1]), "v": np.array(np.inf, np.float32), "a": np.array([2, 0])}
    got = run(node("Pad", ["x", "p", "v", "a"], ["y"]), {"x": X}, constants=given)
    want = np.pad(X, [(0, 1), (0, 0), (1, 2)], constant_values=np.inf)
    np.testing.assert_array_equal(got, want)


def test_the_value_of_a_pad_may_come_at_run_time() -> None:
    v = np.array(-3, np.float32)
    nodes = node("Pad", ["x", "p", "v"], ["y"])
    model = load_onnx(model_of([nodes], {"x": X, "v": v}, ["y"],
                               constants={"p": np.array([0, 1, 0, 0, 0, 0])}))  # fmt: skip
    assert isinstance(model, Graph), "one graph: its shape does not depend on the value"


def test_pads_of_old_models() -> None:
    got = run(node("Pad", ["x"], ["y"], pads=[0, 1, 0, 0, 0, 2], value=1.5), {"x": X}, opset=10)
    np.testing.assert_array_equal(got, np.pad(X, [(0, 0), (1, 0), (0, 2)], constant_values=1.5))


@pytest.mark.parametrize(
    ("attributes", "want"),
    [
        ({"value_int": 3}, np.array(3)),
        ({"value_ints": [3, -1]}, np.array([3, -1])),
        ({"value_float": 0.5}, np.array(0.5, np.float32)),
        ({"value_floats": [0.5, 2]}, np.array([0.5, 2], np.float32)),
    ],
)
def test_constants(attributes: Any, want: Any) -> None:
    got = run([node("Constant", [], ["c"], **attributes), node("Identity", ["c"], ["y"])], {})
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("opset", [11, 13])
def test_squeeze_and_unsqueeze(opset: int) -> None:
    at = {"axes": [0, -1]}
    if opset < 13:
        nodes = [node("Unsqueeze", ["x"], ["u"], **at), node("Squeeze", ["u"], ["y"], **at)]
        got = run(nodes, {"x": X}, ["u", "y"], opset=opset)
    else:
        nodes = [node("Unsqueeze", ["x", "a"], ["u"]), node("Squeeze", ["u", "a"], ["y"])]
        got = run(nodes, {"x": X, "a": np.array([0, -1])}, ["u", "y"], opset=opset)
    assert [g.shape for g in got] == [(1, 3, 4, 5, 1), (3, 4, 5)]


@pytest.mark.parametrize(
    ("given", "dtype"),
    [((1, 10, 3), "int32"), ((10, 1, -3), "int64"), ((3, 3, 1), "int64"), ((5, 1, 2), "int32"),
     ((0, 1, 0.25), "float32"), ((1, -1, -0.75), "float64")],
)  # fmt: skip
def test_range(given: tuple[float, ...], dtype: str) -> None:
    feeds = dict(zip("abc", (np.array(v, dtype) for v in given), strict=True))
    got = run(node("Range", ["a", "b", "c"], ["y"]), feeds)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, np.arange(*given, dtype=dtype))


def test_shapes_fold_away_in_a_model_with_open_sizes() -> None:
    nodes = [
        node("Shape", ["x"], ["s"], start=-1),
        node("Concat", ["m", "s"], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["r"]),
        node("Transpose", ["r"], ["y"]),
    ]
    got = run(nodes, {"x": X}, is_open=True, constants={"m": np.array([-1])})
    np.testing.assert_array_equal(got, X.reshape(-1, 5).T)


@pytest.mark.parametrize(
    ("made", "constants", "message"),
    [
        (node("Reshape", ["x", "c"], ["y"], name="r"), {"c": [7, -1]}, "do not fill the shape"),
        (node("Reshape", ["x", "c"], ["y"], name="r"), {"c": [-2, 3]}, "has a negative extent"),
        (node("Squeeze", ["x", "c"], ["y"], name="r"), {"c": [1]}, "dimension 1 of .* is not 1"),
        (node("Unsqueeze", ["x", "c"], ["y"], name="r"), {"c": [1, 1]}, "name a dimension twice"),
        (node("Transpose", ["x"], ["y"], name="r", perm=[0, 0, 1]), {}, "each dimension"),
        (node("Slice", ["x", "c", "c", "c", "z"], ["y"], name="r"), {"c": [1], "z": [0]},
         "a step is 0"),
        (node("Slice", ["x", "c", "z"], ["y"], name="r"), {"c": [1], "z": [0, 1]},
         "differ in length"),
        (node("Split", ["x", "c"], ["y", "z"], name="r"), {"c": [1, 1]}, "do not divide"),
        (node("Expand", ["x", "c"], ["y"], name="r"), {"c": [7]}, "does not broadcast to"),
        (node("Tile", ["x", "c"], ["y"], name="r"), {"c": [7]}, "one number"),
        (node("Pad", ["x", "c"], ["y"], name="r"), {"c": [7]}, "two numbers for each"),
        (node("Pad", ["x", "c"], ["y"], name="r"), {"c": [-4, 0, 0, 0, 0, 0]}, "take away more"),
        (node("Pad", ["x", "c"], ["y"], name="r", mode="odd"), {"c": [1] * 6}, "mode 'odd'"),
        (node("Concat", ["x", "c"], ["y"], name="r", axis=0), {"c": [1]}, "of types"),
        (node("Flatten", ["x"], ["y"], name="r", axis=4), {}, "axis 4 does not exist"),
        (node("Trilu", ["c"], ["y"], name="r"), {"c": [1]}, "must be a matrix"),
        (node("Constant", [], ["y"], name="r"), {}, "it has no value"),
    ],
)  # fmt: skip
def test_errors_name_the_node(made: Any, constants: Any, message: str) -> None:
    held = {k: np.array(v) for k, v in constants.items()}
    with pytest.raises(GraphError, match=f"{made.op_type} 'r': .*{message}"):
        run(made, {"x": X}, constants=held)
