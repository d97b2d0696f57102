"""Bools: stored as bytes, computed as bits, constant or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.dtype import DTYPES

N = 37
A = np.arange(N) % 3 == 0
B = np.arange(N) % 5 < 2


def same(func: ts.Function, *arrays: Any, inlined: tuple[str, ...] = ()) -> None:
    want = ts.evaluate(func, *arrays)
    for vector in (False, True):
        sch = ts.Schedule(func)
        for name in inlined:
            sch.inline(name)
        if vector:
            sch.vectorize(sch.loops(sch.blocks[-1])[-1])
        got = ts.build(sch, ts.cpu(1))(*arrays)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("truth", [True, False])
@pytest.mark.parametrize("want", DTYPES)
def test_an_inlined_constant(want: str, truth: bool) -> None:
    p = ts.compute((N,), lambda i: ts.where(i >= 0, truth, truth), name="p")
    q = ts.compute((N,), lambda i: ts.cast(p[i], want), name="q")
    same(ts.function([q]), inlined=("p",))


@pytest.mark.parametrize("truth", [True, False])
def test_a_constant_as_output_condition_and_operand(truth: bool) -> None:
    x = ts.placeholder((N,), "bool", name="x")
    same(ts.function([x, ts.compute((N,), lambda i: x[i] & truth, name="y")]), A)
    same(ts.function([x, ts.compute((N,), lambda i: x[i] | truth, name="y")]), A)
    same(ts.function([x, ts.compute((N,), lambda i: ts.where(x[i], truth, not truth))]), A)
    same(ts.function([x, ts.compute((N,), lambda i: ts.maximum(x[i], truth), name="y")]), A)
    p = ts.compute((N,), lambda i: ts.where(i >= 0, truth, truth), name="p")
    same(ts.function([p]))
    chosen = ts.compute((N,), lambda i: ts.where(p[i], 1.0, 2.0), name="c")
    same(ts.function([chosen]), inlined=("p",))
    opposite = ts.compute((N,), lambda i: ~p[i], name="o")
    same(ts.function([opposite]), inlined=("p",))


@pytest.mark.parametrize("op", ["&", "|", "max", "min", "==", "!=", "where", "~"])
def test_operations(op: str) -> None:
    a, b = (ts.placeholder((N,), "bool", name=n) for n in "ab")
    f: dict[str, Any] = {
        "&": lambda x, y: x & y, "|": lambda x, y: x | y, "max": ts.maximum, "min": ts.minimum,
        "==": lambda x, y: x == y, "!=": lambda x, y: x != y,
        "where": lambda x, y: ts.where(x, y, ~y),
        "~": lambda x, y: ~x & y,
    }  # fmt: skip
    same(ts.function([a, b, ts.compute((N,), lambda i: f[op](a[i], b[i]), name="y")]), A, B)


@pytest.mark.parametrize("op", ["+", "*"])
@pytest.mark.parametrize("other", ["int8", "float32"])
def test_arithmetic(op: str, other: str) -> None:
    a, b = ts.placeholder((N,), "bool", name="a"), ts.placeholder((N,), other, name="b")
    y = ts.compute((N,), lambda i: a[i] + b[i] if op == "+" else a[i] * b[i], name="y")
    same(ts.function([a, b, y]), A, B.astype(ts.dtype(other).numpy))


@pytest.mark.parametrize("n", [1, 7, 16, 100, 333])
@pytest.mark.parametrize("op", ["amax", "amin"])
def test_reductions(op: str, n: int) -> None:
    x = ts.placeholder((5, n), "bool", name="x")
    k = ts.reduce_axis(n, name="k")
    join = getattr(ts, op)
    a = np.random.default_rng(n).random((5, n)) < 0.02
    for data in (a, ~a):
        y = ts.compute((5,), lambda i: join(x[i, k], axis=k), name="y")
        same(ts.function([x, y]), data)
        counted = ts.compute((5,), lambda i: join(ts.cast(x[i, k], "int32"), axis=k), name="y")
        same(ts.function([x, counted]), data)
