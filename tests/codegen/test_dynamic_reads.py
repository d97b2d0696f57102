"""Reads inside of data-dependent indices: they have a mask, and count as reads, like any other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilesmith as ts

N, TABLE = 37, 64
IDS = (np.arange(N) * 5 % TABLE).astype(np.int32)
M = np.where(np.arange(N) % 3 == 0, 1, -1).astype(np.float32)


def both(sch: ts.Schedule, func: ts.Function, *arrays: Any) -> None:
    """As scheduled, and with the innermost loop a vector besides."""
    want = ts.evaluate(func, *arrays)
    np.testing.assert_array_equal(ts.build(sch, ts.cpu(1))(*arrays), want)
    sch.vectorize(sch.loops(sch.blocks[-1])[-1])
    np.testing.assert_array_equal(ts.build(sch, ts.cpu(1))(*arrays), want)


def inputs() -> tuple[ts.Tensor, ts.Tensor]:
    return ts.placeholder((N,), "int32", name="ids"), ts.placeholder((N,), name="m")


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("shift", [0, -1])
def test_a_mask_reaches_what_an_inlined_index_reads(side: int, shift: int) -> None:
    ids, m = inputs()
    p = ts.compute((TABLE,), lambda j: ts.cast(j, "float32") * 2, name="p")

    def value(i: Any) -> Any:
        read = p[ids[i + shift]]
        chosen = (read, 0.0) if side == 0 else (0.0, read)
        return ts.where(m[i] > 0, *chosen)

    func = ts.function([ids, m, ts.compute((N,), value, name="c")])
    sch = ts.Schedule(func)
    sch.inline("p")
    mask = M.copy()
    mask[0] = 1 if side == 1 else -1  # the read in front of the table is not wanted
    both(sch, func, IDS, mask)


def test_where_within_where() -> None:
    ids, m = inputs()
    p = ts.compute((TABLE,), lambda j: ts.cast(j, "float32") * 2, name="p")
    c = ts.compute(
        (N,),
        lambda i: ts.where(m[i] > 0, 1.0, ts.where(i > 3, p[ids[i - 4]], p[ids[i] // 2])),
        name="c",
    )
    func = ts.function([ids, m, c])
    sch = ts.Schedule(func)
    sch.inline("p")
    both(sch, func, IDS, M)


def test_a_division_of_what_is_read() -> None:
    ids, m = inputs()
    p = ts.compute((TABLE,), lambda j: ts.cast(j // 3 + j % 5, "float32"), name="p")
    c = ts.compute((N,), lambda i: ts.where(m[i] > 0, 0.0, p[ids[i - 1]]), name="c")
    func = ts.function([ids, m, c])
    sch = ts.Schedule(func)
    sch.inline("p")
    mask = M.copy()
    mask[0] = 1
    both(sch, func, IDS, mask)


@pytest.mark.parametrize("reach", [0, 1, 2])
def test_a_loop_carries_no_cell_that_an_index_reads(reach: int) -> None:
    """The table of indices is made in the loop that reads it, through the value of an index."""
    ids, _ = inputs()
    moved = ts.compute((N,), lambda i: ids[i] + 1, name="moved")
    p = ts.compute((TABLE + 2,), lambda j: ts.cast(j, "float32") * 2, name="p")
    k = ts.reduce_axis(reach + 1, name="k")
    c = ts.compute((N - reach,), lambda i: ts.sum(p[moved[i + k]], axis=k), name="c")
    func = ts.function([ids, c])
    for unrolled in (False, True):
        sch = ts.Schedule(func)
        sch.inline("p")
        sch.compute_at("moved", sch.loops("c")[0])
        if unrolled:
            sch.unroll(sch.loops("moved")[-1])
            sch.unroll(sch.loops("c")[-1])
        want = ts.evaluate(func, IDS)
        np.testing.assert_array_equal(ts.build(sch, ts.cpu(1))(IDS), want)
