"""Element-wise blocks: tiles of what lies across, short rows that become one, vectors of several
registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.ir.function import find_block
from tilesmith.schedule.iterators import MergeIterators
from tilesmith.schedule.sample import SampleTile
from tilesmith.space.spaces import variants

Array = np.ndarray[Any, Any]
TARGET = ts.Target.named("neoverse-n1")


def transposed(shape: tuple[int, ...], order: tuple[int, ...]) -> ts.Function:
    x = ts.placeholder(shape, name="X")
    return ts.function([x, ts.ops.transpose(x, order, name="Y")])


def added(shape: tuple[int, ...], other: tuple[int, ...]) -> ts.Function:
    x, y = ts.placeholder(shape, name="X"), ts.placeholder(other, name="B")
    return ts.function([x, y, ts.ops.add(x, y, name="Y")])


def turned_and_added(n: int, m: int) -> ts.Function:
    x, b = ts.placeholder((n, m), name="X"), ts.placeholder((m, n), name="B")
    return ts.function([x, b, ts.compute((m, n), lambda j, i: x[i, j] + b[j, i], name="Y")])


def padded(shape: tuple[int, int]) -> ts.Function:
    x = ts.placeholder(shape, name="X")
    return ts.function([x, ts.ops.pad(x, ((1, 2), (0, 3)), name="Y")])


def two_stages(shape: tuple[int, ...]) -> ts.Function:
    x, b = ts.placeholder(shape, name="X"), ts.placeholder(shape, name="B")
    return ts.function([x, b, ts.ops.relu(ts.ops.subtract(x, b, name="D"), name="Y")])


def chosen(rows: int, shape: tuple[int, int]) -> ts.Function:
    """Each element of another row."""
    x, at = ts.placeholder((rows, shape[1]), name="X"), ts.placeholder(shape, "int64", name="I")
    return ts.function([x, at, ts.ops.gather_elements(x, at, 0, name="Y")])


def added_in_order(shape: tuple[int, ...], axis: int) -> ts.Function:
    x = ts.placeholder(shape, name="X")
    return ts.function([x, ts.ops.cumsum(x, axis, name="Y")])


CASES: dict[str, tuple[ts.Function, Callable[..., Array]]] = {
    "transpose": (transposed((37, 50), (1, 0)), lambda x: x.T),
    "four axes": (transposed((3, 18, 5, 9), (3, 0, 2, 1)), lambda x: x.transpose(3, 0, 2, 1)),
    "outer axes only": (transposed((5, 6, 21), (1, 0, 2)), lambda x: x.transpose(1, 0, 2)),
    "turned and added": (turned_and_added(33, 26), lambda x, b: x.T + b),
    "short rows": (added((101, 3), (101, 3)), lambda x, b: x + b),
    "short rows, one for all": (added((101, 3), (1, 3)), lambda x, b: x + b),
    "a column for all": (added((17, 45), (17, 1)), lambda x, b: x + b),
    "two stages": (two_stages((53, 3)), lambda x, b: np.maximum(x - b, 0)),
    "padded": (padded((9, 34)), lambda x: np.pad(x, ((1, 2), (0, 3)))),
}  # fmt: skip


def sketches(func: ts.Function) -> list[ts.Trace]:
    return list(ts.SketchSpace().sketches(ts.Task(func, TARGET)))


@pytest.mark.parametrize("name", CASES)
def test_every_sketch_computes_the_same(name: str) -> None:
    func, reference = CASES[name]
    task, rng = ts.Task(func, ts.cpu(1)), np.random.default_rng(0)
    inputs = [rng.random([n.number for n in b.shape], np.float32) for b in func.inputs]
    for sketch in ts.SketchSpace().sketches(task):
        for v in variants(task, sketch):
            for row in v.sample(rng, 4):
                kernel = ts.build(v.candidate(row).trace.apply(func), ts.cpu(1))
                np.testing.assert_array_equal(kernel(*inputs), reference(*inputs))


def tiled(sketch: ts.Trace) -> dict[str, int]:
    """The loops that are tiled, with the number of their parts."""
    return {s.loop: s.parts for s in sketch.steps if isinstance(s, SampleTile)}


def test_what_lies_across_is_tiled_with_vectors_either_way() -> None:
    func = transposed((512, 768), (1, 0))
    inner, outer = (i.bind.name or "" for i in reversed(find_block(func, "Y")[1].iters))
    found = [tiled(s) for s in sketches(func)]
    assert {outer: 2, inner: 3} in found
    assert {outer: 3, inner: 2} in found
    task = ts.Task(func, TARGET)
    assert sum(v.size for s in sketches(func) for v in variants(task, s)) > 1000


def test_stages_of_elements_are_tiled_as_one() -> None:
    assert all("inline(block='D')" in str(s) for s in sketches(two_stages((64, 512))))
    assert any(tiled(s) for s in sketches(two_stages((64, 512))))


def test_what_lies_along_has_no_tiles_of_rows() -> None:
    found = [tiled(s) for s in sketches(added((64, 512), (64, 512)))]
    assert all(len(t) <= 1 for t in found)
    assert any(found)


@pytest.mark.parametrize(
    "func",
    [
        added((1 << 20,), (1 << 20,)),
        added((400, 3, 700), (1, 3, 1)),
        added((300_000, 5), (1, 5)),  # rows fill no vectors, and do not merge
        transposed((90, 101, 150), (1, 0, 2)),
        padded((60_001, 19)),
        chosen(97, (3001, 333)),
        added_in_order((1 << 20,), 0),
        added_in_order((1001, 1003), 1),
        added_in_order((1001, 1003), 0),
    ],
    ids=lambda f: str(f).split("(", 1)[0] + str(f.outputs[0].shape),
)
def test_there_is_a_choice_for_every_large_block(func: ts.Function) -> None:
    task = ts.Task(func, TARGET)
    assert sum(v.size for s in sketches(func) for v in variants(task, s)) >= 50


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_every_sketch_adds_in_order(axis: int) -> None:
    func = added_in_order((5, 7, 37), axis)
    task, rng = ts.Task(func, ts.cpu(1)), np.random.default_rng(0)
    x = rng.integers(-8, 8, (5, 7, 37)).astype(np.float32)  # whose sums are exact
    for sketch in ts.SketchSpace().sketches(task):
        for v in variants(task, sketch):
            for row in v.sample(rng, 6):
                kernel = ts.build(v.candidate(row).trace.apply(func), ts.cpu(1))
                np.testing.assert_array_equal(kernel(x), x.cumsum(axis))


@pytest.mark.parametrize(("shape", "axis"), [((9, 7, 8, 8), 2), ((11, 40, 9), 1), ((5, 30, 17), 1)])
def test_sums_in_order_over_short_rows_have_many_programs_that_are_right(
    shape: tuple[int, ...], axis: int
) -> None:
    func, rng = added_in_order(shape, axis), np.random.default_rng(0)
    task, x = ts.Task(func, TARGET), rng.random(shape, np.float32)
    found = [v for s in ts.SketchSpace().sketches(task) for v in variants(task, s)]
    assert sum(v.size for v in found) >= 50
    for v in found:
        for row in v.sample(rng, 8):
            kernel = ts.build(v.candidate(row).trace.apply(func), ts.cpu(1))
            np.testing.assert_array_equal(kernel(x), x.cumsum(axis))


@pytest.mark.parametrize(
    ("func", "merges"),
    [
        (added((101, 3), (101, 3)), 1),
        (added((7, 5, 3), (7, 5, 3)), 2),
        (added((101, 3), (1, 3)), 0),  # B has no rows
        (added((101, 64), (101, 64)), 0),  # rows fill vectors
    ],
)
def test_short_rows_become_one(func: ts.Function, merges: int) -> None:
    for s in sketches(func):
        assert sum(isinstance(step, MergeIterators) for step in s.steps) == merges
