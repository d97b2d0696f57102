"""Kernels for debugging: an index that is read from a tensor and lies outside of its table is
named, and memory outside is not touched.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import tilesmith as ts

N, ROWS, COLUMNS = 37, 64, 5


def lookup(dtype: str = "int32") -> ts.Function:
    table = ts.placeholder((ROWS, COLUMNS), name="table")
    ids = ts.placeholder((N,), dtype, name="ids")
    return ts.function(
        [table, ids, ts.compute((N, COLUMNS), lambda i, j: table[ids[i], j], name="out")]
    )


def arrays(dtype: Any = np.int32) -> tuple[Any, Any]:
    table = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), dtype=np.float32)
    return table, (np.arange(N) * 5 % ROWS).astype(dtype)


def schedules(func: ts.Function) -> list[tuple[ts.Schedule, int]]:
    """With the number of cores."""
    plain, lanes, rows, threads, layout = (ts.Schedule(func) for _ in range(5))
    lanes.vectorize(lanes.loops("out")[-1])
    rows.vectorize(rows.loops("out")[0])
    threads.parallel(threads.loops("out")[0])
    layout.transform_layout("table", ("d0 // 10", "d1", "d0 % 10"))
    return [(plain, 1), (lanes, 1), (rows, 1), (threads, 2), (layout, 1)]


@pytest.mark.parametrize("bad", [-1, ROWS, ROWS + 5, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("at", [0, 18, N - 1])
def test_an_index_outside_is_named(at: int, bad: int) -> None:
    func = lookup()
    table, ids = arrays()
    for sch, cores in schedules(func):
        kernel = ts.build(sch, ts.cpu(cores), checked=True)
        packed = ts.pack(sch.func, "table", table)
        want = table[ids]
        np.testing.assert_array_equal(kernel(packed, ids), want)
        wrong = ids.copy()
        wrong[at] = bad
        with pytest.raises(
            ts.ArgumentError,
            match=f"'main' reads table at {bad} in dimension 0, which has {ROWS} elements",
        ):
            kernel(packed, wrong)
        np.testing.assert_array_equal(kernel(packed, ids), want)  # the next call is judged anew


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64"])
def test_every_dtype_of_an_index(dtype: str) -> None:
    table, ids = arrays(dtype)
    kernel = ts.build(lookup(dtype), ts.cpu(1), checked=True)
    np.testing.assert_array_equal(kernel(table, ids), table[ids.astype(int)])
    ids[3] = bad = int(ts.dtype(dtype).highest())
    with pytest.raises(ts.ArgumentError, match=f"table at {bad} in dimension 0"):
        kernel(table, ids)


def test_what_is_not_wanted_is_not_checked() -> None:
    table, ids = ts.placeholder((ROWS,), name="table"), ts.placeholder((N,), "int32", name="ids")
    out = ts.compute((N,), lambda i: ts.where(ids[i] >= 0, table[ids[i]], -1.0), name="out")
    func = ts.function([table, ids, out])
    a = np.arange(ROWS, dtype=np.float32)
    i = np.arange(N, dtype=np.int32) - 4
    lanes = ts.Schedule(func)
    lanes.vectorize(lanes.loops("out")[0])
    tail = ts.Schedule(func)
    _, inner = tail.split(tail.loops("out")[0], [None, 8])
    tail.vectorize(inner)
    for what in (func, lanes, tail):
        kernel = ts.build(what, ts.cpu(1), checked=True)
        np.testing.assert_array_equal(kernel(a, i), np.where(i >= 0, a[np.maximum(i, 0)], -1))
        wrong = i.copy()
        wrong[-1] = ROWS
        with pytest.raises(ts.ArgumentError, match=f"table at {ROWS} in dimension 0"):
            kernel(a, wrong)


def test_an_index_of_an_index_and_arithmetic_on_it() -> None:
    table = ts.placeholder((10, 20), name="table")
    inner = ts.placeholder((7,), "int32", name="inner")
    ids = ts.placeholder((N,), "int32", name="ids")
    out = ts.compute((N,), lambda i: table[3, 2 * inner[ids[i]] + 1], name="out")
    kernel = ts.build(ts.function([table, inner, ids, out]), ts.cpu(1), checked=True)
    t = np.random.default_rng(0).standard_normal((10, 20), dtype=np.float32)
    m, i = np.arange(7, dtype=np.int32), (np.arange(N) % 7).astype(np.int32)
    np.testing.assert_array_equal(kernel(t, m, i), t[3, 2 * m[i] + 1])
    i[5] = 7
    with pytest.raises(ts.ArgumentError, match="inner at 7 in dimension 0, which has 7"):
        kernel(t, m, i)
    i[5], m[2] = 0, 10
    with pytest.raises(ts.ArgumentError, match="table at 21 in dimension 1, which has 20"):
        kernel(t, m, i)


def test_a_checked_kernel_is_bound_and_pickled() -> None:
    table, ids = arrays()
    kernel = ts.build(lookup(), ts.cpu(1), checked=True)
    again = pickle.loads(pickle.dumps(kernel))
    call = again.bind(table, ids)
    np.testing.assert_array_equal(call(), table[ids])
    ids[0] = -7
    for run in (call, lambda: again(table, ids)):
        with pytest.raises(ts.ArgumentError, match="table at -7"):
            run()


def test_a_kernel_without_such_indices_is_the_same() -> None:
    x = ts.placeholder((N,), name="x")
    func = ts.function([x, ts.compute((N,), lambda i: x[i] * 2, name="y")])
    sch = ts.Schedule(func)
    plain, checked = ts.build(sch), ts.build(sch, checked=True)
    assert checked.source == plain.source
    assert checked.artifact.checks == ()
    assert ts.build(ts.Schedule(lookup())).artifact.checks == ()
