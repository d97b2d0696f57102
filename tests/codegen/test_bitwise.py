"""Bits of integers: every operation on every integer dtype, by data, by numbers and by axes, in
scalar and in vector code, against Python's integers of any length.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.dtype import DType

INTS = tuple(n for n in ts.DTYPES if "int" in n)
OPS: dict[str, Any] = {
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift,
    ">>": operator.rshift,
}  # fmt: skip
NAMED: dict[str, Any] = {
    "&": ts.bitwise_and, "|": ts.bitwise_or, "^": ts.bitwise_xor, "<<": ts.left_shift,
    ">>": ts.right_shift,
}  # fmt: skip


def expected(op: str, x: int, y: int, d: DType) -> int:
    if op in ("<<", ">>") and not 0 <= y < d.bits:
        return -1 if op == ">>" and x < 0 else 0
    return int(d.wrap(OPS[op](x, y)))


def same(func: ts.Function, want: Any, *arrays: Any) -> None:
    """Oracle, interpreter, text, scalar and vector code."""
    for got in (ts.evaluate(func, *arrays), ts.interpret(func, *arrays)):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    assert ts.function_from_json(ts.function_to_json(func)) == func
    sch = ts.Schedule(func)
    sch.vectorize(sch.loops(sch.blocks[-1])[-1])
    for what in (ts.Schedule(func), sch):
        np.testing.assert_array_equal(ts.build(what, ts.cpu(1))(*arrays), want)


def pairs(d: DType) -> tuple[Any, Any]:
    low, high = int(d.lowest()), int(d.highest())
    ends = [low, low + 1, -8, -1, 0, 1, 2, 7, d.bits - 1, d.bits, d.bits + 1, 0x5A, high - 1, high]
    values = np.array([v for v in sorted(set(ends)) if v >= low], d.numpy)
    a, b = np.meshgrid(values, values)
    return a.ravel(), b.ravel()


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("op", OPS)
def test_of_data_and_of_numbers(op: str, dtype: str) -> None:
    d = ts.dtype(dtype)
    a, b = pairs(d)
    x, y = (ts.placeholder(a.shape, dtype, name=n) for n in "xy")
    func = ts.function([x, y, ts.compute(a.shape, lambda i: NAMED[op](x[i], y[i]), name="z")])
    assert f"x[i] {op} y[i]" in str(func)
    want = [expected(op, int(p), int(q), d) for p, q in zip(a, b, strict=True)]
    same(func, np.array(want, d.numpy), a, b)
    for n in (0, 3, d.bits - 1, d.bits):
        func = ts.function([x, ts.compute(a.shape, lambda i, n=n: OPS[op](x[i], n), name="z")])
        same(func, np.array([expected(op, int(p), n, d) for p in a], d.numpy), a)
    func = ts.function([x, ts.compute(a.shape, lambda i: OPS[op](5, x[i]), name="z")])
    same(func, np.array([expected(op, 5, int(p), d) for p in a], d.numpy), a)


@pytest.mark.parametrize("dtype", INTS)
def test_not(dtype: str) -> None:
    a, _ = pairs(ts.dtype(dtype))
    x = ts.placeholder(a.shape, dtype, name="x")
    for f in (operator.invert, ts.bitwise_not):
        func = ts.function([x, ts.compute(a.shape, lambda i, f=f: f(x[i]), name="z")])
        assert "~x[i]" in str(func)
        same(func, ~a, a)


@pytest.mark.parametrize("op", ["&", "|", "^"])
def test_of_conditions(op: str) -> None:
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    x, y = (ts.placeholder((4,), "bool", name=n) for n in "xy")
    same(ts.function([x, y, ts.compute((4,), lambda i: OPS[op](x[i], y[i]))]), OPS[op](a, b), a, b)
    same(ts.function([x, ts.compute((4,), lambda i: OPS[op](x[i], True))]), OPS[op](a, True), a)


def test_dtypes_meet_as_in_a_sum() -> None:
    x, y = ts.placeholder((4,), "uint8", name="x"), ts.placeholder((4,), "int16", name="y")
    a, b = np.array([255, 1, 2, 128], np.uint8), np.array([-1, 3, 9, 1], np.int16)
    same(ts.function([x, y, ts.compute((4,), lambda i: x[i] ^ y[i])]), a ^ b, a, b)
    want = np.array([0, 8, 1024, 256], np.int16)
    same(ts.function([x, y, ts.compute((4,), lambda i: x[i] << y[i])]), want, a, b)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("n", [1, 3, 4, 7])
def test_of_axes(op: str, n: int) -> None:
    """Also as a position. Shifts, and what cuts off low bits, stay polynomials of the axis."""
    i = np.arange(37)
    f = OPS[op]
    same(ts.function([ts.compute((37,), lambda i: f(i - 9, n), name="z")]), f(i - 9, n))
    same(ts.function([ts.compute((37,), lambda i: ~i, name="z")]), ~i)
    x = ts.placeholder((37 << 7,), "int32", name="x")
    data = np.arange(37 << 7, dtype=np.int32)[::-1].copy()
    func = ts.function([x, ts.compute((37,), lambda i: x[f(i, n)], name="z")])
    same(func, data[f(i, n)], data)


def test_of_numpy() -> None:
    x = ts.placeholder((4,), "int32", name="x")
    a = np.array([1, -5, 77, 1 << 30], np.int32)
    for f in (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift):
        same(ts.function([x, ts.compute((4,), lambda i, f=f: f(x[i], 3))]), f(a, np.int32(3)), a)
    same(ts.function([x, ts.compute((4,), lambda i: np.invert(x[i]))]), ~a, a)
