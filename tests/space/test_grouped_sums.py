"""Grouped convolutions on CPUs: the groups are an axis of their own in the sum and in what follows
it, so that its tiles are finished in registers; and such candidates are right.
"""

from __future__ import annotations

import numpy as np
import pytest
from test_filtering import check_candidates

import tilesmith as ts
from tilesmith.schedule.groups import Ungroup
from tilesmith.schedule.location import ReverseComputeAt
from tilesmith.space.spaces import SketchSpace

# groups, channels and filters of each, image, window, stride, padding, dilation
SIZES = {
    "few filters": (4, 5, 3, (9, 11), (3, 3), 1, 1, 1),
    "many groups": (10, 2, 2, (7, 6), (3, 3), 2, 1, 1),
    "dilated": (3, 4, 7, (11, 9), (3, 2), 1, 2, 2),
    "pixels": (2, 6, 17, (5, 6), (1, 1), 1, 0, 1),
    "rows": (3, 3, 5, (23,), (4,), 2, 0, 1),
    "boxes": (2, 3, 4, (5, 4, 6), (2, 2, 2), 1, 1, 1),
}
LAYOUTS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}
OPERATORS = (ts.ops.conv1d, ts.ops.conv2d, ts.ops.conv3d)


def grouped(name: str, last: bool, dtype: str = "float32") -> ts.Function:
    groups, channels, filters, image, window, stride, padding, dilation = SIZES[name]
    rank = len(image)
    shape = (2, *image, groups * channels) if last else (2, groups * channels, *image)
    weights = (groups * filters, channels, *window)
    if last:
        weights = (*window, channels, groups * filters)
    x, w = ts.placeholder(shape, dtype, name="X"), ts.placeholder(weights, dtype, name="W")
    ones = () if last else (1,) * rank
    out = "int32" if dtype == "int8" else dtype
    bias = ts.placeholder((groups * filters, *ones), out, name="bias")
    y = OPERATORS[rank - 1](
        x, w, stride, padding, dilation, groups, LAYOUTS[rank][last], out_dtype=out
    )
    y = ts.ops.relu(ts.ops.add(y, bias), name="Y")
    return ts.function([x, w, bias, y], constants=[w, bias])


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("last", [False, True])
def test_candidates_match_the_oracle(name: str, last: bool) -> None:
    task = ts.Task(grouped(name, last), ts.cpu(1))
    sketches = SketchSpace().sketches(task)
    check_candidates(task, sketches, np.random.default_rng([5, *map(ord, name)]))


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_candidates_of_other_types_match_the_oracle(dtype: str) -> None:
    task = ts.Task(grouped("dilated", True, dtype), ts.cpu(1))
    check_candidates(task, SketchSpace().sketches(task), np.random.default_rng(6))


@pytest.mark.parametrize("last", [False, True])
def test_what_follows_is_computed_in_the_tiles(last: bool) -> None:
    """And there are no sketches with groups that are divided in the index of each operand."""
    target = ts.Target.named("skylake-avx512").with_cores(1)
    task = ts.Task(grouped("dilated", last), target)
    for sketch in SketchSpace().sketches(task):
        assert any(isinstance(s, Ungroup) for s in sketch.steps)
    fused = [
        s for t in SketchSpace().sketches(task) for s in t.steps if isinstance(s, ReverseComputeAt)
    ]
    assert {s.block for s in fused} == {"Y"}


def test_a_result_of_another_shape_is_left_as_it_is() -> None:
    """Channels that are moved behind a convolution are no elements of its groups."""
    x, w = ts.placeholder((1, 6, 5, 5), name="X"), ts.placeholder((4, 3, 3, 3), name="W")
    y = ts.ops.conv2d(x, w, groups=2)
    func = ts.function([x, w, ts.ops.transpose(y, (0, 2, 3, 1))])
    task = ts.Task(func, ts.cpu(1))
    sketches = SketchSpace().sketches(task)
    assert sketches
    assert not any(isinstance(s, Ungroup) for sketch in sketches for s in sketch.steps)
    check_candidates(task, sketches, np.random.default_rng(7))
