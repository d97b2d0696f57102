"""Divisions by zero, NaN in an argmax, numbers that do not fit: one answer from the oracle, the
interpreter and the kernel.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.errors import ArgumentError, ExpressionError


def run_all(func: ts.Function, *arrays) -> list:
    return [
        run(func, *arrays) for run in (ts.evaluate, ts.interpret, lambda f, *a: ts.build(f)(*a))
    ]


def agree(func: ts.Function, arrays, want) -> None:
    for got in run_all(func, *arrays):
        np.testing.assert_array_equal(got, want)


# division by zero
a = np.arange(101, dtype=np.float32)


def test_a_guarded_division_by_an_axis():
    A = ts.placeholder((101,), name="A")
    Y = ts.compute((9,), lambda j: ts.where(j > 0, A[100 // j], 0.0), name="Y")
    agree(ts.function([A, Y]), [a], [0, *(100 // j for j in range(1, 9))])


@pytest.mark.parametrize("kind", ["serial", "unroll"])
@pytest.mark.parametrize("op", ["//", "%"])
def test_division_by_an_axis_is_0_where_the_axis_is(op, kind):
    A = ts.placeholder((101,), name="A")
    divide = (lambda j: A[50 // j]) if op == "//" else (lambda j: A[50 % j])
    sch = ts.Schedule(ts.function([A, ts.compute((8,), divide, name="Y")]))
    if kind != "serial":
        getattr(sch, kind)("Y.j")
    want = [0, *(50 // j if op == "//" else 50 % j for j in range(1, 8))]
    agree(sch.func, [a], want)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("op", ["//", "%"])
def test_division_of_data_by_0_is_0(op, dtype):
    X, Y = (ts.placeholder((6,), dtype, name=n) for n in "XY")
    body = (lambda i: X[i] // Y[i]) if op == "//" else (lambda i: X[i] % Y[i])
    x, y = np.array([7, 7, 0, 5, 9, 1], dtype), np.array([0, 2, 0, 3, 0, 1], dtype)
    safe = np.where(y == 0, 1, y)
    want = np.where(y == 0, 0, x // safe if op == "//" else x % safe)
    agree(ts.function([X, Y, ts.compute((6,), body, name="Z")]), [x, y], want)


# indices that leave their table
@pytest.mark.parametrize(("at", "value"), [(3, 5), (1, -1), (0, 100)])
def test_an_index_from_data_that_leaves_its_table_is_named(at, value):
    T = ts.placeholder((5, 2), name="T")
    ids = ts.placeholder((4,), "int32", name="ids")
    Y = ts.compute((4, 2), lambda i, j: T[ids[i], j], name="Y")
    index = np.zeros(4, np.int32)
    index[at] = value
    message = rf"T is read at index ids\[i\] = {value} in dimension 0, which has 5 elements"
    for run in (ts.evaluate, ts.interpret):
        with pytest.raises(ArgumentError, match=message):
            run(ts.function([T, ids, Y]), np.zeros((5, 2)), index)


def test_an_index_that_is_not_wanted_may_be_anything():
    T = ts.placeholder((5,), name="T")
    ids = ts.placeholder((4,), "int32", name="ids")
    inside = lambda v: (v >= 0) & (v < 5)  # noqa: E731
    Y = ts.compute((4,), lambda i: ts.where(inside(ids[i]), T[ids[i]], -1.0), name="Y")
    agree(ts.function([T, ids, Y]), [a[:5], np.array([4, -1, 5, 2], np.int32)], [4, -1, -1, 2])


# argmax and argmin
NAN = math.nan
ROWS = [
    [1, 5, 3, 5, 2, 0],
    [1, NAN, 3, 5, NAN, 9],
    [NAN] * 6,
    [-math.inf] * 6,
    [math.inf] * 6,
    [0.0, -0.0, 0.0, -0.0, 0.0, 0.0],
    [-math.inf, NAN, math.inf, math.inf, NAN, 1],
    [2, 2, 2, 1, NAN, 1],
]


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_first_nan_is_the_extreme_as_in_numpy(name, dtype):
    x = np.array(ROWS, dtype)
    X = ts.placeholder(x.shape, dtype, name="X")
    func = ts.function([X, getattr(ts.ops, name)(X)])
    agree(func, [x], getattr(np, name)(x, axis=-1))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_no_schedule_changes_the_extreme(name):
    x = np.array(ROWS, np.float32)
    X = ts.placeholder(x.shape, name="X")
    func = ts.function([X, getattr(ts.ops, name)(X, name="Y")])
    block = next(b for s in (func.body[0],) for b in [s.body[0].body[0]]).name
    want = getattr(np, name)(x, axis=-1)
    for factor in (2, 3, 4):
        for outer in (True, False):
            sch = ts.Schedule(func)
            parts = sch.split(f"{block}.k", [None, factor])
            sch.rfactor(parts[0] if outer else parts[1])
            agree(sch.func, [x], want)
            sch.parallel(f"{block}.i0")
            agree(sch.func, [x], want)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("axis", [0, 1, -1, -3, None])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "int64", "bool"])
def test_positions_along_an_axis(name, axis, keepdims, dtype):
    x = (np.random.default_rng(0).integers(0, 4, (3, 4, 5)) % (2 if dtype == "bool" else 4)).astype(
        dtype
    )
    X = ts.placeholder(x.shape, dtype, name="X")
    got = ts.evaluate(ts.function([X, getattr(ts.ops, name)(X, axis, keepdims)]), x)
    want = getattr(np, name)(x, axis=axis, keepdims=keepdims)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, want)


def test_what_argmax_refuses():
    X = ts.placeholder((3, 0), name="X")
    with pytest.raises(ExpressionError, match="argmax: axis -1 of X has no elements"):
        ts.ops.argmax(X)
    assert ts.ops.argmax(X, axis=0).shape == (0,)
    with pytest.raises(ExpressionError, match="argmin: axis 2 does not exist"):
        ts.ops.argmin(X, axis=2)
    k = ts.reduce_axis(0, name="k")
    with pytest.raises(ExpressionError, match="of nothing there is no argmax"):
        ts.compute((3,), lambda i: ts.argmax(X[i, k], axis=k))
    with pytest.raises(ExpressionError, match=r"it takes an axis, as ts\.reduce_axis"):
        ts.compute((3,), lambda i: ts.argmax(X[i, i], axis=0))


# numbers that do not fit
HUGE = 10**400  # beyond float64


def str_of(v) -> str:
    return "huge" if v == HUGE else str(v)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("float16", 65504.0), ("float16", 65520.0), ("float16", 1e6), ("float16", -70000),
     ("bfloat16", 3.4e38), ("bfloat16", -1e39), ("float32", 1e300), ("float32", -1e39),
     ("float64", HUGE), ("float16", HUGE), ("float16", math.nan)],
    ids=str_of,
)  # fmt: skip
def test_a_constant_beyond_its_dtype_is_infinite(dtype, value):
    X = ts.placeholder((3,), dtype, name="X")
    Y = ts.compute((3,), lambda i: ts.maximum(X[i], value), name="Y")
    x = np.zeros(3, X.dtype.numpy)
    with np.errstate(over="ignore"):
        big = math.inf if value == HUGE else float(value)
        first = np.float64(big).astype(np.float32 if dtype == "bfloat16" else dtype)
        want = np.maximum(x, first.astype(X.dtype.numpy))
    for got in run_all(ts.function([X, Y]), x):
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e30, -1e30, 2.9, -2.9, 300.0])
def test_a_float_becomes_the_nearest_integer_that_fits(dtype, value):
    info = np.iinfo(dtype)
    want = 0 if math.isnan(value) else int(min(max(value, info.min), info.max))
    X = ts.placeholder((2,), "float64", name="X")
    constant = ts.compute((2,), lambda i: ts.cast(value, dtype), name="C")
    data = ts.compute((2,), lambda i: ts.cast(X[i], dtype), name="D")
    x = np.full(2, value)
    for run in (ts.evaluate, ts.interpret):
        for got in run(ts.function([X, data, constant]), x):
            np.testing.assert_array_equal(got, np.full(2, want, dtype))
