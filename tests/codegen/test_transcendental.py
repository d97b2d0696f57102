"""Functions that are made of others, and what C does with remainders and signs: compiled and by the
oracle, against NumPy in wider arithmetic, at the ends of the range and next to 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilesmith as ts

Array = np.ndarray[Any, Any]
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTS = tuple(n for n in ts.DTYPES if "int" in n)
# The greatest error in units of the last place: measured, with a margin.
FUNCTIONS: dict[str, tuple[Any, float]] = {
    "sin": (np.sin, 2.5),
    "cos": (np.cos, 2.5),
    "tan": (np.tan, 5.0),
    "asin": (np.arcsin, 4.0),
    "acos": (np.arccos, 4.0),
    "atan": (np.arctan, 2.5),
    "sinh": (np.sinh, 6.0),
    "cosh": (np.cosh, 5.0),
    "asinh": (np.arcsinh, 4.0),
    "acosh": (np.arccosh, 5.0),
    "atanh": (np.arctanh, 4.0),
    "log1p": (np.log1p, 4.0),
    "expm1": (np.expm1, 2.5),
}
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def inputs(dtype: str) -> Array:
    d = ts.dtype(dtype)
    rng = np.random.default_rng(3)
    n = 4000
    info = np.finfo(np.float32 if dtype == "bfloat16" else d.numpy)
    top = np.log2(float(info.max))
    parts = [
        2.0 ** rng.uniform(-top - 20, top, n),
        2.0 ** rng.uniform(-40, 12, n),
        rng.uniform(0, 1.2, n),
        1 + 2.0 ** rng.uniform(-50, 0, n),
        1 - 2.0 ** rng.uniform(-50, 0, n),
        rng.uniform(0, np.log(float(info.max)) + 2, n),
        [0.0, 0.5, 1.0, 2.0, float(info.max), float(info.tiny), float(info.smallest_subnormal)],
        [np.inf, np.nan, np.pi / 2, np.tan(np.pi / 8), 2.0**60, 2.0**-13, 2.0**-28],
    ]
    x = np.concatenate(parts).astype(d.numpy)
    return np.concatenate([x, -x])


def check(name: str, got: Array, x: Array, dtype: str) -> None:
    """In units of the last place of the dtype; float64 against the widest that there is."""
    f, bound = FUNCTIONS[name]
    wide = np.longdouble if dtype == "float64" else np.float64
    want = f(x.astype(wide))
    rounded = want.astype(got.dtype).astype(wide)
    have = got.astype(wide)
    bits = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[dtype]
    least = {"float16": -24, "bfloat16": -133, "float32": -149, "float64": -1074}[dtype]
    _, exponent = np.frexp(np.where(np.isfinite(rounded), want, 1))
    unit = np.ldexp(wide(1), np.maximum(exponent - 1 - bits, least))
    same = (have == rounded) | (np.isnan(have) & np.isnan(want))
    error = np.where(same, 0, np.abs(have - want) / unit)
    wrong = (np.isnan(have) != np.isnan(want)) | (
        (want == 0) & (np.signbit(have) != np.signbit(want))
    )
    error = np.where(wrong | np.isnan(error), np.inf, error)
    at = int(np.argmax(error))
    assert error[at] <= bound, f"{name}({x[at]}) is {got[at]}, not {want[at]}: {error[at]} ulp"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy(name: str, dtype: str) -> None:
    a = inputs(dtype)
    x = ts.placeholder(a.shape, dtype, name="x")
    func = ts.function([x, ts.compute(a.shape, lambda i: getattr(ts, name)(x[i]), name="y")])
    check(name, ts.evaluate(func, a), a, dtype)
    check(name, ts.build(ts.Schedule(func), ts.cpu(1))(a), a, dtype)
    sch = ts.Schedule(func)
    sch.vectorize(sch.split(sch.loops("y")[0], [None, 16])[1])
    check(name, ts.build(sch, ts.cpu(1))(a), a, dtype)


def test_integers_go_in_as_float32() -> None:
    a = np.array([0, 1, 2], np.int32)
    x = ts.placeholder(a.shape, "int32", name="x")
    for name, (f, _) in FUNCTIONS.items():
        got = ts.evaluate(
            ts.function([x, ts.compute(a.shape, lambda i, n=name: getattr(ts, n)(x[i]))]), a
        )
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, f(a.astype(np.float64)), rtol=1e-6)


def same(func: ts.Function, want: Array, *arrays: Array) -> None:
    assert ts.function_from_json(ts.function_to_json(func)) == func
    got = [ts.evaluate(func, *arrays), ts.interpret(func, *arrays)]
    sch = ts.Schedule(func)
    sch.vectorize(sch.loops(sch.blocks[-1])[-1])
    got += [ts.build(what, ts.cpu(1))(*arrays) for what in (ts.Schedule(func), sch)]
    for y in got:
        assert y.dtype == want.dtype
        np.testing.assert_array_equal(y.astype(np.float64), want.astype(np.float64))


SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -2.5, 3.0, 7.25, -100.0, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("dtype", FLOATS)
def test_signs_and_infinities(dtype: str) -> None:
    a = np.array(SPECIAL).astype(ts.dtype(dtype).numpy)
    w = a.astype(np.float64)
    x = ts.placeholder(a.shape, dtype, name="x")
    same(
        ts.function([x, ts.compute(a.shape, lambda i: ts.sign(x[i]))]),
        np.sign(w).astype(a.dtype),
        a,
    )
    same(ts.function([x, ts.compute(a.shape, lambda i: ts.isinf(x[i]))]), np.isinf(w), a)
    same(
        ts.function([x, ts.compute(a.shape, lambda i: ts.trunc(x[i]))]),
        np.trunc(w).astype(a.dtype),
        a,
    )


@pytest.mark.parametrize("dtype", INTS)
def test_signs_of_integers(dtype: str) -> None:
    d = ts.dtype(dtype)
    a = np.array([int(d.lowest()), 0, 1, 5, int(d.highest())], d.numpy)
    x = ts.placeholder(a.shape, dtype, name="x")
    same(ts.function([x, ts.compute(a.shape, lambda i: ts.sign(x[i]))]), np.sign(a), a)
    same(ts.function([x, ts.compute(a.shape, lambda i: ts.isinf(x[i]))]), np.zeros(5, bool), a)
    same(ts.function([x, ts.compute(a.shape, lambda i: ts.trunc(x[i]) + 0)]), a, a)


@pytest.mark.parametrize("dtype", FLOATS)
def test_remainder_of_floats(dtype: str) -> None:
    values = np.array([*SPECIAL, 0.1, 5.3, 1e4, -1e4, 6e-5]).astype(ts.dtype(dtype).numpy)
    a, b = (g.ravel() for g in np.meshgrid(values, values))
    x, y = (ts.placeholder(a.shape, dtype, name=n) for n in "xy")
    func = ts.function([x, y, ts.compute(a.shape, lambda i: ts.fmod(x[i], y[i]))])
    want = np.fmod(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)
    same(func, want, a, b)
    assert "fmod(x[i], y[i])" in str(func)


@pytest.mark.parametrize("dtype", INTS)
def test_division_towards_zero(dtype: str) -> None:
    d = ts.dtype(dtype)
    low, high = int(d.lowest()), int(d.highest())
    values = [v for v in (low, low + 1, -7, -2, -1, 0, 1, 2, 7, high - 1, high) if v >= low]
    a, b = (g.ravel() for g in np.meshgrid(*[np.array(sorted(set(values)), d.numpy)] * 2))
    x, y = (ts.placeholder(a.shape, dtype, name=n) for n in "xy")

    def divided(p: int, q: int) -> tuple[int, int]:
        if q == 0:
            return 0, 0
        n = abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1)
        return int(d.wrap(n)), p - n * q

    for k, f in enumerate((ts.trunc_divide, ts.fmod)):
        func = ts.function([x, y, ts.compute(a.shape, lambda i, f=f: f(x[i], y[i]))])
        pairs = zip(a.tolist(), b.tolist(), strict=True)
        same(func, np.array([divided(p, q)[k] for p, q in pairs], d.numpy), a, b)
        for n in {-3, -1, 1, 4} if low else {1, 4}:
            func = ts.function([x, ts.compute(a.shape, lambda i, f=f, n=n: f(x[i], n))])
            same(func, np.array([divided(p, n)[k] for p in a.tolist()], d.numpy), a)


def test_division_of_floats_and_axes_towards_zero() -> None:
    a = np.array([7.5, -7.5, 1.0], np.float32)
    x = ts.placeholder((3,), name="x")
    func = ts.function([x, ts.compute((3,), lambda i: ts.trunc_divide(x[i], 2.0))])
    same(func, np.array([3, -3, 0], np.float32), a)
    n = np.arange(20) - 10
    func = ts.function([ts.compute((20,), lambda i: ts.trunc_divide(i - 10, 4))])
    same(func, np.sign(n) * (np.abs(n) // 4))
    same(ts.function([ts.compute((20,), lambda i: ts.fmod(i - 10, 4))]), np.fmod(n, 4))
