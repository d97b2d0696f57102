"""Reductions that are bound by memory treat axes that follow one another in memory as one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.ir.nodes import walk
from tilesmith.space.spaces import variants

TARGETS = [ts.Target.named("skylake-avx512"), ts.Target.named("neoverse-n1")]


def row_mean() -> ts.Function:
    x = ts.placeholder((4, 2, 5, 7, 3), name="X")
    h, w, c = (ts.reduce_axis(n, name=name) for n, name in ((5, "h"), (7, "w"), (3, "c")))
    s = ts.compute((4, 2), lambda i, j: ts.sum(x[i, j, h, w, c], axis=(h, w, c)), name="S")
    return ts.function([x, ts.compute((4, 2), lambda i, j: s[i, j] / 105.0, name="Y")])


def column_maximum() -> ts.Function:
    x, k = ts.placeholder((9, 4, 3, 5), name="X"), ts.reduce_axis(9, name="k")
    return ts.function(
        [x, ts.compute((4, 3, 5), lambda i, j, c: ts.amax(x[k, i, j, c], axis=k), name="Y")]
    )


def softmax_across() -> ts.Function:
    x = ts.placeholder((3, 6, 5, 7), name="X")
    return ts.function([x, ts.ops.softmax(x, axis=1)])


CASES = {row_mean: {8, 105}, column_maximum: {60, 9}, softmax_across: {3, 6, 35}}


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.arch)
@pytest.mark.parametrize("make", CASES)
def test_axes_that_follow_one_another_are_one(
    make: Callable[[], ts.Function], target: ts.Target
) -> None:
    task = ts.Task(make(), target)
    for sketch in ts.SketchSpace().sketches(task):
        merged = ts.Trace(tuple(s for s in sketch.steps if s.name == "merge_iterators"))
        func = merged.apply(task.func)
        assert {i.extent.number for _, b in walk(func.body) for i in b.iters} == CASES[make]


@pytest.mark.parametrize("make", CASES)
def test_they_compute_the_same(make: Callable[[], ts.Function]) -> None:
    task, rng = ts.Task(make(), ts.cpu(2)), np.random.default_rng(0)
    x = rng.integers(-9, 9, [n.number for n in task.func.inputs[0].shape]).astype(np.float32)
    want = ts.evaluate(task.func, x)
    for sketch in ts.SketchSpace().sketches(task):
        for v in variants(task, sketch):
            for row in v.sample(rng, 1):
                kernel = ts.build(v.function(row), task.target)
                np.testing.assert_allclose(kernel(x), want, rtol=1e-5)


def test_what_uses_an_index_keeps_its_axes() -> None:
    x, k = ts.placeholder((4, 3, 20), name="X"), ts.reduce_axis(20, name="k")
    value = ts.compute((4, 3), lambda i, j: ts.sum(x[i, j, k] * ts.cast(i, "float32"), axis=k))
    task = ts.Task(ts.function([x, value]), ts.cpu(1))
    data = np.random.default_rng(0).random((4, 3, 20), np.float32)
    for sketch in ts.SketchSpace().sketches(task):
        v = next(iter(variants(task, sketch)))
        kernel = ts.build(v.function(v.sample(np.random.default_rng(0), 1)[0]), task.target)
        np.testing.assert_allclose(kernel(data), ts.evaluate(task.func, data), rtol=1e-5)
