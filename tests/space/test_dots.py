"""Reductions with few uses of each element: each lane of a vector along the summed axis has its own
result until the end.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.schedule.reduction import Rfactor
from tilesmith.space.spaces import variants


def product(m: int, n: int, k: int, *, turned: bool = True, bias: bool = False) -> ts.Function:
    """C = A B, where B is given transposed if `turned`."""
    a, b = ts.placeholder((m, k), name="A"), ts.placeholder((n, k) if turned else (k, n), name="B")
    r = ts.reduce_axis(k, name="k")
    c = ts.compute(
        (m, n), lambda i, j: ts.sum(a[i, r] * (b[j, r] if turned else b[r, j]), axis=r), name="C"
    )
    if not bias:
        return ts.function([a, b, c])
    d = ts.placeholder((n,), name="D")
    return ts.function([a, b, d, ts.compute((m, n), lambda i, j: c[i, j] + d[j], name="Y")])


def batched(z: int, m: int, k: int) -> ts.Function:
    a, x = ts.placeholder((z, m, k), name="A"), ts.placeholder((z, k), name="X")
    r = ts.reduce_axis(k, name="k")
    return ts.function(
        [a, x, ts.compute((z, m), lambda b, i: ts.sum(a[b, i, r] * x[b, r], axis=r), name="C")]
    )


def viewed(m: int, n: int, k: int) -> ts.Function:
    """C = A B, where a block of its own transposes what is given for B."""
    a, b = ts.placeholder((m, k), name="A"), ts.placeholder((n, k), name="B")
    return ts.function([a, b, ts.ops.matmul(a, ts.ops.transpose(b), name="C")])


def reduced(kind: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> ts.Function:
    x = ts.placeholder(shape, name="X")
    if kind == "argmax":
        return ts.function([x, ts.ops.argmax(x, axes[0])])
    return ts.function([x, getattr(ts.ops, f"reduce_{kind}")(x, axes)])


LONG = 4 * ts.cpu(1).lanes(32)  # the shortest axis that the rule takes on this machine
CASES = {
    "matrix times row": product(37, 1, LONG + 36),
    "matrix times column": product(37, 1, LONG + 36, turned=False),
    "row times matrix": product(1, 50, LONG),
    "few rows": product(3, 41, LONG + 13),
    "few rows and a bias": product(5, 23, 2 * LONG + 1, bias=True),
    "one result": product(1, 1, LONG + 6),
    "few rows and a view": viewed(3, 29, LONG + 5),
    "a batch": batched(3, 17, LONG + 26),
    "argmax": reduced("argmax", (9, LONG + 6), (1,)),
    "long rows": reduced("max", (3, 15 * LONG + 41), (1,)),
    "mean of rows": reduced("mean", (5, 2 * LONG + 2), (1,)),
    "two axes": reduced("sum", (6, 5, LONG + 9), (0, 2)),
    "all axes": reduced("sum", (5, LONG + 9), (0, 1)),
}


def dots(task: ts.Task) -> list[ts.Trace]:
    found = ts.SketchSpace().sketches(task)
    return [s for s in found if any(isinstance(x, Rfactor) for x in s.steps)]


@pytest.mark.parametrize("name", CASES)
def test_lanes_have_sums_of_their_own(name: str) -> None:
    func = CASES[name]
    task, rng = ts.Task(func, ts.cpu(1)), np.random.default_rng(1)
    inputs = [rng.standard_normal([n.number for n in b.shape], np.float32) for b in func.inputs]
    want = ts.build(ts.Schedule(func), ts.cpu(1))(*inputs)
    sketches = dots(task)
    assert sketches
    for sketch in sketches:
        for v in variants(task, sketch):
            for row in v.sample(rng, 3):
                kernel = ts.build(v.candidate(row).trace.apply(func), ts.cpu(1))
                np.testing.assert_allclose(kernel(*inputs), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["neoverse-n1", "skylake-avx512", "haswell"])
def test_the_rule_asks_for_vectors_of_the_machine(name: str) -> None:
    target = ts.Target.named(name)
    long = 4 * target.lanes(32)
    assert dots(ts.Task(product(8, 50, long), target))
    assert not dots(ts.Task(product(8, 50, long - 1), target))


@pytest.mark.parametrize(
    "func",
    [
        product(64, 64, 128),  # many uses of each element: packed tiles
        product(3, 41, 77, turned=False),  # B does not lie along the sum
        product(1, 50, 7),  # a short sum
    ],
)
def test_other_products_are_tiled(func: ts.Function) -> None:
    assert not dots(ts.Task(func, ts.Target.named("neoverse-n1")))


def test_products_read_transposed_inputs_as_they_lie() -> None:
    task = ts.Task(viewed(40, 33, 21), ts.cpu(1))
    for sketch in ts.SketchSpace().sketches(task):
        assert "inline(block='transpose')" in str(sketch)
        assert "sample_location(block='transpose'" not in str(sketch)
