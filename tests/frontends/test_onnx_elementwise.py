"""Element-wise operators of ONNX models beyond ONNX's own cases, against NumPy and PyTorch."""

from __future__ import annotations

import math
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from one_node import feeds_of, model_of, ran, ran_all
from onnx import TensorProto, helper

import tilesmith as ts
from tilesmith import ops
from tilesmith.base.errors import GraphError
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.graph import Graph

RNG = np.random.default_rng(11)
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return (RNG.standard_normal(shape) * 3).astype(dtype)


def functions_of(model: Any) -> list[Any]:
    graph = load_onnx(model)
    assert isinstance(graph, Graph)
    return [n.function for n in graph.nodes]


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_integers_divide_as_in_c_and_leave_as_in_python(op: str, dtype: str) -> None:
    low = 0 if dtype[0] == "u" else -100
    arrays = {"a": RNG.integers(low, 100, (40, 5)).astype(dtype), "b": np.array([1, 2, 3, 7, 50])}
    arrays["b"] = (arrays["b"] * (1 if low == 0 else np.array([1, -1, 1, -1, 1]))).astype(dtype)
    got = ran(model_of(op, arrays), arrays)
    a, b = (x.astype(np.float64) for x in arrays.values())
    want = np.trunc(a / b) if op == "Div" else a - np.floor(a / b) * b
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, want.astype(dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "uint64"])
@pytest.mark.parametrize("fmod", [0, 1])
def test_remainders_are_exact(dtype: str, fmod: int) -> None:
    low = 0 if dtype[0] == "u" else -100
    arrays = {
        "a": RNG.integers(low, 100, (40, 6)).astype(dtype),
        "b": np.array([1, 2, 3, 7, 50, 90]).astype(dtype),
    }
    if low:
        arrays["b"] *= np.array([1, -1, 1, -1, 1, -1]).astype(dtype)
    if dtype[0] == "f":
        arrays["a"] *= np.array(1.25, dtype)
    model = model_of("Mod", arrays, opset=28, fmod=fmod)
    want = (np.fmod if fmod else np.mod)(*arrays.values())
    compiled = ts.compile_model(load_onnx(model))(feeds_of(model, arrays))["y"]
    for got in (ran(model, arrays), compiled):
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", INTS)
def test_shifts_by_any_count(direction: str, dtype: str) -> None:
    bits = np.dtype(dtype).itemsize * 8
    arrays = {
        "a": RNG.integers(0, 100, 8).astype(dtype),
        "b": np.array([0, 1, 2, 3, 5, bits - 1, bits, bits + 9]).astype(dtype),
    }
    got = ran(model_of("BitShift", arrays, opset=11, direction=direction), arrays)
    pairs = [(int(a), int(b)) for a, b in zip(*arrays.values(), strict=True)]
    want = [a << b if direction == "LEFT" else a >> b for a, b in pairs]
    np.testing.assert_array_equal(
        got, np.array([w % 2**bits for w in want], f"u{bits // 8}").view(dtype)
    )


FUNCTIONS = {
    "Acos": np.arccos, "Acosh": np.arccosh, "Asin": np.arcsin, "Asinh": np.arcsinh,
    "Atan": np.arctan, "Atanh": np.arctanh, "Cos": np.cos, "Cosh": np.cosh, "Sign": np.sign,
    "Sin": np.sin, "Sinh": np.sinh, "Tan": np.tan,
}  # fmt: skip


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_of_every_float(op: str) -> None:
    for dtype, rtol in ((np.float16, 2e-3), (np.float32, 1e-5), (np.float64, 1e-12)):
        x = np.concatenate([RNG.uniform(-1, 1, 20), RNG.uniform(1, 4, 20), [0, 1, np.nan]])
        arrays = {"x": x.astype(dtype)}
        got = ran(model_of(op, arrays, opset=22), arrays)
        assert got.dtype == dtype
        with np.errstate(all="ignore"):
            want = FUNCTIONS[op](arrays["x"].astype(np.float64))
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=rtol, atol=1e-7)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "uint64"])
def test_pow_of_integers_is_exact(dtype: str) -> None:
    arrays = {
        "a": np.array([0, 1, 2, 3, 10, 7, 1, 3], dtype),
        "b": np.array([0, 90, 7, 4, 2, 0, 65, 5], np.int64),
    }
    got = ran(model_of("Pow", arrays, opset=15), arrays)
    assert got.dtype == dtype
    pairs = [(int(a), int(b)) for a, b in zip(*arrays.values(), strict=True)]
    np.testing.assert_array_equal(got, np.array([a**b for a, b in pairs]).astype(dtype))


