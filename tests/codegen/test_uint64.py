"""uint64: numbers beyond 2**63, in every operation that knows signed from unsigned."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import tilesmith as ts

N = 37
TOP = (1 << 64) - 1
NUMBERS = [0, 1, 2, 7, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, TOP - 1, TOP]


def same(func: ts.Function, want: Any, *arrays: Any) -> None:
    """Oracle, interpreter, text, scalar and vector code."""
    want = np.asarray(want)
    for got in (ts.evaluate(func, *arrays), ts.interpret(func, *arrays)):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    assert ts.function_from_json(ts.function_to_json(func)) == func
    sch = ts.Schedule(func)
    sch.vectorize(sch.loops(sch.blocks[-1])[-1])
    for what in (ts.Schedule(func), sch):
        np.testing.assert_array_equal(ts.build(what, ts.cpu(1))(*arrays), want)


def data(seed: int) -> Any:
    x = np.random.default_rng(seed).integers(0, TOP, N, np.uint64, endpoint=True)
    x[: len(NUMBERS)] = NUMBERS
    return x


@pytest.mark.parametrize("n", [0, 1, 3, 1 << 63, (1 << 63) + 9, TOP])
def test_numbers(n: int) -> None:
    x = ts.placeholder((N,), "uint64", name="x")
    a, c = data(1), np.uint64(n)
    with np.errstate(over="ignore"):
        same(ts.function([x, ts.compute((N,), lambda i: x[i] + n)]), a + c, a)
        same(ts.function([x, ts.compute((N,), lambda i: x[i] * n)]), a * c, a)
    same(ts.function([x, ts.compute((N,), lambda i: ts.maximum(x[i], n))]), np.maximum(a, c), a)
    same(ts.function([x, ts.compute((N,), lambda i: ts.minimum(n, x[i]))]), np.minimum(a, c), a)
    same(ts.function([x, ts.compute((N,), lambda i: x[i] < n)]), a < c, a)
    same(ts.function([x, ts.compute((N,), lambda i: n >= x[i])]), c >= a, a)
    same(ts.function([x, ts.compute((N,), lambda i: x[i] == n)]), a == c, a)
    whole = np.full(N, c)
    same(ts.function([ts.compute((N,), lambda i: ts.cast(n, "uint64"))]), whole)
    same(ts.function([x, ts.compute((N,), lambda i: ts.where(x[i] > 5, n, x[i]))]),
         np.where(a > 5, whole, a), a)  # fmt: skip


@pytest.mark.parametrize("n", [-1, 1 << 64])
def test_a_number_that_does_not_fit(n: int) -> None:
    x = ts.placeholder((N,), "uint64", name="x")
    with pytest.raises(ts.ExpressionError, match="does not fit into uint64"):
        ts.compute((N,), lambda i: x[i] + n)
    assert ts.evaluate(ts.function([ts.compute((1,), lambda i: ts.cast(n, "uint64"))])) == n % (
        1 << 64
    )


@pytest.mark.parametrize("name", ["amax", "amin", "sum", "argmax", "argmin"])
def test_reductions(name: str) -> None:
    x = ts.placeholder((5, N), "uint64", name="x")
    k = ts.reduce_axis(N, name="k")
    a = np.stack([data(s) for s in range(5)])
    a[1, 10:] = TOP
    a[2] = a[2] | np.uint64(1 << 63)
    if name.startswith("arg"):
        out = getattr(ts.ops, name)(x, 1)
        want: Any = getattr(a, name)(1)
    else:
        out = ts.compute((5,), lambda i: getattr(ts, name)(x[i, k], axis=k), name="y")
        want = a.sum(1, dtype=np.uint64) if name == "sum" else getattr(np, name)(a, 1)
    func = ts.function([x, out])
    np.testing.assert_array_equal(ts.evaluate(func, a), want)
    np.testing.assert_array_equal(ts.interpret(func, a), want)
    np.testing.assert_array_equal(ts.build(func, ts.cpu(1))(a), want)


def test_it_meets_signed_integers_as_int64() -> None:
    x, y = ts.placeholder((N,), "uint64", name="x"), ts.placeholder((N,), "int8", name="y")
    a, b = data(3), (np.arange(N) - 9).astype(np.int8)
    for f in (operator.add, operator.mul, operator.lt):
        with np.errstate(over="ignore"):
            want = f(a.astype(np.int64), b.astype(np.int64))
        same(ts.function([x, y, ts.compute((N,), lambda i, f=f: f(x[i], y[i]))]), want, a, b)


def test_it_is_an_index() -> None:
    x, at = ts.placeholder((9,), name="x"), ts.placeholder((N,), "uint64", name="at")
    data = np.arange(9, dtype=np.float32)
    ids = (np.arange(N) % 9).astype(np.uint64)
    func = ts.function([x, at, ts.compute((N,), lambda i: x[at[i]], name="y")])
    same(func, data[ids], data, ids)
    ids[3] = TOP
    for run in (ts.evaluate, ts.interpret):
        with pytest.raises(ts.ArgumentError, match=r"x is read at index .* = -1"):
            run(func, data, ids)
    with pytest.raises(ts.ArgumentError, match="reads x at -1"):
        ts.build(ts.Schedule(func), ts.cpu(1), checked=True)(data, ids)


def test_numbers_and_foreign_tensors_as_arguments() -> None:
    torch = pytest.importorskip("torch")
    x = ts.placeholder((), "uint64", name="x")
    kernel = ts.build(ts.Schedule(ts.function([x, ts.compute((), lambda: x[()] + 1)])), ts.cpu(1))
    assert kernel(1 << 63) == (1 << 63) + 1
    with pytest.raises(ts.ArgumentError, match="is no uint64"):
        kernel(-1)
    y = ts.placeholder((3,), "uint64", name="y")
    kernel = ts.build(ts.Schedule(ts.function([y, ts.compute((3,), lambda i: y[i])])), ts.cpu(1))
    held = np.array([1, TOP, 5], np.uint64)
    np.testing.assert_array_equal(kernel(torch.from_numpy(held)), held)
