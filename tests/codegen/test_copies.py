"""Copies of an unrolled store are filled in from the first: what is one value there may be two
elsewhere.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.dtype import FLOAT32
from tilesmith.codegen.llvm.builder import F32, V
from tilesmith.codegen.llvm.copies import Operand, Place, Recording
from tilesmith.codegen.llvm.frames import Memory

X = Memory("x", "%x", FLOAT32, (1,), (8,), 1, 64)


def place(offset: int = 0, lanes: int = 1) -> Place:
    return Place(X, (), offset, (("i", 1),), lanes)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("lanes", [False, True])
def test_two_operands_that_meet_in_the_first_copy_part_in_others(lanes: bool) -> None:
    x = ts.placeholder((6, 16), name="x")
    y = ts.compute((6, 6, 16), lambda i, j, k: x[i, k] * x[j, k] + x[j, k], name="y")
    sch = ts.Schedule(ts.function([x, y]))
    i, j, k = sch.loops("y")
    sch.unroll(i, j)
    if lanes:
        sch.vectorize(k)
    a = random(6, 16)
    np.testing.assert_allclose(ts.build(sch, ts.cpu(1))(a), a[:, None] * a + a, rtol=1e-5)


def test_a_sum_that_begins_with_a_constant_goes_on_with_values() -> None:
    x, w = ts.placeholder((4, 5), name="x"), ts.placeholder((5, 32), name="w")
    r = ts.reduce_axis(5, name="r")
    y = ts.compute((4, 32), lambda i, j: ts.sum(x[i, r] * w[r, j], axis=r), name="y")
    sch = ts.Schedule(ts.function([x, w, y]))
    i, j, k = sch.loops("y")
    sch.reorder(k, i, j)
    sch.unroll(i, k)
    sch.vectorize(j)
    a, b = random(4, 5), random(5, 32)
    np.testing.assert_allclose(ts.build(sch, ts.cpu(1))(a, b), a @ b, rtol=1e-4, atol=1e-5)


def test_a_buffer_made_anew_in_each_copy_is_another() -> None:
    x = ts.placeholder((3, 40), name="x")
    t = ts.compute((3, 40), lambda i, j: ts.exp(x[i, j]), name="t")
    y = ts.compute((3, 40), lambda i, j: t[i, j] + t[i, 39 - j], name="y")
    sch = ts.Schedule(ts.function([x, y]))
    i, _ = sch.loops("y")
    sch.compute_at("t", i)
    sch.unroll(i)
    sch.vectorize(sch.loops("t")[-1])
    e = np.exp(a := random(3, 40))
    np.testing.assert_allclose(ts.build(sch, ts.cpu(1))(a), e + e[:, ::-1], rtol=1e-5)


def recording() -> Recording:
    rec = Recording([])
    rec.add(V("%v1", F32), Operand(place()))
    rec.lines = ["  %v2 = fmul float %v1, %v1", "  %v3 = fadd float %v2, 0x0"]
    return rec


def test_what_is_kept_is_the_text_with_gaps() -> None:
    copy = recording().copy([(place(), V("%v3", F32))])
    assert copy is not None
    filled = copy.text.format("%v7", "%v8", "%v9")
    assert filled == "  %v8 = fmul float %v7, %v7\n  %v9 = fadd float %v8, 0x0"
    assert copy.writes == ((place(), 2, F32),)


def test_what_another_copy_could_not_know_is_not_kept() -> None:
    rec = recording()
    rec.add(V("%v1", F32), Operand(place(4)))  # two places, one value
    assert rec.copy([]) is None
    rec = recording()
    rec.add(V("0x0", F32), Operand(place(4)))  # a constant here
    assert rec.copy([]) is None
    rec = recording()
    rec.lines.append("  %v4 = fadd float %v3, %c9")  # a value from elsewhere
    assert rec.copy([]) is None
    assert recording().copy([(place(), V("%c9", F32))]) is None
