"""Loops that an address divides are split there, and those that it only seems to divide are not."""

from __future__ import annotations

import numpy as np
from lowered import lower

import tilesmith as ts
from tilesmith.ir.nodes import For, statements


def doubled(rows: int, columns: int) -> ts.Function:
    x = ts.placeholder((4, rows, columns), name="X")
    y = ts.compute((4, rows, columns), lambda i, j, k: x[i, j, k] * 2, name="Y")
    return ts.function([x, y])


def loops(func: ts.Function) -> dict[str, tuple[int | None, str]]:
    found = (s for s in statements(lower(func).body) if isinstance(s, For))
    return {f.name: (f.extent.const, f.kind) for f in found}


def test_rows_that_lie_behind_each_other_are_one_vector() -> None:
    sch = ts.Schedule(doubled(10, 3))
    row = sch.fuse("Y.j", "Y.k")
    sch.vectorize(row)
    assert loops(sch.func)[row] == (30, "vectorize")
    x = np.random.default_rng(0).standard_normal((4, 10, 3), np.float32)
    np.testing.assert_array_equal(ts.build(sch, ts.cpu(1))(x), 2 * x)


def test_rows_that_lie_elsewhere_are_not() -> None:
    sch = ts.Schedule(doubled(10, 3))
    row = sch.fuse("Y.j", "Y.k")
    sch.vectorize(row)
    sch.transform_layout("X", lambda i, j, k: (i, k, j))
    assert row not in loops(sch.func)
    x = np.random.default_rng(0).standard_normal((4, 10, 3), np.float32)
    kernel = ts.build(sch, ts.cpu(1))
    np.testing.assert_array_equal(kernel(kernel.pack("X", x)), 2 * x)
