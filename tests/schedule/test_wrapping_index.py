"""Integers wrap around in their own type, also where a stage goes into an index."""

from __future__ import annotations

import numpy as np
import pytest
from cases import refuse

import tilesmith as ts
from tilesmith.expr.ints import opaque_atoms
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import walk
from tilesmith.schedule.schedule import Schedule

TABLE = np.arange(1000, dtype=np.float32)


def check(func: Function, steps, *arrays: np.ndarray, table: np.ndarray = TABLE) -> Schedule:
    """Oracle, interpreter and kernel agree before and after the steps."""
    want = ts.evaluate(func, *arrays, table)
    sch = Schedule(func)
    steps(sch)
    for f in (func, sch.func):
        np.testing.assert_array_equal(ts.evaluate(f, *arrays, table), want)
        np.testing.assert_array_equal(ts.interpret(f, *arrays, table), want)
        np.testing.assert_array_equal(ts.build(f)(*arrays, table), want)
    return sch


def inline(sch: Schedule) -> None:
    sch.inline("P")


def inline_and_vectorize(sch: Schedule) -> None:
    sch.inline("P")
    sch.vectorize("C.i")


def lookup(dtype: str, value, n: int = 8, size: int = 1000) -> Function:
    """C[i] = T[P[i]], where P[i] is `value` of X[i] and i."""
    x = ts.placeholder((n,), dtype, name="X")
    t = ts.placeholder((size,), name="T")
    p = ts.compute((n,), lambda i: value(x[i], i), name="P")
    c = ts.compute((n,), lambda i: t[p[i]], name="C")
    return ts.function([x, t, c])


