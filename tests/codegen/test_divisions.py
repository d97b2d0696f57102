"""Division and remainder: by axes and by data, in lanes and one by one, for every integer dtype. A
divisor of 0 gives 0 and never traps; neither does the least number by -1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilesmith as ts

INTS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
N = 37


def same(func: ts.Function, *arrays: Any, loops: tuple[int, ...] = (-1,)) -> None:
    want = ts.evaluate(func, *arrays)
    np.testing.assert_array_equal(ts.build(ts.Schedule(func), ts.cpu(1))(*arrays), want)
    for k in loops:
        sch = ts.Schedule(func)
        sch.vectorize(sch.loops(sch.blocks[-1])[k])
        np.testing.assert_array_equal(ts.build(sch, ts.cpu(1))(*arrays), want)


@pytest.mark.parametrize("n", [8, 16, 37, 70])  # lanes that are numbers, and strips of them
@pytest.mark.parametrize("start", [0, -1, -4, 1, 5])
@pytest.mark.parametrize("op", ["//", "%"])
def test_an_index_divided_by_an_axis(op: str, start: int, n: int) -> None:
    a, m = ts.placeholder((128,), name="a"), ts.placeholder((n,), name="m")

    def value(j: Any) -> Any:
        at = 100 // (j + start) if op == "//" else 100 % (j + start)
        return ts.where(m[j] > 0, a[at], 0.0)

    func = ts.function([a, m, ts.compute((n,), value, name="y")])
    x = np.arange(1, 129, dtype=np.float32)
    mask = np.ones(n, np.float32)
    mask[: max(0, 1 - start)] = -1  # a divisor of 0 is not wanted, nor an index below 0
    mask[n // 2] = -1
    want = ts.evaluate(func, x, mask)
    got = []
    for vector in (False, True):
        sch = ts.Schedule(func)
        if vector:
            sch.vectorize(sch.loops("y")[0])
        got.append(ts.build(sch, ts.cpu(1))(x, mask))
    np.testing.assert_array_equal(got[0], want)
    np.testing.assert_array_equal(got[1], want)


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("op", ["//", "%"])
def test_data_divided_by_an_axis_and_the_reverse(op: str, dtype: str) -> None:
    d = ts.dtype(dtype)
    x = ts.placeholder((N,), dtype, name="x")

    def divided(a: Any, b: Any) -> Any:
        return a // b if op == "//" else a % b

    rng = np.random.default_rng(1)
    info = np.iinfo(d.numpy)
    a = rng.integers(info.min, info.max, N, dtype=d.numpy, endpoint=True)
    a[:6] = (0, 1, info.min, info.max, info.min, 2)
    for start in (0, 1, 7) if d.kind == "u" else (0, -1, -3, 1):
        by_axis = ts.compute((N,), lambda j, s=start: divided(x[j], ts.cast(j + s, dtype)))
        same(ts.function([x, by_axis]), a)
        of_axis = ts.compute((N,), lambda j, s=start: divided(ts.cast(j + s, dtype), x[j]))
        same(ts.function([x, of_axis]), a)


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("op", ["//", "%"])
def test_data_divided_by_data_and_constants(op: str, dtype: str) -> None:
    d = ts.dtype(dtype)
    info = np.iinfo(d.numpy)
    ends = sorted({info.min, info.min + 1, -7, -2, -1, 0, 1, 2, 7, info.max - 1, info.max})
    values = np.array([v for v in ends if info.min <= v <= info.max], d.numpy)
    a, b = (np.ascontiguousarray(g.ravel()) for g in np.meshgrid(values, values))
    x, y = (ts.placeholder(a.shape, dtype, name=n) for n in "xy")

    def divided(p: Any, q: Any) -> Any:
        return p // q if op == "//" else p % q

    same(ts.function([x, y, ts.compute(a.shape, lambda i: divided(x[i], y[i]))]), a, b)
    for n in map(int, values):
        same(ts.function([x, ts.compute(a.shape, lambda i, n=n: divided(x[i], n))]), a)
        same(ts.function([x, ts.compute(a.shape, lambda i, n=n: divided(n, x[i]))]), a)
