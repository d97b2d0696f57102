"""Sums over a strided axis: vectors go along the contiguous one, an axis of the output."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.ir.function import find_block
from tilesmith.space.spaces import variants

TARGET = ts.Target.named("neoverse-n1")


def column_sum(n: int = 64, m: int = 48) -> ts.Function:
    a, k = ts.placeholder((n, m), name="A"), ts.reduce_axis(n, name="k")
    return ts.function([a, ts.compute((m,), lambda j: ts.sum(a[k, j], axis=k), name="S")])


def column_mean() -> ts.Function:
    a, k = ts.placeholder((30, 37), name="A"), ts.reduce_axis(30, name="k")
    s = ts.compute((37,), lambda j: ts.sum(a[k, j], axis=k), name="S")
    return ts.function([a, ts.compute((37,), lambda j: s[j] / 30.0, name="M")])


def pooling_channels_last() -> ts.Function:
    x = ts.placeholder((2, 9, 9, 24), name="X")
    h, w = ts.reduce_axis(3, name="h"), ts.reduce_axis(3, name="w")
    return ts.function(
        [x, ts.compute((2, 4, 4, 24),
                       lambda n, i, j, c: ts.amax(x[n, 2 * i + h, 2 * j + w, c], axis=(h, w)),
                       name="S")]
    )  # fmt: skip


def moving_sum() -> ts.Function:
    x, k = ts.placeholder((70,), name="X"), ts.reduce_axis(7, name="k")
    return ts.function([x, ts.compute((64,), lambda j: ts.sum(x[j + k], axis=k), name="S")])


def integer_sum() -> ts.Function:
    a, k = ts.placeholder((33, 40), name="A", dtype="int8"), ts.reduce_axis(33, name="k")
    return ts.function(
        [a, ts.compute((40,), lambda j: ts.sum(ts.cast(a[k, j], "int32"), axis=k), name="S")]
    )


def double_product() -> ts.Function:
    a, k = ts.placeholder((5, 19), name="A", dtype="float64"), ts.reduce_axis(5, name="k")
    return ts.function([a, ts.compute((19,), lambda j: ts.prod(a[k, j], axis=k), name="S")])


def short_last_axes() -> ts.Function:
    """The kept axes 13, 7 and 2 follow one another in memory."""
    x, k = ts.placeholder((3, 11, 13, 7, 2), name="X"), ts.reduce_axis(11, name="k")
    return ts.function(
        [x, ts.compute((3, 13, 7, 2), lambda n, i, j, c: ts.amax(x[n, k, i, j, c], axis=k),
                       name="S")]
    )  # fmt: skip


COLUMNS = {
    "S.j": [column_sum, column_mean, moving_sum, integer_sum, double_product],
    "S.c": [pooling_channels_last],
    "S.i_j_c": [short_last_axes],
}
CASES = [(make, axis) for axis, makers in COLUMNS.items() for make in makers]


@pytest.mark.parametrize(("make", "axis"), CASES)
def test_the_vectorised_loop_is_the_contiguous_one(
    make: Callable[[], ts.Function], axis: str
) -> None:
    task = ts.Task(make(), TARGET)
    kept = [s for s in ts.SketchSpace().sketches(task) if "rfactor" not in str(s)]
    assert kept
    for sketch in kept:
        for v in variants(task, sketch):
            path, _ = find_block(v.func, "S")
            assert path[-1].kind == "vectorize"
            assert path[-1].name.startswith(f"{axis}.")


@pytest.mark.parametrize(("make", "axis"), CASES)
def test_they_compute_what_they_should(make: Callable[[], ts.Function], axis: str) -> None:
    task = ts.Task(make(), ts.cpu(2))
    rng = np.random.default_rng(0)
    inputs = [
        rng.integers(-9, 9, [n.number for n in p.shape]).astype(p.dtype.name)
        for p in task.func.inputs
    ]
    want = ts.evaluate(task.func, *inputs)
    for sketch in ts.SketchSpace().sketches(task):
        for v in variants(task, sketch):
            for row in v.sample(rng, 2):
                kernel = ts.build(v.function(row), task.target)
                np.testing.assert_allclose(kernel(*inputs), want, rtol=1e-5)


def row_sum() -> ts.Function:
    a, k = ts.placeholder((64, 48), name="A"), ts.reduce_axis(48, name="k")
    return ts.function([a, ts.compute((64,), lambda i: ts.sum(a[i, k], axis=k), name="S")])


def narrow() -> ts.Function:
    return column_sum(64, 3)


def every_second() -> ts.Function:
    a, k = ts.placeholder((64, 96), name="A"), ts.reduce_axis(64, name="k")
    return ts.function([a, ts.compute((48,), lambda j: ts.sum(a[k, 2 * j], axis=k), name="S")])


def diagonals() -> ts.Function:
    a, k = ts.placeholder((64, 64), name="A"), ts.reduce_axis(16, name="k")
    return ts.function([a, ts.compute((48,), lambda j: ts.sum(a[j + k, j], axis=k), name="S")])


@pytest.mark.parametrize("make", [row_sum, narrow, every_second, diagonals])
def test_what_is_not_contiguous_along_the_output_stays_as_it_is(
    make: Callable[[], ts.Function],
) -> None:
    task = ts.Task(make(), TARGET)
    for sketch in ts.SketchSpace().sketches(task):
        assert "sample_tile(loop='S.j'" not in str(sketch)
        assert "sample_tile(loop='S.i'" not in str(sketch)


def test_a_consumer_of_each_sum_is_computed_with_it() -> None:
    task = ts.Task(column_mean(), TARGET)
    text = [str(s) for s in ts.SketchSpace().sketches(task)]
    assert any("reverse_compute_at(block='M', loop='S.j.0')" in t for t in text)


def short_rows() -> ts.Function:
    """Columns of five elements, in three groups."""
    a, k = ts.placeholder((3, 90, 5), name="A"), ts.reduce_axis(90, name="k")
    s = ts.compute((3, 5), lambda i, j: ts.sum(a[i, k, j], axis=k), name="S")
    return ts.function([a, ts.compute((3, 5), lambda i, j: s[i, j] / 90.0, name="M")])


def shortest_rows() -> ts.Function:
    a, k = ts.placeholder((70, 4), name="A"), ts.reduce_axis(70, name="k")
    return ts.function([a, ts.compute((4,), lambda j: ts.amax(a[k, j], axis=k), name="S")])


@pytest.mark.parametrize("make", [short_rows, shortest_rows])
def test_short_rows_have_several_sums_at_a_time(make: Callable[[], ts.Function]) -> None:
    task = ts.Task(make(), ts.Target.named("skylake-avx512"))
    factored = [s for s in ts.SketchSpace().sketches(task) if "unroll(loop='S.rf.k.1')" in str(s)]
    assert factored
    path, _ = find_block(next(iter(variants(task, factored[0]))).func, "S.rf")
    assert [f.kind for f in path[-2:]] == ["unroll", "vectorize"]
    test_they_compute_what_they_should(make, "j")
