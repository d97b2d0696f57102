"""Reductions, running sums and softmax of ONNX models, against NumPy, SciPy and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
import scipy.special
from one_node import feeds_of, model_of, ran

import tilesmith as ts
from tilesmith.base.errors import GraphError
from tilesmith.frontends.open import load_onnx

RNG = np.random.default_rng(5)
REDUCTIONS = {
    "ReduceL1": lambda x, **s: np.sum(np.abs(x), **s),
    "ReduceL2": lambda x, **s: np.sqrt(np.sum(x * x, **s)),
    "ReduceLogSum": lambda x, **s: np.log(np.sum(x, **s)),
    "ReduceLogSumExp": lambda x, **s: scipy.special.logsumexp(x, **s),
    "ReduceMax": np.max,
    "ReduceMean": np.mean,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceSum": np.sum,
    "ReduceSumSquare": lambda x, **s: np.sum(x * x, **s),
}


def positive(*shape: int, dtype: Any = np.float32) -> Any:
    return (RNG.random(shape) + 0.5).astype(dtype)


def by_onnxruntime(model: Any, arrays: Any) -> Any:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds_of(model, arrays))[0]


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("axes", [None, (1,), (-1, 0), (0, 1, 2)], ids=str)
def test_axes_are_attributes_or_inputs(op: str, axes: tuple[int, ...] | None) -> None:
    x = positive(3, 4, 5)
    for keepdims in (0, 1):
        want = REDUCTIONS[op](x.astype(np.float64), axis=axes, keepdims=bool(keepdims))
        given = {} if axes is None else {"axes": axes}
        old = model_of(op, {"x": x}, opset=11, keepdims=keepdims, **given)
        arrays = {"x": x} if axes is None else {"x": x, "axes": np.array(axes)}
        for fixed in ((), ("axes",)):
            new = model_of(op, arrays, fixed if axes else (), opset=18, keepdims=keepdims)
            for model in (old, new):
                got = ran(model, arrays)
                assert got.shape == np.shape(want)
                assert got.dtype == np.float32
                np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_over_no_axes_only_the_function_remains(op: str) -> None:
    arrays = {"x": positive(3, 4), "axes": np.array([], np.int64)}
    got = ran(model_of(op, arrays, ("axes",), opset=18, noop_with_empty_axes=1), arrays)
    x = arrays["x"].astype(np.float64)
    want = REDUCTIONS[op](x[None], axis=0)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    everything = ran(model_of(op, arrays, ("axes",), opset=18), arrays)
    assert everything.shape == (1, 1)


@pytest.mark.parametrize(
    ("op", "want"),
    [("ReduceSum", 0), ("ReduceProd", 1), ("ReduceMax", -np.inf), ("ReduceMin", np.inf),
     ("ReduceL1", 0), ("ReduceL2", 0), ("ReduceSumSquare", 0), ("ReduceLogSum", -np.inf),
     ("ReduceLogSumExp", -np.inf), ("ReduceMean", np.nan)],
)  # fmt: skip
def test_of_nothing(op: str, want: float) -> None:
    arrays = {"x": np.zeros((2, 0, 3), np.float32), "axes": np.array([1])}
    model = model_of(op, arrays, ("axes",), opset=18)
    for got in (
        ran(model, arrays),
        ts.compile_model(load_onnx(model))(feeds_of(model, arrays))["y"],
    ):
        np.testing.assert_array_equal(got, np.full((2, 1, 3), want, np.float32))


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceL1", "ReduceSumSquare"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32"])
def test_integers_stay_integers(op: str, dtype: str) -> None:
    x = RNG.integers(0 if dtype[0] == "u" else -50, 50, (6, 7)).astype(dtype)
    got = ran(model_of(op, {"x": x}, opset=13, axes=(1,)) if op != "ReduceSum" else
              model_of(op, {"x": x, "a": np.array([1])}, ("a",), opset=13), {"x": x})  # fmt: skip
    assert got.dtype == dtype
    want = REDUCTIONS[op](x.astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_array_equal(got, np.trunc(want).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision_is_summed_in_float32(dtype: Any) -> None:
    arrays = {"x": np.full((1, 5000), 1.0).astype(dtype), "a": np.array([1])}
    got = ran(model_of("ReduceSum", arrays, ("a",), opset=13), arrays)
    assert got.dtype == dtype
    np.testing.assert_allclose(got.astype(np.float32), 5000, rtol=0.01)


def test_log_sum_exp_of_large_and_infinite_numbers() -> None:
    inf = np.inf
    x = np.array([[1000, 1000], [-1000, -1001], [inf, 1], [-inf, 1], [-inf, -inf]], np.float32)
    got = ran(model_of("ReduceLogSumExp", {"x": x}, opset=13, axes=(1,), keepdims=0), {"x": x})
    with np.errstate(all="ignore"):
        want = scipy.special.logsumexp(x.astype(np.float64), axis=1)
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.float16, np.float64])
def test_extremes_of_every_type(op: str, dtype: Any) -> None:
    arrays = {"x": RNG.integers(0, 2, (4, 3)).astype(dtype), "a": np.array([0])}
    model = model_of(op, arrays, ("a",), opset=20, keepdims=0)
    want = REDUCTIONS[op](arrays["x"], axis=0)
    for got in (
        ran(model, arrays),
        ts.compile_model(load_onnx(model))(feeds_of(model, arrays))["y"],
    ):
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("length", [1, 5, 64, 65, 200])
def test_running_sums_of_any_length(op: str, length: int, exclusive: int, reverse: int) -> None:
    arrays = {"x": RNG.uniform(0.9, 1.1, (2, length, 3)), "axis": np.array(-2)}
    model = model_of(op, arrays, ("axis",), opset=26, exclusive=exclusive, reverse=reverse)
    x = arrays["x"][:, ::-1] if reverse else arrays["x"]
    want = (np.cumsum if op == "CumSum" else np.cumprod)(x, axis=1)
    if exclusive:
        first = np.full((2, 1, 3), 0.0 if op == "CumSum" else 1.0)
        want = np.concatenate([first, want[:, :-1]], axis=1)
    np.testing.assert_allclose(ran(model, arrays), want[:, ::-1] if reverse else want, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "int32", "int64"])
def test_a_long_running_sum_is_exact_and_compiles(dtype: str) -> None:
    arrays = {"x": np.ones((2, 2100), dtype), "axis": np.array([1])}
    model = model_of("CumSum", arrays, ("axis",), opset=14)
    want = np.cumsum(arrays["x"].astype(np.int64), axis=1).astype(dtype)
    np.testing.assert_array_equal(ran(model, arrays), want)
    got = ts.compile_model(load_onnx(model))(feeds_of(model, arrays))["y"]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, -1])
def test_the_last_of_equals(op: str, axis: int) -> None:
    x = RNG.integers(0, 3, (6, 7)).astype(np.float32)
    model = model_of(
        op, {"x": x}, types=(np.int64,), axis=axis, keepdims=0, select_last_index=1, opset=13
    )
    turned = np.flip(x, axis)
    want = x.shape[axis] - 1 - (np.argmax if op == "ArgMax" else np.argmin)(turned, axis=axis)
    got = ran(model, {"x": x})
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
def test_softmax_of_old_and_new_opsets(op: str, opset: int, axis: int | None) -> None:
    arrays = {"x": RNG.standard_normal((2, 3, 4)).astype(np.float32)}
    given = {} if axis is None else {"axis": axis}
    model = model_of(op, arrays, opset=opset, **given)
    got, want = ran(model, arrays), by_onnxruntime(model, arrays)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


WRONG = [
    ("ReduceSum", {"x": positive(3), "axes": np.array([1])}, {}, "axis 1 does not exist"),
    ("ReduceSum", {"x": positive(3), "axes": np.array([0, -1])}, {}, "twice"),
    ("ReduceSum", {"x": positive(3), "axes": np.array([0.5])}, {}, "vector of integers"),
    ("ReduceMax", {"x": positive(3), "axes": np.array([0])}, {"keepdims": "no"}, "'keepdims'"),
    ("ReduceMean", {"x": positive(3)}, {"axes": 0}, "list of whole numbers"),
    ("ArgMax", {"x": positive(3)}, {"axis": 2}, "axis 2 does not exist"),
    ("ArgMax", {"x": positive(0)}, {"axis": 0}, "no elements"),
    ("CumSum", {"x": positive(3), "axis": np.array(3)}, {}, "axis 3 does not exist"),
    ("CumSum", {"x": positive(3), "axis": np.array([0, 0])}, {}, "must be one"),
    ("Softmax", {"x": positive(3)}, {"axis": 1}, "axis 1 does not exist"),
    ("Softmax", {"x": np.arange(3)}, {}, "must be a float"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "arrays", "attributes", "why"), WRONG, ids=lambda x: str(x)[:12])
def test_what_is_wrong_is_named(op: str, arrays: Any, attributes: Any, why: str) -> None:
    fixed = tuple(n for n in arrays if n != "x")
    types = (np.int64,) if op == "ArgMax" else ()
    with pytest.raises(GraphError, match=f"{op} 'n'.*{why}"):
        load_onnx(model_of(op, arrays, fixed, opset=20, types=types, **attributes))
