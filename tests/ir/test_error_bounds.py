"""Bounds on rounding errors: no right program leaves them, and they are not wide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tests.support.programs import random_program
from tests.support.wide_programs import random_wide_program
from tilesmith.ir.error_bounds import Bounded, evaluate_bounded
from tilesmith.measure.child.check import Expected, to_bits
from tilesmith.task.inputs import draws, example_inputs

Array = np.ndarray[Any, Any]


def of(f: Callable[..., Any], *inputs: Array) -> Bounded:
    """f of the elements of some vectors."""
    given = [ts.placeholder(x.shape, x.dtype.name, name=f"X{k}") for k, x in enumerate(inputs)]
    y = ts.compute(inputs[0].shape, lambda i: f(*(x[i] for x in given)), name="Y")
    (result,) = evaluate_bounded(ts.function([*given, y]), *inputs)
    return result


def floats(*values: float, dtype: str = "float32") -> Array:
    return np.array(values, dtype)


@pytest.mark.parametrize("make", [random_program, random_wide_program])
@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_programs_that_compute_in_another_order_stay_within(make: Any, seed: int) -> None:
    """The interpreter sums one by one in the stated type, and kernels fuse."""
    func = make(np.random.default_rng(seed))
    for draw in draws(func):
        inputs = example_inputs(func, seed, draw)
        results = evaluate_bounded(func, *inputs)
        got = ts.interpret(func, *inputs)
        for b, r, g in zip(
            func.outputs, results, got if isinstance(got, tuple) else (got,), strict=True
        ):
            zeros = np.zeros(r.value.shape, np.uint16)
            limits = zeros if r.error is None else to_bits(r.error)
            assert Expected(b.name, r.value, limits).differs(g) is None


def test_values_are_those_of_the_oracle() -> None:
    for seed in range(8):
        func = random_program(np.random.default_rng(seed))
        inputs = example_inputs(func, seed)
        want = ts.evaluate(func, *inputs)
        for w, r in zip(
            want if isinstance(want, tuple) else (want,),
            evaluate_bounded(func, *inputs),
            strict=True,
        ):
            np.testing.assert_array_equal(r.value, w)


@pytest.mark.parametrize(
    ("f", "dtype"),
    [
        (lambda x: x, "float16"),
        (lambda x: -abs(x), "bfloat16"),
        (lambda x: ts.maximum(x, 0), "float32"),
        (lambda x: ts.where(x > 1, x, 7), "float32"),
        (lambda x: ts.floor(x), "float32"),
        (lambda x: ts.cast(x, "float64"), "float32"),
        (lambda x: x * 2, "float16"),
        (lambda x: ts.cast(ts.round(x), "int8"), "float32"),
        (lambda x: x * x + 3, "int32"),
    ],
)
def test_what_rounds_nothing_is_exact(f: Callable[[Any], Any], dtype: str) -> None:
    x = np.arange(-8, 8).astype(ts.placeholder((1,), dtype).dtype.numpy)
    given = ts.placeholder((16,), dtype, name="X")
    func = ts.function([given, ts.compute((16,), lambda i: f(given[i]), name="Y")])
    (result,) = evaluate_bounded(func, x)
    assert result.error is None or not result.error.any()


def test_a_rounding_is_one_unit_in_the_last_place() -> None:
    x = np.random.default_rng(0).random(1000, np.float32) + 1
    result = of(lambda v: v * 1.1, x)
    assert result.error is not None
    unit = 2 * ts.placeholder((1,)).dtype.roundoff
    assert (result.error <= 1.01 * unit * result.value).all()
    assert (result.error[result.error > 0] >= 0.99 * unit * 1.1).all()


def test_errors_pass_through_cancellation() -> None:
    """(x * 1.1 - x * 1.1 rounded otherwise) is nothing but error."""
    x = floats(1000.0, 1e-3)
    result = of(lambda v: v * 1.1 - 1100.0, x)
    assert result.error is not None
    assert result.error[0] > 1e-5
    assert result.error[0] < 1e-3


def test_a_step_moves_only_where_the_error_reaches_it() -> None:
    x = floats(0.30, 0.5 / 1.1, 0.49)
    result = of(lambda v: ts.cast(ts.round(v * 1.1), "int32"), x)
    assert result.error is not None
    assert result.error.tolist() == [0, 1, 0]
    flips = of(lambda v: v * 1.1 > 0.5, x)
    assert flips.error is not None
    assert flips.error.tolist() == [0, 1, 0]
    chosen = of(lambda v: ts.where(v * 1.1 > 0.5, 100.0, 0.0), x)
    assert chosen.error is not None
    assert chosen.error.tolist() == [0, 100, 0]


def test_a_pole_within_reach_allows_anything() -> None:
    x = floats(3.0, 2.0)
    result = of(lambda v: 1 / (v * 1.1 - 3.3), x)
    assert result.error is not None
    assert np.isnan(result.error[0])
    assert result.error[1] < 1e-5


def test_overflow() -> None:
    x = floats(1e30, 3e38, 3.0, np.inf, np.nan)
    wide = of(lambda v: ts.cast(v, "float16"), x)
    assert wide.error is not None
    assert wide.error.tolist()[0] == 0  # infinite beyond doubt
    assert not np.isnan(wide.error).any()
    narrow = of(lambda v: v * v, np.array([300.0, 2.0], np.float16))
    assert narrow.error is not None
    assert np.isnan(narrow.error[0])  # finite in float32
    assert narrow.error[1] == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_whole_numbers_in_a_narrow_type_are_exact(dtype: str) -> None:
    k = 640
    a, b = ts.placeholder((4, k), dtype, name="A"), ts.placeholder((k, 5), dtype, name="B")
    r = ts.reduce_axis(k, name="k")
    c = ts.compute((4, 5), lambda i, j: ts.sum(a[i, r] * b[r, j], axis=r), name="C")
    func = ts.function([a, b, c])
    whole, ordinary = draws(func)
    (result,) = evaluate_bounded(func, *example_inputs(func, 0, whole))
    assert result.error is None
    (result,) = evaluate_bounded(func, *example_inputs(func, 0, ordinary))
    assert result.error is not None
    assert result.error.min() > 0


def test_a_product_with_an_inexact_operand_has_its_error() -> None:
    x, w = ts.placeholder((6, 30), name="X"), ts.placeholder((30, 7), name="W")
    k = ts.reduce_axis(30, name="k")
    e = ts.compute((6, 30), lambda i, j: ts.exp(x[i, j] * 9), name="E")
    y = ts.compute((6, 7), lambda i, j: ts.sum(e[i, k] * w[k, j], axis=k), name="Y")
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(s).astype(np.float32) for s in ((6, 30), (30, 7))]
    (result,) = evaluate_bounded(ts.function([x, w, y]), *given)
    direct = np.exp(given[0].astype(np.float64) * 9) @ given[1]
    single = np.exp(given[0] * np.float32(9)) @ given[1]
    assert result.error is not None
    assert (np.abs(single - result.value) <= result.error).all()
    assert (np.abs(direct - result.value) <= result.error).all()
    assert (result.error < 1e-3 * np.abs(direct).max()).all()


def test_reductions_of_pairs() -> None:
    """The place of the maximum of exact numbers is exact, that of rounded ones is not at ties."""
    n = 50
    x, r = ts.placeholder((3, n), name="X"), ts.reduce_axis(n, name="r")
    data = np.random.default_rng(0).standard_normal((3, n)).astype(np.float32)
    exact = ts.compute((3,), lambda i: ts.argmax(x[i, r], r)[1], name="Y")
    (result,) = evaluate_bounded(ts.function([x, exact]), data)
    assert result.error is None or not result.error.any()
    data[0, 7], data[0, 9] = 5, np.nextafter(np.float32(5), np.float32(6))
    rounded = ts.compute((3,), lambda i: ts.argmax(ts.exp(x[i, r]), r)[1], name="Y")
    (result,) = evaluate_bounded(ts.function([x, rounded]), data)
    assert result.error is not None
    assert result.error[0] >= 2


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_threads_and_pieces_change_nothing(dtype: str) -> None:
    """Large results are bounded in pieces, which threads share."""
    x = ts.placeholder((700, 40), dtype, name="X")
    w = ts.placeholder((40, 600), dtype, name="W")
    bias = ts.placeholder((600,), dtype, name="bias")
    y = ts.ops.relu(ts.ops.add(ts.ops.matmul(x, w), bias))
    dense = ts.function([x, w, bias, y], name="dense")
    z = ts.placeholder((30, 2000), dtype, name="Z")
    scan = ts.function([z, ts.ops.cumsum(z, 1, block=8, tile=64)], name="scan")
    rng = np.random.default_rng(0)
    for func in (dense, scan):
        shapes = [[n.number for n in b.shape] for b in func.inputs]
        arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
        (one,) = evaluate_bounded(func, *arrays)
        (several,) = evaluate_bounded(func, *arrays, num_threads=3)
        np.testing.assert_array_equal(one.value, ts.evaluate(func, *arrays))
        np.testing.assert_array_equal(one.value, several.value)
        assert one.error is not None
        assert several.error is not None
        np.testing.assert_array_equal(one.error, several.error)
        assert (one.error > 0).any()


def test_what_a_condition_leaves_out_may_lie_outside() -> None:
    x = ts.placeholder((50,), name="X")
    y = ts.compute((60,), lambda i: ts.where(i < 50, ts.exp(x[i]), 0.0), name="Y")
    func = ts.function([x, y])
    a = np.random.default_rng(1).standard_normal(50).astype(np.float32)
    (found,) = evaluate_bounded(func, a)
    np.testing.assert_array_equal(found.value, ts.evaluate(func, a))
    assert found.error is not None
    assert (found.error[50:] == 0).all()
