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


def phases() -> ts.Schedule:
    """A padded copy whose even and odd columns are stored apart, for windows that step by two."""
    x, w = ts.placeholder((5, 37), name="X"), ts.placeholder((3,), name="W")
    p = ts.compute((5, 39), lambda i, j: ts.where((j >= 1) & (j < 38), x[i, j - 1], 0.0), name="P")
    k = ts.reduce_axis(3, name="k")
    y = ts.compute((5, 19), lambda i, j: ts.sum(p[i, 2 * j + k] * w[k], axis=k), name="Y")
    sch = ts.Schedule(ts.function([x, w, y]))
    sch.transform_layout("P", lambda i, j: (i, j % 2, j // 2))
    sch.vectorize(sch.loops("P")[-1])
    return sch


def test_phases_are_stored_in_vectors() -> None:
    sch = phases()
    assert loops(sch.func)["P.j.tile"] == (19, "vectorize")
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((5, 37), np.float32), rng.standard_normal(3, np.float32)
    want = sum(np.pad(x, ((0, 0), (1, 1)))[:, k : k + 37 : 2] * w[k] for k in range(3))
    np.testing.assert_allclose(ts.build(sch, ts.cpu(1))(x, w), want, rtol=1e-5, atol=1e-5)


def test_whole_tiles_are_vectors_where_neighbours_are_stored_together() -> None:
    x = ts.placeholder((3, 40), name="X")
    p = ts.compute((3, 40), lambda i, j: x[i, j] * 2, name="P")
    sch = ts.Schedule(ts.function([x, ts.compute((3, 40), lambda i, j: p[i, j] + 1, name="Y")]))
    sch.transform_layout("P", lambda i, j: (j // 20, i, j % 20))
    sch.vectorize(sch.loops("P")[-1])
    assert loops(sch.func)["P.j.at"] == (20, "vectorize")
    given = np.random.default_rng(0).standard_normal((3, 40), np.float32)
    np.testing.assert_array_equal(ts.build(sch, ts.cpu(1))(given), given * 2 + 1)
