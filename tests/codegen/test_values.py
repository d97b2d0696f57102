"""Every operation on every dtype, in scalar and in vector code, against the NumPy oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilesmith as ts

N = 37  # two vectors of 16, then 4 and 1

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTS = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-6, "float64": 1e-13}


def data(dtype: str, seed: int, low: float = -3, high: float = 3) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    d = ts.dtype(dtype)
    if d.is_float:
        return rng.uniform(low, high, N).astype(d.numpy)
    if d.kind == "b":
        return rng.integers(0, 2, N).astype(bool)
    info = np.iinfo(d.numpy)
    x = rng.integers(max(info.min, -120), min(info.max, 120), N).astype(d.numpy)
    x[:4] = (info.min, info.max, 0, 1)
    return x


def check(func: ts.Function, *arrays: Any, rtol: float = 0, vectors: bool = True) -> None:
    want = ts.evaluate(func, *arrays)
    for vectorize in (False, True) if vectors else (False,):
        sch = ts.Schedule(func)
        if vectorize:
            sch.vectorize(sch.loops(sch.blocks[-1])[-1])
        got = ts.build(sch, ts.cpu(1))(*arrays)
        if rtol == 0:
            assert got.dtype == want.dtype
            if ts.dtype(got.dtype).is_float:  # NaN equals NaN only in NumPy's own types
                got, want_ = got.astype(np.float64), want.astype(np.float64)
                np.testing.assert_array_equal(got, want_)
            else:
                np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(
                np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=rtol, atol=rtol
            )


def unary_func(dtype: str, f: Any) -> ts.Function:
    x = ts.placeholder((N,), dtype, name="x")
    return ts.function([x, ts.compute((N,), lambda i: f(x[i]), name="y")])


def binary_func(dtype: str, f: Any) -> ts.Function:
    a, b = ts.placeholder((N,), dtype, name="a"), ts.placeholder((N,), dtype, name="b")
    return ts.function([a, b, ts.compute((N,), lambda i: f(a[i], b[i]), name="y")])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "name", ["exp", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "log", "abs", "floor", "ceil",
             "round", "sin", "cos", "atan", "expm1", "trunc", "sign", "log2", "log10"],
)  # fmt: skip
def test_functions(name: str, dtype: str) -> None:
    low = 0.1 if name in ("sqrt", "rsqrt", "log", "log2", "log10") else -3
    check(unary_func(dtype, getattr(ts, name)), data(dtype, 1, low), rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "div", "floordiv", "mod", "max", "min", "pow"]
)
def test_float_arithmetic(name: str, dtype: str) -> None:
    f = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b, "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b,
        "max": ts.maximum, "min": ts.minimum, "pow": ts.power,
    }[name]  # fmt: skip
    low = 0.5 if name in ("floordiv", "mod", "pow") else -3
    a, b = data(dtype, 1, low), data(dtype, 2, low)
    if name in ("floordiv", "mod") and dtype in ("float16", "bfloat16"):
        a, b = np.rint(a * 8).astype(a.dtype), np.full_like(b, 4)  # no quotient near a whole number
    check(binary_func(dtype, f), a, b, rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("exponent", ["int8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("base", [*FLOATS, *INTS])
def test_powers_to_integers(base: str, exponent: str) -> None:
    """Of a float a float, of an integer an integer, exactly, which wraps."""
    d = ts.dtype(base)
    a, b = ts.placeholder((N,), base, name="a"), ts.placeholder((N,), exponent, name="b")
    func = ts.function([a, b, ts.compute((N,), lambda i: a[i] ** b[i], name="y")])
    x = data(base, 1, 0.5, 2)
    y = (np.arange(N) * 5 % 67 - (3 if exponent[0] == "i" else 0)).astype(exponent)
    if d.is_float:
        y = np.minimum(y, 9).astype(exponent)
    else:
        x[4:16] = np.resize([1, 0, 2, 3], 12)
    assert func.outputs[0].dtype is d
    check(func, x, y, rtol=4 * TOLERANCE[base] if d.is_float else 0)
    if d.is_int:
        wanted = [int(d.wrap(int(p) ** int(q))) for p, q in zip(x, y, strict=True) if 0 <= q < 64]
        np.testing.assert_array_equal(ts.evaluate(func, x, y)[(y >= 0) & (y < 64)], wanted)


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "floordiv", "mod", "max", "min"])
def test_integers_wrap_and_divide_like_numpy(name: str, dtype: str) -> None:
    f = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
        "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "max": ts.maximum,
        "min": ts.minimum,
    }[name]  # fmt: skip
    a, b = data(dtype, 3), data(dtype, 4)
    b[4:8] = 0  # a division by zero gives 0 and never traps
    if ts.dtype(dtype).kind == "i":
        b[0] = -1  # the least number by -1 neither
    check(binary_func(dtype, f), a, b)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
@pytest.mark.parametrize("op", ["<", "<=", ">", ">=", "==", "!="])
def test_comparisons(op: str, dtype: str) -> None:
    a, b = data(dtype, 5), data(dtype, 6)
    b[::3] = a[::3]
    if ts.dtype(dtype).is_float:
        a[7] = np.nan
    f = {
        "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b,
        ">=": lambda a, b: a >= b, "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
    }[op]  # fmt: skip
    check(binary_func(dtype, f), a, b)


def test_maximum_hands_on_nan() -> None:
    a, b = data("float32", 8), data("float32", 9)
    a[3], b[5], a[20], b[21] = np.nan, np.nan, np.nan, np.nan
    check(binary_func("float32", ts.maximum), a, b)
    check(binary_func("float32", ts.minimum), a, b)
    check(unary_func("float32", lambda x: ts.maximum(x, 0)), a)
    check(unary_func("float32", lambda x: ts.maximum(0.5, x)), a)


@pytest.mark.parametrize("at", [0, 3, 15, 16, 40, 99])
def test_an_extreme_of_a_row_with_nan_is_nan(at: int) -> None:
    x = ts.placeholder((3, 100), name="x")
    k = ts.reduce_axis(100, name="k")
    for join in (ts.amax, ts.amin):
        y = ts.compute((3,), lambda i, join=join: join(x[i, k], axis=k), name="y")
        sch = ts.Schedule(ts.function([x, y]))
        _, lane = sch.split(sch.loops("y")[-1], [None, 32])
        sch.rfactor(lane)
        inner, i, outer = sch.loops("y.rf")
        sch.reorder(i, outer, inner)
        sch.vectorize(inner)
        sch.vectorize(sch.loops("y")[-1])
        a = np.random.default_rng(at).standard_normal((3, 100), dtype=np.float32)
        a[1, at] = np.nan
        a[2, at] = -np.inf
        want = a.max(1) if join is ts.amax else a.min(1)
        np.testing.assert_array_equal(ts.build(sch, ts.cpu(1))(a), want)
        np.testing.assert_array_equal(ts.build(sch.func, ts.cpu(1))(a), want)


def test_infinities_and_signed_zero_survive_low_precision() -> None:
    x = data("float32", 10)
    x[:6] = (np.inf, -np.inf, np.nan, 0.0, 3.4e38, 1e-40)
    for want in ("bfloat16", "float16", "float64"):
        check(unary_func("float32", lambda v, want=want: ts.cast(v, want)), x)


def test_conditions_join() -> None:
    a, b = data("float32", 11), data("float32", 12)
    check(
        binary_func("float32", lambda a, b: ts.where((a > 0) & ~(b > 0) | (a > 2), a * b, a - b)),
        a, b, rtol=1e-6,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_precision_matmul_accumulates_wide(dtype: str) -> None:
    a, b = ts.placeholder((9, 70), dtype, name="a"), ts.placeholder((70, 33), dtype, name="b")
    func = ts.function([a, b, ts.ops.matmul(a, b, name="c")])
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(-1, 1, s).astype(ts.dtype(dtype).numpy) for s in ((9, 70), (70, 33)))
    got = ts.build(ts.Schedule(func), ts.cpu(1))(x, y)
    want = x.astype(np.float64) @ y.astype(np.float64)
    np.testing.assert_allclose(
        got.astype(np.float64), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )
