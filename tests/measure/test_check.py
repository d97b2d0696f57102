"""How much results may differ, and the text for those that differ more."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.ir.error_bounds import Bounded, evaluate_bounded
from tilesmith.ir.function import is_blunt
from tilesmith.ir.nodes import walk
from tilesmith.measure.child.check import Expected, from_bits, share_that_tells, to_bits
from tilesmith.measure.child.guarded_memory import Region
from tilesmith.task.inputs import Draw, drawn_shape, draws, example_inputs, next_prime

Array = np.ndarray[Any, Any]


def expected(func: ts.Function, *inputs: Array) -> Expected:
    """Of a Function with one output."""
    (result,) = evaluate_bounded(func, *inputs)
    zeros = np.zeros(result.value.shape, np.uint16)
    limits = zeros if result.error is None else to_bits(result.error)
    return Expected(func.outputs[0].name, result.value, limits)


def within(want: Array, limit: float) -> Expected:
    return Expected("C", want, to_bits(np.full(want.shape, limit, np.float32)))


def the_draw(func: ts.Function, kind: str) -> Draw:
    (found,) = [d for d in draws(func) if d.kind == kind]
    return found


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
    draw = draws(func)[0]
    a, b = example_inputs(func, 1, draw)
    right = expected(func, a, b)
    want = right.want
    kind = want.dtype
    total = np.zeros(want.shape, kind)
    for i in reversed(range(k)):  # rounded at every step, backwards
        total = (total + (a[:, i : i + 1] * b[i : i + 1, :]).astype(kind)).astype(kind)
    assert right.differs(total) is None
    term = a[:, :1].astype(np.float64) * b[:1, :]
    at = np.unravel_index(np.argmax(abs(term)), term.shape)
    lacking = want.copy()
    lacking[at] = (want.astype(np.float64) - term)[at]
    text = right.differs(lacking)
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
    right = expected(func, x, w)
    assert np.mean(np.abs(right.want) < 0.9) > 0.25
    total = np.zeros(right.want.shape, np.float32)
    for i in reversed(range(k)):  # rounded at every step, backwards
        total += x[:, i : i + 1] * w[i : i + 1, :]
    assert right.differs(np.tanh(total)) is None


def is_long(func: ts.Function) -> bool:
    return any(is_blunt(b) for _, b in walk(func.body))


def test_long_sums_are_of_whole_numbers_too() -> None:
    assert not is_long(product(512, "float32"))
    assert is_long(product(1 << 17, "float32"))
    assert is_long(product(64, "float16"))
    assert not is_long(product(64, "float16", "float32"))
    assert [d.kind for d in draws(product(512, "float32"))] == ["ordinary"]
    assert [d.kind for d in draws(product(1 << 17, "float32"))] == ["whole", "ordinary"]
    narrow = product(4096, "float16")
    for x in example_inputs(narrow, 0, the_draw(narrow, "whole")):
        assert (x == np.rint(x)).all()
        assert (x < 0).any()
        assert (x > 0).any()


def test_narrow_integers_cover_their_range() -> None:
    for dtype in ("int8", "uint8", "int16"):
        (x,) = example_inputs(elementwise(lambda v: v, dtype), 0)
        info = np.iinfo(dtype)
        assert x.min() == info.min
        assert x.max() == info.max


def test_what_sums_nothing_is_also_tried_with_special_numbers() -> None:
    func = elementwise(lambda v: v * 2, "float32")
    (x,) = example_inputs(func, 0, the_draw(func, "special"))
    assert np.isnan(x).any()
    assert np.isinf(x).any()
    assert (np.abs(x) > 1e30).any()
    assert ((x != 0) & (np.abs(x) < 1e-30)).any()
    assert np.signbit(x[x == 0]).any()


def test_not_a_number_is_wrong_unless_it_is_wanted() -> None:
    want = np.ones((2, 2), np.float32)
    got = want.copy()
    got[1, 0] = np.nan
    text = within(want, 0.1).differs(got)
    assert text is not None
    assert "C[1, 0] is nan" in text
    assert within(got, 0.1).differs(got) is None
    assert within(got, 0.1).differs(want) is not None
    assert within(want, np.nan).differs(got) is None  # anything is right
    infinite = np.array([[np.inf, 1]], np.float32)
    assert within(infinite, 0.1).differs(infinite) is None
    assert within(infinite, 0.1).differs(-infinite) is not None


def test_limits_of_16_bits_are_not_below_the_limits() -> None:
    exact = np.abs(np.random.default_rng(0).standard_normal(10_000)).astype(np.float32)
    exact[:4] = 0, np.inf, np.nan, np.finfo(np.float32).max
    kept = from_bits(to_bits(exact))
    assert kept[0] == 0
    assert np.isinf(kept[[1, 3]]).all()
    assert np.isnan(kept[2])
    assert (kept[4:] >= exact[4:]).all()
    assert (kept[4:] <= exact[4:] * np.float32(1.01)).all()


def elementwise(f: Callable[[ts.Value], ts.Value], dtype: str) -> ts.Function:
    x = ts.placeholder((2000,), dtype, name="X")
    return ts.function([x, ts.compute((2000,), lambda i: f(x[i]), name="Y")])


def test_integers_are_equal_but_where_a_float_is_about_to_tip() -> None:
    x = np.linspace(-20, 20, 2000).astype(np.float32)
    x[7] = 0.75 / 10.3  # rounds to 1
    x[8] = np.float32(0.5 / 10.3)  # may round to 0 or 1
    right = expected(elementwise(lambda v: ts.cast(ts.round(v * 10.3), "int32"), "float32"), x)
    assert right.want[7] == 1
    for at, by, is_right in ((7, 1, False), (8, 1 - 2 * right.want[8], True), (8, 2, False)):
        got = right.want.copy()
        got[at] += by
        assert (right.differs(got) is None) == is_right
    whole = expected(elementwise(lambda v: v + 1, "int32"), np.arange(2000, dtype=np.int32))
    assert whole.is_exact
    assert whole.differs(whole.want + (np.arange(2000) == 3)) is not None


def test_large_integers_that_are_equal_as_floats_differ() -> None:
    want = np.full(10, 2**60, np.int64)
    right = Expected("Y", want, np.zeros(10, np.uint16))
    assert right.differs(want) is None
    assert right.differs(want + 1) is not None


def test_truth_is_a_byte() -> None:
    want = np.array([True, False])
    right = Expected("Y", want, np.zeros(2, np.uint16))
    assert right.differs(want) is None
    assert right.differs(~want) is not None
    assert right.differs(np.array([0x55, 0], np.uint8).view(bool)) is not None


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
    want = np.ones((200, 1000), np.float32)
    right, got = within(want, 1e-4), want.copy()
    assert right.differs(got) is None
    got.reshape(-1)[at] = wrong
    text = right.differs(got)
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
    right = expected(func, x)
    finer = x.astype(np.float64)
    got = (np.tanh(finer) * finer + 1).astype(right.want.dtype)
    assert (got != right.want).any()
    assert right.differs(got) is None
    assert right.differs(got * got.dtype.type(1.05)) is not None


def test_operands_in_a_narrow_type_allow_no_more() -> None:
    """Values that are only loaded, cast or compared are exact, and so are products of two of them
    in a type with twice the digits.
    """
    x, y = ts.placeholder((8,), "bfloat16", name="X"), ts.placeholder((8,), "bfloat16", name="Y")

    def body(i: ts.Value) -> ts.Value:
        return ts.cast(ts.maximum(x[i], -y[i]), "float32") * ts.cast(y[i], "float32")

    func = ts.function([x, y, ts.compute((8,), body, name="Z")])
    assert expected(func, *example_inputs(func)).is_exact


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_arithmetic_can_be_tuned(dtype: str) -> None:
    func = narrow_inside(dtype, "float32")
    result = ts.tune(func, ts.cpu(1), budget=ts.Budget(trials=2), quiet=True)
    assert not result.failures


def test_draws_that_tell_little() -> None:
    def share(values: Array, error: Array | None = None) -> float:
        return share_that_tells(Bounded(values, error))

    numbers = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    assert share(numbers) == 1
    assert share(np.where(numbers > 0, np.float32(np.nan), numbers)) < 0.6
    assert share(numbers, np.abs(numbers) + 10) == 0
    assert share(np.full(1000, np.inf, np.float32)) == 0
    clipped = np.where(numbers > 0, 127, -128).astype(np.int8)
    assert share(clipped) < 0.5
    assert share(np.clip(numbers * 40, -128, 127).astype(np.int8)) == 1
    for kind in (bool, np.int32):
        assert share((numbers > 0).astype(kind)) == 1
        assert share((numbers > 2.5).astype(kind)) < 0.5
    assert share(np.zeros((0, 3), np.float32)) == 1


def test_large_inputs_repeat_rows_that_no_tile_divides():
    x = ts.placeholder((3000, 1024), name="X")
    func = ts.function([x, ts.ops.relu(x)])
    (data,) = example_inputs(func)
    assert data.shape == (3000, 1024)
    rows = drawn_shape((3000, 1024))[0]
    assert next_prime(rows) == rows  # a prime number
    assert rows < 3000
    np.testing.assert_array_equal(data[rows:], data[: 3000 - rows])
    assert len(np.unique(data[:rows].round(6), axis=0)) == rows
    assert drawn_shape((100, 10)) == (100, 10)
    assert len(drawn_shape((1 << 24,))) == 1
