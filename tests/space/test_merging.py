"""Axes that a computation does not tell apart are merged before they are tiled: where, and that the
candidates are right.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs
from tilesmith.base.target import Target
from tilesmith.cli.operators import operator
from tilesmith.ir.function import Function
from tilesmith.records.open import open_database
from tilesmith.space.spaces import SketchSpace, structural_counts, with_structure
from tilesmith.space.variant import lower

N1 = Target.named("neoverse-n1").with_cores(1)


def conv(
    n: int = 1, groups: int = 1, layout: str = "NCHW", size: int = 7, kernel: int = 1,
    stride: int = 1, padding: int = 0, relu: bool = False,
) -> Function:  # fmt: skip
    first = layout == "NCHW"
    ci, co = 4 * groups, 12 * groups
    x = ts.placeholder((n, ci, size, size) if first else (n, size, size, ci), name="X")
    w = ts.placeholder((co, 4, kernel, kernel) if first else (kernel, kernel, 4, co), name="W")
    y = ts.ops.conv2d(x, w, stride, padding, groups=groups, layout=layout, name="Y")
    return ts.function([x, w, ts.ops.relu(y) if relu else y], name="conv")


def merged(func: Function, target: Target = N1) -> set[tuple[str, ...]]:
    """The iterators that each sketch merges."""
    return {
        tuple(n for s in t.steps if s.name == "merge_iterators" for n in s.iterators)
        for t in SketchSpace().sketches(ts.Task(func, target))
    }


def test_pixels_of_pointwise_convolutions_are_one_axis() -> None:
    assert merged(conv()) == {("h", "w")}
    assert merged(conv(n=2)) == {("h", "w")}  # channels lie between images
    assert merged(conv(relu=True)) == {("h", "w")}
    assert merged(conv(groups=2)) == {("h", "w")}
    assert merged(conv(layout="NHWC")) == {("h", "w")}
    assert merged(conv(n=2, layout="NHWC")) == {("n", "h", "n_h", "w")}


def test_axes_that_are_told_apart_stay() -> None:
    assert merged(conv(kernel=3)) == {()}
    assert merged(conv(stride=2)) == {()}
    assert merged(conv(padding=1)) == {()}
    assert merged(conv(size=1)) == {()}
    assert merged(operator("matmul", (8, 9, 10))) == {()}
    assert merged(operator("softmax", (8, 9))) == {()}


def test_a_product_of_tensors_is_one_of_matrices() -> None:
    a, b = ts.placeholder((2, 3, 4, 5), name="A"), ts.placeholder((4, 5, 6, 7), name="B")
    k, m = ts.reduce_axis(4, name="k"), ts.reduce_axis(5, name="m")
    c = ts.compute(
        (2, 3, 6, 7),
        lambda p, q, r, s: ts.sum(a[p, q, k, m] * b[k, m, r, s], axis=[k, m]),
        name="C", axes=["p", "q", "r", "s"],
    )  # fmt: skip
    assert merged(ts.function([a, b, c])) == {("p", "q", "r", "s", "k", "m")}


def test_ansor_rules_do_not_merge() -> None:
    task = ts.Task(conv(), N1)
    for t in SketchSpace(ts.ansor_rules(N1)).sketches(task):
        assert "merge_iterators" not in str(t)


@pytest.mark.parametrize(
    "func",
    [conv(relu=True), conv(n=2, groups=2), conv(n=2, layout="NHWC", relu=True)],
    ids=["relu", "groups", "NHWC"],
)
def test_candidates_match_the_oracle(func: Function) -> None:
    """Also tiles that do not divide the merged axis."""
    task = ts.Task(func, ts.cpu(1))
    rng = np.random.default_rng(5)
    arrays = random_inputs(func, rng)
    want = ts.evaluate(func, *arrays)
    sketches = SketchSpace().sketches(task)
    for sketch in sketches[:: max(1, len(sketches) // 8)]:
        v = lower(task, with_structure(sketch, [0] * len(structural_counts(sketch))))
        (row,) = v.sample(rng, 1)
        assert_close(ts.build(v.function(row), task.target)(*arrays), want, f"{v.decided(row)}")


def test_records_give_the_kernel_back() -> None:
    func = conv(relu=True)
    db = open_database(":memory:")
    result = ts.tune(func, ts.cpu(1), budget=ts.Budget(trials=4), database=db)
    assert any(s.name == "merge_iterators" for s in result.best.candidate.trace)
    arrays = random_inputs(func, np.random.default_rng(6))
    kernel = ts.build(func, ts.cpu(1), database=db)
    assert_close(kernel(*arrays), ts.evaluate(func, *arrays))
