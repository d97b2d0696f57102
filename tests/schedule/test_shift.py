"""shift_operand: a factor of uint8 is read as int8, or the other way round, and sums stay exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import assert_kept, matmul_relu, refuse

import tilesmith as ts
from tilesmith.expr.dsl import Value
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.function import Function
from tilesmith.ir.interpreter import interpret
from tilesmith.ir.prepare import AppendSums, AppendZeros
from tilesmith.ir.serialize import function_to_json
from tilesmith.schedule.schedule import Schedule
from tilesmith.schedule.trace import Trace

EXTREMES = {"uint8": (0, 1, 127, 128, 255), "int8": (-128, -1, 0, 1, 127)}


def product(left: str, right: str, constant: bool, k: int = 7, total: str = "int32") -> Function:
    a, b = ts.placeholder((5, k), left, name="A"), ts.placeholder((k, 6), right, name="B")
    s = ts.reduce_axis(k, name="k")

    def body(i: Value, j: Value) -> Value:
        return ts.sum(ts.cast(a[i, s], total) * ts.cast(b[s, j], total), axis=s)

    c = ts.compute((5, 6), body, name="C")
    return ts.function([a, b, c], constants=[b] if constant else [])


def extremes(func: Function, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return [
        rng.choice(np.array(EXTREMES[p.dtype.name], p.dtype.numpy), [e.const for e in p.shape])
        for p in func.inputs
    ]


def assert_exact(sch: Schedule, arrays: list[np.ndarray[Any, Any]]) -> None:
    want = ts.evaluate(sch.origin, *arrays)
    np.testing.assert_array_equal(interpret(sch.func, *arrays), want)
    np.testing.assert_array_equal(ts.evaluate(sch.func, *arrays), want)
    kernel = ts.build(sch, ts.cpu(num_cores=1))
    given = [kernel.pack(p.name, x) for p, x in zip(sch.func.inputs, arrays, strict=True)]
    np.testing.assert_array_equal(kernel(*given), want)
    assert Trace.from_json(sch.trace.to_json()).apply(sch.origin) == sch.func
    assert function_from_json(function_to_json(sch.func)) == sch.func


@pytest.mark.parametrize("left", EXTREMES)
@pytest.mark.parametrize("right", EXTREMES)
@pytest.mark.parametrize("constant", [False, True], ids=["given", "constant"])
@pytest.mark.parametrize("which", "AB")
def test_sums_stay_exact(left: str, right: str, constant: bool, which: str) -> None:
    func = product(left, right, constant)
    sch = Schedule(func)
    assert sch.shift_operand("C", which) == "C.shifted"
    other = "int8" if func.all_buffers[which].dtype.name == "uint8" else "uint8"
    assert sch.func.all_buffers[f"{which}.shifted"].dtype.name == other
    assert_exact(sch, extremes(func))


def test_sums_of_a_constant_are_taken_ahead() -> None:
    """The kernel sums nothing but products; its parameter ends in the sums, after the zeros."""
    sch = Schedule(product("uint8", "int8", constant=True))
    sch.pad("C", {"k": 4})
    sch.shift_operand("C.pad", "A.pad")
    b = next(p for p in sch.func.params if p.name == "B")
    assert b.prepared == (AppendZeros((1, 0)), AppendSums((0,)))
    assert [e.const for e in b.given_shape] == [7, 6]
    assert [e.const for e in b.shape] == [12, 6]
    assert "with sums over d0" in str(sch.func)
    arrays = extremes(sch.origin)
    packed = ts.pack(sch.func, "B", arrays[1]).astype(np.int64)
    digits = packed[8:] * 256 ** np.arange(4)[:, None]
    np.testing.assert_array_equal(digits.sum(0), arrays[1].sum(0, dtype=np.int64))
    assert_exact(sch, arrays)


def test_a_constant_that_others_read_is_summed_by_the_kernel() -> None:
    a, b = ts.placeholder((3, 4), "uint8", name="A"), ts.placeholder((4, 5), "int8", name="B")
    c = ts.ops.matmul(a, b, name="C")
    d = ts.compute((4, 5), lambda i, j: ts.cast(b[i, j], "int32"), name="D")
    sch = Schedule(ts.function([a, b, c, d], constants=[b]))
    sch.shift_operand("C", "A")
    assert not any(p.prepared for p in sch.func.params)
    arrays = extremes(sch.origin)
    for got, want in zip(interpret(sch.func, *arrays), ts.evaluate(sch.origin, *arrays),
                         strict=True):  # fmt: skip
        np.testing.assert_array_equal(got, want)


def test_sums_beyond_32_bits_wrap_as_the_oracle_does() -> None:
    """Of int16, so that few products overflow; the correction wraps as well."""
    sch = Schedule(product("uint8", "int8", constant=True, k=70, total="int16"))
    arrays = [np.full((5, 70), 255, np.uint8), np.full((70, 6), -128, np.int8)]
    want = ts.evaluate(sch.origin, *arrays)
    assert int(want[0, 0]) != 70 * 255 * -128
    sch.shift_operand("C", "A")
    assert_exact(sch, arrays)


def test_the_order_in_a_window_sum_of_a_convolution() -> None:
    """Padding is 0 before the shift, and the sums are those over all taps and channels."""
    x = ts.placeholder((1, 4, 4, 3), "uint8", name="X")
    w = ts.placeholder((3, 2, 3, 5), "int8", name="W")
    func = ts.function([x, w, ts.ops.conv2d(x, w, padding=1, layout="NHWC", name="Y")],
                       constants=[w])  # fmt: skip
    sch = Schedule(func)
    sch.shift_operand("Y", "pad")
    sch.inline("pad")
    assert next(p for p in sch.func.params if p.name == "W").prepared == (AppendSums((0, 2, 1)),)
    assert_exact(sch, extremes(func))


@pytest.mark.parametrize("constant", [False, True], ids=["given", "constant"])
def test_both_factors_are_shifted_there_and_back(constant: bool) -> None:
    sch = Schedule(product("uint8", "int8", constant))
    block = sch.shift_operand("C", "A")
    block = sch.shift_operand(block, "B")
    block = sch.shift_operand(block, "A.shifted")
    sch.shift_operand(block, "B.shifted")
    assert_exact(sch, extremes(sch.origin))
    assert_kept(sch)


def test_shift_operand_refuses() -> None:
    f = product("uint8", "int8", constant=False)
    refuse(f, lambda s: s.shift_operand("C", "X"), "shift_operand X of C", "['A', 'B']")
    refuse(f, lambda s: s.shift_operand("Z", "A"), "no block 'Z'")
    floats = matmul_relu()
    refuse(floats, lambda s: s.shift_operand("C", "A"), "no factor of 8 bits", "these are []")
    refuse(floats, lambda s: s.shift_operand("D", "C"), "no factor of 8 bits")

    def split_first(s: Schedule) -> None:
        s.split(s.loops("C")[0], [None, 2])
        s.shift_operand("C", "A")

    refuse(f, split_first, "cannot shift_operand A of C", "before the block's loops are scheduled")
