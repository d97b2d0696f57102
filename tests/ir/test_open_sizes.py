"""Open sizes: which there are, numbers for them by name, sizes of 0, and errors that say so."""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.errors import ArgumentError, VerifyError
from tilesmith.codegen.pipeline import GPU_PASSES, lower
from tilesmith.ir.nodes import For, statements
from tilesmith.task.inputs import example_inputs


def scaled_rows() -> ts.Function:
    n, m = ts.size("n"), ts.size("m")
    X = ts.placeholder((n, m), name="X")
    k = ts.reduce_axis(m, name="k")
    total = ts.compute((n,), lambda i: ts.sum(X[i, k], axis=k), name="total")
    return ts.function([X, ts.compute((n, m), lambda i, j: X[i, j] + total[i], name="Y"), total])


def test_the_open_sizes_of_a_function_are_named_as_they_were_given():
    func = scaled_rows()
    assert func.open_sizes == ("n", "m")
    assert ts.instantiate(func, {"n": 3}).open_sizes == ("m",)
    assert ts.instantiate(func, {"n": 3, "m": 2}).open_sizes == ()


def test_a_size_is_named_with_or_without_its_mark():
    func = scaled_rows()
    assert ts.instantiate(func, {"n": 3, "m": 2}) == ts.instantiate(func, {"#n": 3, "#m": 2})


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"k": 3}, "has no open size k; its open sizes are n, m"),
        ({"N": 3, "m": 2}, "has no open size N; its open sizes are n, m"),
        ({"n": -1}, "size n is -1; a size is at least 0"),
        ({"n": 2.5}, "with the float 2.5 for 'n'; .* to a whole number"),
        ({"n": True}, "with the bool True for 'n'; .* to a whole number"),
        ({3: 2}, "with the int 3 as a key; it takes a dict from a text"),
    ],
)
def test_what_is_no_size_is_refused(sizes, message):
    with pytest.raises(ArgumentError, match=message):
        ts.instantiate(scaled_rows(), sizes)


def test_a_closed_function_has_no_size_to_give():
    func = ts.instantiate(scaled_rows(), {"n": 3, "m": 2})
    with pytest.raises(ArgumentError, match="has no open size n; none is open"):
        ts.instantiate(func, {"n": 3})


@pytest.mark.filterwarnings("error")  # also of a draft that does not build
@pytest.mark.parametrize("sizes", [{"n": 0, "m": 4}, {"n": 3, "m": 0}, {"n": 0, "m": 0}])
def test_a_size_of_0_gives_empty_arrays_and_sums_of_nothing(sizes):
    func = ts.instantiate(scaled_rows(), sizes)
    shape = (sizes["n"], sizes["m"])
    x = np.ones(shape, np.float32)
    for run in (ts.evaluate, ts.interpret, lambda f, a: ts.build(f)(a)):
        y, total = run(func, x)
        assert y.shape == shape
        np.testing.assert_array_equal(total, x.sum(1))


@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin"])
@pytest.mark.parametrize("order", ["ik", "ki", "kij"])
def test_every_reduction_over_a_size_of_0_is_neutral(name, order):
    n = ts.size("n")
    X = ts.placeholder((3, n, 2), name="X")
    r, s = ts.reduce_axis(2, name="s"), ts.reduce_axis(n, name="r")
    axes = (s, r) if order == "ik" else (r, s)
    Y = ts.compute((3,), lambda i: getattr(ts, name)(X[i, s, r], axis=axes), name="Y")
    sch = ts.Schedule(ts.function([X, Y]))
    if order == "kij":
        sch.reorder("Y.s", "Y.i")
    func = ts.instantiate(sch.func, {"n": 0})
    want = {"sum": 0, "prod": 1, "amax": -np.inf, "amin": np.inf}[name]
    x = np.ones((3, 0, 2), np.float32)
    for run in (ts.evaluate, ts.interpret, lambda f, a: ts.build(f)(a)):
        np.testing.assert_array_equal(run(func, x), np.full(3, want, np.float32))


def test_launch_form_has_open_sizes():
    func = scaled_rows()
    lowered = lower(func, ts.Target.named("nvidia-h200"), GPU_PASSES)
    assert lowered.open_sizes == func.open_sizes
    for sizes in ({"n": 1, "m": 1}, {"n": 3, "m": 5}):
        fixed = ts.instantiate(func, sizes)
        arrays = example_inputs(fixed)
        for got, want in zip(
            ts.run_simt(lowered, *arrays), ts.evaluate(fixed, *arrays), strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=1e-5)


def test_an_open_extent_is_no_number():
    func = ts.instantiate(scaled_rows(), {"n": 3})
    loops = {s.name: s for s in statements(func.body) if isinstance(s, For)}
    assert loops["total.i"].trips == 3
    with pytest.raises(VerifyError, match=r"loop 'total.k' has the open extent #m"):
        _ = loops["total.k"].trips
    rows, columns = func.inputs[0].shape
    assert (rows.number, (rows - 3).number) == (3, 0)
    with pytest.raises(VerifyError, match="a number is needed, but #m is open"):
        _ = columns.number
