"""Results stored across, strided windows parted, and weights packed in the kernel: where they are
offered, and that such candidates are right.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tests.support.meaning import assert_close
from tilesmith.base.target import Target
from tilesmith.cli.operators import operator
from tilesmith.schedule.cache import CacheRead, CacheWrite
from tilesmith.schedule.layout import TransformLayout
from tilesmith.schedule.sample import SampleTile
from tilesmith.schedule.zeros import SkipZeros
from tilesmith.space.spaces import SketchSpace, structural_counts, with_structure
from tilesmith.space.variant import lower

SHORT_ROWS = operator("conv2d", (7, 6, 20, 3, 1, 1), "NCHW")
X, W = ts.placeholder((1, 9, 7, 7), name="X"), ts.placeholder((60, 3, 3, 3), name="W")
GROUPS = ts.function([X, W, ts.ops.conv2d(X, W, padding=1, groups=3, name="Y")])
STRIDED = operator("conv2d", (15, 6, 20, 5, 2, 2), "NCHW")


def sketches(func: ts.Function, target: str = "neoverse-n1") -> tuple[ts.Trace, ...]:
    return SketchSpace().sketches(ts.Task(func, Target.named(target).with_cores(1)))


def across(sketch: ts.Trace) -> bool:
    return CacheWrite("Y", "local") in sketch.steps


@pytest.mark.parametrize(
    "func", [SHORT_ROWS, STRIDED, GROUPS], ids=["short rows", "strided", "groups"]
)
def test_candidates_match_the_oracle(func: ts.Function) -> None:
    task = ts.Task(func, ts.cpu(1))
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal([n.number for n in b.shape], np.float32) for b in func.inputs]
    want = ts.evaluate(func, *arrays)
    for sketch in SketchSpace().sketches(task):
        v = lower(task, with_structure(sketch, [0] * len(structural_counts(sketch))))
        for row in v.sample(rng, 1):
            got = ts.build(v.function(row), task.target)(*arrays)
            assert_close(got, want, f"{v.decided(row)}")


@pytest.mark.parametrize(
    ("size", "target", "offered"),
    [
        (7, "neoverse-n1", True),  # eight lanes for seven results
        (8, "neoverse-n1", False),
        (28, "neoverse-n1", False),
        (28, "skylake-avx512", True),  # two vectors of sixteen for 28 results
        (32, "skylake-avx512", False),
    ],
)
def test_vectors_lie_across_short_rows(size: int, target: str, offered: bool) -> None:
    func = operator("conv2d", (size, 6, 32, 3, 1, 1), "NCHW")
    found = sketches(func, target)
    assert any(map(across, found)) == offered
    assert not all(map(across, found))


def test_vectors_lie_along_the_channels_of_a_group() -> None:
    found = [s for s in sketches(GROUPS) if across(s)]
    assert found
    lanes = {s.loop.split(".")[-1] for t in found for s in t.steps
             if isinstance(s, SampleTile) and s.policy == "vector"}  # fmt: skip
    assert lanes == {"f_inner"}


def test_channels_last_fill_vectors_already() -> None:
    assert not any(map(across, sketches(operator("conv2d", (7, 6, 20, 3, 1, 1), "NHWC"))))


def test_weights_given_as_arguments_may_be_packed() -> None:
    packed = [
        CacheRead("Y", "W") in s.steps
        for s in sketches(operator("conv2d", (28, 6, 20, 3, 1, 1), "NCHW"))
    ]
    assert {*packed} == {False, True}


def test_strided_windows_are_parted() -> None:
    buffers = {
        s.buffer for t in sketches(STRIDED) for s in t.steps if isinstance(s, TransformLayout)
    }
    pads = [b.name for b in STRIDED.buffers]
    assert buffers & {*pads}
    plain = operator("conv2d", (15, 6, 20, 5, 1, 2), "NCHW")
    unparted = [s for t in sketches(plain) for s in t.steps if isinstance(s, TransformLayout)]
    assert not any(s.buffer in {b.name for b in plain.buffers} for s in unparted)


def test_a_guarded_tap_is_the_outermost_reduced_loop() -> None:
    func = operator("conv2d", (28, 3, 20, 7, 2, 3), "NCHW")
    guarded = [t for t in sketches(func) if any(isinstance(s, SkipZeros) for s in t.steps)]
    assert guarded
    for sketch in guarded:
        (taps,) = {x for s in sketch.steps if isinstance(s, SkipZeros) for x in s.taps}
        tiles = [s for s in sketch.steps if isinstance(s, SampleTile)]
        (tile,) = (s for s in tiles if s.loop.endswith(f".{taps}"))
        assert tile.candidates == ((7, 1, 1),)


def test_of_axes_that_fill_vectors_the_longest_is_taken() -> None:
    """A batch of four is read in strides; the filters are not."""
    x, w = ts.placeholder((4, 6, 7, 7), name="X"), ts.placeholder((16, 6, 3, 3), name="W")
    func = ts.function([x, w, ts.ops.conv2d(x, w, padding=1, name="Y")])
    lanes = [
        s.loop.split(".")[-1]
        for t in sketches(func)
        if across(t)
        for s in t.steps
        if isinstance(s, SampleTile) and s.policy == "vector"
    ]
    assert {*lanes} == {"f"}


def test_rows_that_end_in_many_pieces_are_short_rows() -> None:
    """7 lanes of 8 are 4 + 2 + 1, three times as slow as 8; with masks they are one piece."""
    func = operator("conv2d", (31, 6, 32, 3, 1, 1), "NCHW")
    assert any(map(across, sketches(func, "haswell")))
    assert not any(map(across, sketches(func, "skylake-avx512")))


@pytest.mark.parametrize(("rows", "offered"), [(15, False), (16, True), (40, False)])
def test_a_product_of_transposed_matrices_needs_no_copy(rows: int, offered: bool) -> None:
    """If it has few rows that fill a vector: these lie side by side in the left one, and results
    are stored across.
    """
    a, b = ts.placeholder((100, rows), name="A"), ts.placeholder((48, 100), name="B")
    k = ts.reduce_axis(100, name="k")
    y = ts.compute((rows, 48), lambda i, j: ts.sum(a[k, i] * b[j, k], axis=k), name="Y")
    func = ts.function([a, b, y])
    assert any(map(across, sketches(func, "skylake-avx512"))) == offered
    task = ts.Task(func, ts.cpu(1))
    rng = np.random.default_rng(8)
    arrays = [rng.standard_normal([n.number for n in p.shape], np.float32) for p in func.inputs]
    want = ts.evaluate(func, *arrays)
    for sketch in SketchSpace().sketches(task)[:3]:
        v = lower(task, with_structure(sketch, [0] * len(structural_counts(sketch))))
        for row in v.sample(rng, 1):
            assert_close(ts.build(v.function(row), task.target)(*arrays), want, f"{row}")