WRAPPING = {
    "uint8 sum": ("uint8", lambda x, i: x + 100, 200),
    "uint8 difference": ("uint8", lambda x, i: x - 201, 200),
    "uint8 product": ("uint8", lambda x, i: x * 3, 200),
    "int8 sum": ("int8", lambda x, i: x + 100 + 100, 100),
    "int8 product": ("int8", lambda x, i: x * x, 17),
    "int16 product": ("int16", lambda x, i: x * x, 256),
    "uint16 sum": ("uint16", lambda x, i: x + 65000, 600),
    "int32 product": ("int32", lambda x, i: x * x + 7, 65536),
    "int32 sum": ("int32", lambda x, i: x + x, -(2**31)),
    "uint32 difference": ("uint32", lambda x, i: x - 4294967290, 2),
    "sum with an axis": ("uint8", lambda x, i: x + i, 252),
    "product with an axis": ("uint8", lambda x, i: x * (i + 1), 200),
    "quotient of a wrapped sum": ("uint8", lambda x, i: (x + 100) // 3, 200),
    "remainder of a wrapped sum": ("uint8", lambda x, i: (x + 100) % 7, 200),
    "a choice": ("uint8", lambda x, i: ts.where(x > 100, x, x + 1) + 100, 200),
    "cast to uint8": ("int32", lambda x, i: ts.cast(x, "uint8"), 300),
    "cast to int8, then up": ("int32", lambda x, i: ts.cast(ts.cast(x, "int8"), "int32") + 99, 300),
    "cast of a negative": ("int32", lambda x, i: ts.cast(ts.cast(x, "uint8"), "int32"), -100),
    "cast of an axis": ("uint8", lambda x, i: ts.cast(i * 100, "uint8"), 0),
    "cast of an axis to int8": (
        "uint8", lambda x, i: ts.cast(ts.cast(i * 36, "int8"), "int32") + 200, 0,
    ),
    "cast of a float": ("float32", lambda x, i: ts.cast(x * 2, "int32") + 1, 41.7),
    "maximum": ("uint8", lambda x, i: ts.maximum(x + 100, 50), 200),
}  # fmt: skip


@pytest.mark.parametrize("name", WRAPPING)
@pytest.mark.parametrize("steps", [inline, inline_and_vectorize])
def test_an_inlined_index_wraps_as_its_stage_did(name, steps):
    dtype, value, x = WRAPPING[name]
    check(lookup(dtype, value), steps, np.full(8, x, dtype))


@pytest.mark.parametrize("name", WRAPPING)
def test_an_index_that_is_written_out_wraps_alike(name):
    """The same arithmetic inside of T[...], without a stage of its own."""
    dtype, value, x = WRAPPING[name]
    xs, t = ts.placeholder((8,), dtype, name="X"), ts.placeholder((1000,), name="T")
    c = ts.compute((8,), lambda i: t[value(xs[i], i)], name="C")
    array = np.full(8, x, dtype)
    want = ts.evaluate(lookup(dtype, value), array, TABLE)
    sch = check(ts.function([xs, t, c]), lambda s: None, array)
    np.testing.assert_array_equal(ts.evaluate(sch.func, array, TABLE), want)


def test_reverse_inline_keeps_the_arithmetic():
    func = lookup("uint8", lambda x, i: x + 100)
    check(func, lambda s: s.reverse_inline("C"), np.full(8, 200, np.uint8))


def test_a_chain_of_stages():
    x, t = ts.placeholder((8,), "uint8", name="X"), ts.placeholder((1000,), name="T")
    p = ts.compute((8,), lambda i: x[i] + 100, name="P")
    q = ts.compute((8,), lambda i: ts.cast(p[i] + 200, "int32") * 3, name="Q")
    c = ts.compute((8,), lambda i: t[q[i]], name="C")
    for order in (("P", "Q"), ("Q", "P")):
        check(ts.function([x, t, c]), lambda s, o=order: [s.inline(b) for b in o],
              np.full(8, 200, np.uint8))  # fmt: skip


def test_an_index_of_an_index():
    x, t = ts.placeholder((8,), "uint8", name="X"), ts.placeholder((1000,), name="T")
    u = ts.placeholder((256,), "uint8", name="U")
    p = ts.compute((8,), lambda i: x[i] + 100, name="P")
    q = ts.compute((8,), lambda i: u[p[i]] + 99, name="Q")
    c = ts.compute((8,), lambda i: t[q[i]], name="C")
    many = np.arange(256, dtype=np.uint8)
    func = ts.function([x, u, t, c])
    check(func, lambda s: [s.inline("P"), s.inline("Q")], np.full(8, 200, np.uint8), many)


def test_compute_at_and_rfactor_with_a_wrapped_index():
    x, t = ts.placeholder((4, 8), "uint8", name="X"), ts.placeholder((1000,), name="T")
    k = ts.reduce_axis(8, name="k")
    p = ts.compute((4, 8), lambda i, j: x[i, j] + 100, name="P")
    c = ts.compute((4,), lambda i: ts.sum(t[p[i, k]], axis=k), name="C")
    func = ts.function([x, t, c])
    array = np.arange(150, 182, dtype=np.uint8).reshape(4, 8)
    check(func, lambda s: s.compute_at("P", "C.i"), array)

    def partial(sch: Schedule) -> None:
        sch.inline("P")
        _, inner = sch.split("C.k", [None, 4])
        sch.rfactor(inner)

    check(func, partial, array)


def test_arithmetic_that_cannot_wrap_is_a_plain_index():
    """Casts of a short axis leave an index over loops, which later primitives understand."""
    x = ts.placeholder((64,), name="X")
    p = ts.compute((8,), lambda i: ts.cast(ts.cast(i, "int32") * 3 + 2, "uint8"), name="P")
    c = ts.compute((8,), lambda i: x[p[i]], name="C")
    d = ts.compute((8,), lambda i: x[ts.cast(i, "int32") + 1], name="D")
    sch = Schedule(ts.function([x, c, d]))
    sch.inline("P")
    for _, b in walk(sch.func.body):
        for load in b.loads:
            assert not any(True for p in load.index for _ in opaque_atoms(p)), str(load)
    array = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(ts.interpret(sch.func, array)[0], array[2:26:3])


def test_int64_arithmetic_is_taken_apart():
    """It does not wrap in any table, so that a load along an axis is one of neighbours."""
    starts, x = ts.placeholder((4,), "int64", name="S"), ts.placeholder((64,), name="X")
    c = ts.compute((4, 8), lambda i, j: x[starts[i] + j], name="C")
    assert "X[S[i] + j]" in str(ts.function([starts, x, c]))


def test_pad_refuses_an_index_that_zeros_would_send_elsewhere():
    """Zeros behind ids mean the first element of the table; 100 beyond that there is nothing."""
    ids, t = ts.placeholder((5,), "int32", name="ids"), ts.placeholder((8,), "int32", name="T")
    w, k = ts.placeholder((5,), "int32", name="W"), ts.reduce_axis(5, name="k")
    c = ts.compute((), lambda: ts.sum(t[ids[k] + 100] * w[k], axis=k), name="C")
    func = ts.function([ids, t, w, c])
    refuse(func, lambda s: s.pad("C", {"k": 4}), "cannot pad C", "T at", "ids[k]")
    plain = ts.compute((), lambda: ts.sum(t[ids[k]] * w[k], axis=k), name="C")
    sch = Schedule(ts.function([ids, t, w, plain]))
    sch.pad("C", {"k": 4})
    arrays = np.array([7, 1, 2, 3, 4], np.int32), np.arange(8.0), np.ones(5)
    assert ts.interpret(sch.func, *arrays) == 17