def test_pow_of_large_integers_does_not_pass_through_floats() -> None:
    arrays = {"a": np.array([3, -7, -1, -1, 2, 5]), "b": np.array([39, 21, 101, 100, -1, -3])}
    got = ran(model_of("Pow", arrays, opset=15), arrays)
    assert got.tolist() == [3**39, -(7**21), -1, 1, 0, 0]


@pytest.mark.parametrize("exponent", [2, 3, 8, 9, 0, -1, -2, 0.5, -0.5, 1.5])
def test_pow_by_a_constant(exponent: float) -> None:
    arrays = {"x": np.abs(normal(3, 4)) + np.float32(0.5), "e": np.array(exponent, np.float32)}
    got = ran(model_of("Pow", arrays, ("e",), opset=15), arrays)
    np.testing.assert_allclose(got, arrays["x"].astype(np.float64) ** exponent, rtol=1e-5)


@pytest.mark.parametrize("fixed", [(), ("e",)])
@pytest.mark.parametrize("exponent", [0.5, -0.5, 1.5, -1.5, 0, -0.0, 1, -1, 2, -2, 3, -3, 1 / 3, 9])
def test_pow_of_numbers_without_a_logarithm(exponent: float, fixed: tuple[str, ...]) -> None:
    """C's table: -0 counts as 0 and -inf as inf, unless the exponent is odd."""
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 4.0, -4.0])
    want = [_c_pow(v, float(np.float32(exponent))) for v in x]
    arrays = {"x": x.astype("float32"), "e": np.full(1, exponent, "float32")}
    got = ran(model_of("Pow", arrays, fixed, opset=15), arrays)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    known = ~np.isnan(got)
    np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(want)[known])


def _c_pow(x: float, e: float) -> float:
    try:
        return math.pow(x, e)
    except ValueError:  # Python raises where C has NaN, or an infinity at a zero base
        odd = e.is_integer() and e % 2 == 1
        return math.copysign(math.inf, x if odd else 1.0) if x == 0 else math.nan


def test_a_constant_exponent_of_higher_rank_widens_the_result() -> None:
    arrays = {"x": normal(3), "e": np.array([[2.0]], np.float32)}
    assert ran(model_of("Pow", arrays, ("e",), opset=15), arrays).shape == (1, 3)


@pytest.mark.parametrize("base", ["int32", "float32", "float16", "float64"])
@pytest.mark.parametrize("exponent", ["int32", "int64", "float32", "float64"])
def test_pow_has_the_type_of_its_base(base: str, exponent: str) -> None:
    arrays = {"x": np.array([1, 2, 3], base), "e": np.array([3, 2, 1], exponent)}
    got = ran(model_of("Pow", arrays, opset=15), arrays)
    assert got.dtype == base
    np.testing.assert_allclose(got.astype(np.float64), [1, 4, 3], rtol=1e-3)


LOW, HIGH = np.array(-1.0, np.float32), np.array(0.5, np.float32)


@pytest.mark.parametrize("fixed", [(), ("low",), ("high",), ("low", "high")], ids=str)
@pytest.mark.parametrize("crossed", [False, True], ids=["apart", "crossed"])
def test_bounds_of_clip_are_numbers_or_inputs(fixed: tuple[str, ...], crossed: bool) -> None:
    low, high = (HIGH, LOW) if crossed else (LOW, HIGH)
    arrays = {"x": normal(4, 5), "low": low, "high": high}
    got = ran(model_of("Clip", arrays, fixed, opset=13), arrays)
    np.testing.assert_array_equal(got, np.minimum(np.maximum(arrays["x"], low), high))


@pytest.mark.parametrize("bounds", [{}, {"min": -1.0}, {"max": 0.5}, {"min": -1.0, "max": 0.5}])
def test_bounds_of_clip_were_attributes(bounds: dict[str, float]) -> None:
    arrays = {"x": normal(4, 5)}
    got = ran(model_of("Clip", arrays, opset=7, **bounds), arrays)
    low, high = bounds.get("min", -np.inf), bounds.get("max", np.inf)
    np.testing.assert_array_equal(got, np.clip(arrays["x"], low, high))


