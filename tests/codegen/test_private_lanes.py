"""Buffers that are private to the lanes of a vectorized loop, in any layout."""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs

LAYOUTS = (
    ("d0", "d1"),
    ("d1", "d0"),
    ("d1 // 2", "d0", "d1 % 2"),
    ("d0", "7 - d1"),
    ("16*d0 + 2*d1",),
)


def columns(dtype: str) -> ts.Schedule:
    """A sum and what reads it, both inside of the loop over columns."""
    a, r = ts.placeholder((3, 8), dtype, name="A"), ts.reduce_axis(3, name="r")
    b = ts.compute((2, 8), lambda i, j: ts.sum(a[r, j] + i, axis=r), name="B")
    c = ts.compute((2, 8), lambda i, j: b[i, j] + b[1 - i, j], name="C")
    return ts.Schedule(ts.function([a, c]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16"])
@pytest.mark.parametrize("lanes", [8, 4, 3])
def test_lanes_keep_their_elements(layout: tuple[str, ...], dtype: str, lanes: int) -> None:
    sch = columns(dtype)
    _, last = sch.split("C.j", [None, lanes])
    sch.reorder(last, "C.i")
    sch.transform_layout("B", layout)
    sch.compute_at("B", last)
    sch.vectorize(last)
    arrays = random_inputs(sch.origin, np.random.default_rng(0))
    assert_close(ts.build(sch)(*arrays), ts.evaluate(sch.origin, *arrays), func=sch.origin)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8"])
@pytest.mark.parametrize("lanes", [5, 4, 3])
@pytest.mark.parametrize("reduce", [ts.sum, ts.amax], ids=["sum", "max"])
def test_lanes_are_joined_into_an_element_at_a_divided_index(reduce, dtype, lanes) -> None:
    """The loop over elements was cut, turned and fused, so that an index is no sum of loops."""
    x, w = ts.placeholder((5, 5), dtype, name="X"), ts.placeholder((5, 4), dtype, name="W")
    k = ts.reduce_axis(5, name="k")
    s = ts.compute((5, 4), lambda i, j: reduce(x[i, k] * w[k, j], axis=k), name="S")
    sch = ts.Schedule(ts.function([x, w, s]))
    _, last = sch.split("S.k", [None, lanes])
    sch.vectorize(last)
    parts = sch.split(sch.fuse("S.i", "S.j"), [None, 5, 3])
    sch.reorder(parts[1], parts[0], parts[2])
    sch.fuse(parts[1], parts[0])
    arrays = random_inputs(sch.origin, np.random.default_rng(0))
    assert_close(ts.build(sch)(*arrays), ts.evaluate(sch.origin, *arrays), func=sch.origin)
