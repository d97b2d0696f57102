"""How much results may differ, and the text for those that differ more."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.measure.child.check import Expected, tolerance
from tilesmith.measure.child.guarded_memory import Region
from tilesmith.task.inputs import example_inputs, needs_whole_numbers


def product(k: int, dtype: str, acc: str | None = None) -> ts.Function:
    a, b = ts.placeholder((4, k), dtype, name="A"), ts.placeholder((k, 6), dtype, name="B")
    r = ts.reduce_axis(k, name="k")
    wide = acc or dtype

    def body(i: ts.Value, j: ts.Value) -> ts.Value:
        return ts.sum(ts.cast(a[i, r], wide) * ts.cast(b[r, j], wide), axis=r)

    return ts.function([a, b, ts.compute((4, 6), body, name="C")])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("k", [3, 512, 5000])
def test_other_orders_pass_and_missing_terms_do_not(dtype: str, k: int) -> None:
    func = product(k, dtype)
    a, b = example_inputs(func, 1)
    want = ts.evaluate(func, a, b)
    expected = Expected("C", want, tolerance(func))
    kind = want.dtype
    total = np.zeros(want.shape, kind)
    for i in reversed(range(k)):  # rounded at every step, backwards
        total = (total + (a[:, i : i + 1] * b[i : i + 1, :]).astype(kind)).astype(kind)
    assert expected.differs(total) is None
    if dtype == "bfloat16" and k > 512:
        return  # 8 bits of mantissa: one term may be lost in the sum
    term = a[:, :1].astype(np.float64) * b[:1, :]
    at = np.unravel_index(np.argmax(abs(term)), term.shape)
    lacking = want.copy()
    lacking[at] = (want.astype(np.float64) - term)[at]
    text = expected.differs(lacking)
    assert text is not None
    assert f"C[{at[0]}, {at[1]}]" in text
    assert "1 of 24 elements" in text


@pytest.mark.parametrize("seed", range(5))
def test_sums_in_front_of_a_flat_function_are_not_large(seed: int) -> None:
    """Its argument is near 0 where it is steep. Errors of the sum show there, and would not be seen
    elsewhere.
    """
    k = 4096
    a, b = ts.placeholder((16, k), name="A"), ts.placeholder((k, 64), name="B")
    c = ts.ops.matmul(a, b)
    y = ts.compute((16, 64), lambda i, j: ts.tanh(c[i, j]), name="Y")
    func = ts.function([a, b, y])
    x, w = example_inputs(func, seed)
    want = ts.evaluate(func, x, w)
    assert np.mean(np.abs(want) < 0.9) > 0.5
    total = np.zeros(want.shape, np.float32)
    for i in reversed(range(k)):  # rounded at every step, backwards
        total += x[:, i : i + 1] * w[i : i + 1, :]
    assert Expected("Y", want, tolerance(func)).differs(np.tanh(total)) is None


def test_long_sums_are_of_whole_numbers() -> None:
    assert not needs_whole_numbers(product(512, "float32"))
    assert needs_whole_numbers(product(1 << 17, "float32"))
    assert needs_whole_numbers(product(64, "float16"))
    assert not needs_whole_numbers(product(64, "float16", "float32"))
    for x in example_inputs(product(64, "float16")):
        assert set(np.unique(x.astype(int))) == {-1, 0, 1}


def test_not_a_number_is_wrong_unless_it_is_wanted() -> None:
    func = product(3, "float32")
    want = np.ones((2, 2), np.float32)
    got = want.copy()
    got[1, 0] = np.nan
    text = Expected("C", want, tolerance(func)).differs(got)
    assert text is not None
    assert "C[1, 0] is nan" in text
    assert Expected("C", got, tolerance(func)).differs(got) is None
    assert Expected("C", got, tolerance(func)).differs(want) is not None
    infinite = np.array([[np.inf, 1]], np.float32)
    assert Expected("C", infinite, tolerance(func)).differs(infinite) is None
    assert Expected("C", infinite, tolerance(func)).differs(-infinite) is not None


def elementwise(f: Callable[[ts.Value], ts.Value], dtype: str) -> ts.Function:
    x = ts.placeholder((2000,), dtype, name="X")
    return ts.function([x, ts.compute((2000,), lambda i: f(x[i]), name="Y")])


def test_integers_are_equal_unless_floats_were_rounded() -> None:
    exact = tolerance(elementwise(lambda v: v + 1, "int32"))
    tipped = tolerance(elementwise(lambda v: ts.cast(ts.round(v * 10.3), "int32"), "float32"))
    want = np.arange(2000, dtype=np.int32)
    got = want.copy()
    got[7] += 1
    assert Expected("Y", want, exact).differs(got) is not None
    assert Expected("Y", want, tipped).differs(got) is None
    assert Expected("Y", want, tipped).differs(want + 1) is not None


def test_truth_is_a_byte() -> None:
    func = elementwise(lambda v: v > 0, "int32")
    want = np.array([True, False])
    expected = Expected("Y", want, tolerance(func))
    assert expected.differs(want) is None
    assert expected.differs(np.array([0x55, 0], np.uint8).view(bool)) is not None


def test_regions() -> None:
    tight, aligned = Region("X", 4000), Region("X", 4000, tight=False)
    assert (tight.address + 4000) % mmap.PAGESIZE == 0
    assert aligned.address % 64 == 0
    assert tight.is_intact
    tight.free()
    aligned.free()
    Region("nothing", 0).free()


@pytest.mark.parametrize("at", [0, (1 << 16) - 1, 1 << 16, 150_000, 199_999])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, 3.0])
def test_one_wrong_element_of_many_is_found(at: int, wrong: float) -> None:
    """Long arrays are compared in pieces."""
    func = product(8, "float32")
    want = np.ones((200, 1000), np.float32)
    expected, got = Expected("C", want, tolerance(func)), want.copy()
    assert expected.differs(got) is None
    got.reshape(-1)[at] = wrong
    text = expected.differs(got)
    assert text is not None
    assert f"C[{at // 1000}, {at % 1000}]" in text
    assert "1 of 200000 elements are off" in text


def narrow_inside(dtype: str, wide: str) -> ts.Function:
    """Arithmetic in `dtype` within an expression whose result is stored in a wider type."""
    x = ts.placeholder((8, 9), dtype, name="X")

    def body(i: ts.Value, j: ts.Value) -> ts.Value:
        return ts.cast(ts.tanh(x[i, j]) * x[i, j], wide) + 1

    return ts.function([x, ts.compute((8, 9), body, name="Y")], name="narrow_inside")


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        ("bfloat16", "float32"), ("float16", "float32"), ("bfloat16", "float64"),
        ("float32", "float64"),
    ],
)  # fmt: skip
def test_what_is_computed_in_a_narrow_type_is_as_exact_as_that_type(dtype: str, wide: str) -> None:
    """A kernel may compute 16-bit floats in float32, and functions of float32 differ in the last
    bit. It shows if a wider type holds the result.
    """
    func = narrow_inside(dtype, wide)
    (x,) = example_inputs(func, 0)
    expected = Expected("Y", ts.evaluate(func, x), tolerance(func))
    finer = x.astype(np.float64)
    got = (np.tanh(finer) * finer + 1).astype(expected.want.dtype)
    assert (got != expected.want).any()
    assert expected.differs(got) is None
    assert expected.differs(got + got.dtype.type(0.75)) is not None


def test_operands_in_a_narrow_type_allow_no_more() -> None:
    """Values that are only loaded, cast or compared are exact."""
    x, y = ts.placeholder((8,), "bfloat16", name="X"), ts.placeholder((8,), "bfloat16", name="Y")

    def body(i: ts.Value) -> ts.Value:
        return ts.cast(ts.maximum(x[i], -y[i]), "float32") * ts.cast(y[i], "float32")

    func = ts.function([x, y, ts.compute((8,), body, name="Z")])
    plain = ts.placeholder((8,), name="P")
    other = ts.function([plain, ts.compute((8,), lambda i: plain[i] * 2, name="Q")])
    assert tolerance(func) == tolerance(other)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_arithmetic_can_be_tuned(dtype: str) -> None:
    func = narrow_inside(dtype, "float32")
    result = ts.tune(func, ts.cpu(1), budget=ts.Budget(trials=2), quiet=True)
    assert not result.failures