def test_clip_of_integers_by_one_bound() -> None:
    arrays = {"x": np.arange(-5, 5, dtype=np.int8), "_": None, "high": np.array(2, np.int8)}
    got = ran(model_of("Clip", arrays, ("high",), opset=13), arrays)
    assert got.dtype == np.int8
    np.testing.assert_array_equal(got, np.minimum(arrays["x"], 2))


def test_a_clip_with_known_bounds_is_one_node() -> None:
    arrays = {"x": normal(4), "low": np.array(0, np.float32), "high": np.array(6, np.float32)}
    assert functions_of(model_of("Clip", arrays, ("low", "high"), opset=13)) == [ops.clip]


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_any_number_of_inputs_are_broadcast(op: str, count: int) -> None:
    shapes = [(3, 1), (2, 1, 4), (), (3, 4)]
    arrays = {f"x{k}": normal(*shapes[k]) for k in range(count)}
    got = ran(model_of(op, arrays, opset=13), arrays)
    wide = np.broadcast_arrays(*arrays.values())
    want = {"Max": np.max, "Min": np.min, "Sum": np.sum, "Mean": np.mean}[op](wide, axis=0)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


TYPES = ["float16", "bfloat16", "float32", "float64", *INTS, "bool"]


@pytest.mark.parametrize("to", TYPES)
def test_cast_from_every_type(to: str) -> None:
    to_type = np.dtype(ml_dtypes.bfloat16 if to == "bfloat16" else to)
    for name in TYPES:
        dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
        arrays = {"x": np.array([0, 1, 2.75, 100.5]).astype(dtype)}
        code = helper.np_dtype_to_tensor_dtype(to_type)
        got = ran(model_of("Cast", arrays, types=(to_type,), to=code), arrays)
        assert got.dtype == to_type
        np.testing.assert_array_equal(got, arrays["x"].astype(to_type))
        arrays["like"] = np.zeros((), to_type)
        like = ran(model_of("CastLike", arrays, ("like",), types=(to_type,), opset=15), arrays)
        np.testing.assert_array_equal(like, got)


def test_a_cast_to_the_same_type_is_no_node() -> None:
    model = model_of("Cast", {"x": normal(3)}, to=TensorProto.FLOAT)
    assert functions_of(model) == []


@pytest.mark.parametrize(("opset", "mask"), [(7, np.float32), (10, np.bool_), (13, np.bool_)])
def test_dropout_keeps_everything(opset: int, mask: Any) -> None:
    arrays = {"x": normal(2, 3)}
    types = (np.float32, mask)
    model = model_of("Dropout", arrays, opset=opset, outputs=("y", "m"), types=types)
    got = ran_all(model, arrays)
    np.testing.assert_array_equal(got["y"], arrays["x"])
    assert got["m"].dtype == mask
    assert got["m"].all()


def test_activations_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is the peer of this test")
    f = torch.nn.functional
    peers = {
        "Celu": (lambda x: f.celu(x, 1.5), {"alpha": 1.5}),
        "Elu": (lambda x: f.elu(x, 0.7), {"alpha": 0.7}),
        "HardSigmoid": (f.hardsigmoid, {"alpha": 1 / 6, "beta": 0.5}),
        "HardSwish": (f.hardswish, {}),
        "LeakyRelu": (lambda x: f.leaky_relu(x, 0.3), {"alpha": 0.3}),
        "Mish": (f.mish, {}),
        "Selu": (f.selu, {}),
        "Shrink": (lambda x: f.hardshrink(x, 1.0), {"lambd": 1.0}),
        "Softplus": (f.softplus, {}),
        "Softsign": (f.softsign, {}),
        "Swish": (f.silu, {}),
        "ThresholdedRelu": (lambda x: f.threshold(x, 1.0, 0.0), {"alpha": 1.0}),
        "Gelu": (lambda x: f.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
    }
    x = np.concatenate([normal(50), np.array([0, -0.0, 30, -30, 80, -80, 1, -1], np.float32)])
    for op, (peer, attributes) in peers.items():
        got = ran(model_of(op, {"x": x}, opset=24, **attributes), {"x": x})
        want = peer(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=op)


def test_softplus_of_large_negative_numbers_is_not_0() -> None:
    x = np.array([-20, -50, -80], np.float32)
    got = ran(model_of("Softplus", {"x": x}), {"x": x})
    np.testing.assert_allclose(got, np.exp(x.astype(np.float64)), rtol=1e-4)


@pytest.mark.parametrize("shape", [(4,), (3, 1), (1,), ()], ids=str)
def test_prelu_broadcasts_its_slope(shape: tuple[int, ...]) -> None:
    arrays = {"x": normal(2, 3, 4), "slope": normal(*shape)}
    got = ran(model_of("PRelu", arrays), arrays)
    x, slope = arrays.values()
    np.testing.assert_allclose(got, np.where(x < 0, x * slope, x), rtol=1e-6)


def test_isinf_of_one_sign() -> None:
    arrays = {"x": np.array([-np.inf, np.inf, np.nan, 1], np.float32)}
    below = model_of("IsInf", arrays, types=(np.bool_,), detect_positive=0)
    assert ran(below, arrays).tolist() == [True, False, False, False]
    none = model_of("IsInf", arrays, types=(np.bool_,), detect_positive=0, detect_negative=0)
    assert not ran(none, arrays).any()


WRONG = [
    ("Add", {"a": normal(3), "b": np.arange(3)}, {}, "its inputs are float32 and int64"),
    ("Sum", {"a": normal(3), "b": np.arange(3)}, {}, "its inputs are float32 and int64"),
    ("Add", {"a": normal(3), "b": normal(4)}, {}, "do not broadcast"),
    ("And", {"a": normal(3), "b": normal(3)}, {}, "must be bool"),
    ("Not", {"a": normal(3)}, {}, "must be bool"),
    ("Cast", {"x": normal(3)}, {"to": TensorProto.STRING}, "string"),
    ("Cast", {"x": normal(3)}, {"to": 99}, "99"),
    ("Cast", {"x": normal(3)}, {}, "attribute 'to' is missing"),
    ("Clip", {"x": normal(3), "low": normal(2)}, {}, "must be one element"),
    ("PRelu", {"x": normal(3), "slope": normal(2, 3)}, {}, "slope"),
    ("Celu", {"x": normal(3)}, {"alpha": 0.0}, "alpha is 0"),
    ("Elu", {"x": normal(3)}, {"alpha": "much"}, "attribute 'alpha'"),
    ("Gelu", {"x": normal(3)}, {"approximate": "some"}, "'some'"),
    ("Where", {"c": normal(3), "a": normal(3), "b": normal(3)}, {}, "must be bool"),
    ("Add", {"a": normal(3)}, {}, "input 1 is missing"),
    ("BitShift", {"a": np.arange(3), "b": np.arange(3)}, {"direction": "UP"}, "'UP'"),
    ("BitShift", {"a": np.arange(3), "b": np.arange(3)}, {}, "'direction' is missing"),
    ("BitwiseAnd", {"a": normal(3), "b": normal(3)}, {}, "integer dtype"),
    ("BitwiseNot", {"a": normal(3)}, {}, "integer dtype"),
    ("BitCast", {"x": normal(3)}, {"to": TensorProto.INT64}, "another number of bits"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "arrays", "attributes", "why"), WRONG, ids=lambda x: str(x)[:12])
def test_what_is_wrong_is_named(op: str, arrays: Any, attributes: Any, why: str) -> None:
    with pytest.raises(GraphError, match=f"{op} 'n'.*{re.escape(why)}"):
        load_onnx(model_of(op, arrays, opset=26, **attributes))


@pytest.mark.parametrize("op", ["Mish", "Softplus", "Elu", "HardSwish"])
def test_half_precision_is_computed_in_float32_and_compiles(op: str) -> None:
    arrays = {"x": normal(37, dtype=np.float16)}
    model = model_of(op, arrays, opset=22)
    wide = {"x": arrays["x"].astype(np.float32)}
    want = ran(model_of(op, wide, opset=22), wide).astype(np.float16)
    np.testing.assert_array_equal(ran(model, arrays), want)
    got = ts.compile_model(load_onnx(model))(feeds_of(model, arrays))["y"]
    np.testing.assert_allclose(got, want, rtol=2e-3)
