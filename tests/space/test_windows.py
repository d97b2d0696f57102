"""Windows that share nothing but their overlap are written out, and such candidates are right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.thorough import drawn
from tilesmith.cli.operators import operator
from tilesmith.schedule.reduction import WriteOut
from tilesmith.space.spaces import SketchSpace, variants


def written_out(task: ts.Task) -> list[ts.Trace]:
    sketches = SketchSpace().sketches(task)
    return [s for s in sketches if any(isinstance(x, WriteOut) for x in s.steps)]


def max_pool(size: int, channels: int, kernel: int, stride: int, pad: int) -> ts.Function:
    x = ts.placeholder((1, size, size, channels), name="x")
    y = ts.ops.max_pool2d(x, kernel, stride, pad, layout="NHWC", name="y")
    return ts.function([x, y])


def rows(kind: str, size: int, channels: int, kernel: int, stride: int, pad: int) -> ts.Function:
    """Pooling with channels in front: windows move along the vectors."""
    x = ts.placeholder((2, channels, size, size + 3), name="x")
    pool = ts.ops.max_pool2d if kind == "max" else ts.ops.avg_pool2d
    y = pool(x, kernel, stride, pad, layout="NCHW", name="y")
    return ts.function([x, y], name=f"{kind}_{size}_{kernel}_{stride}_{pad}")


CASES = [
    operator("depthwise-conv2d", (9, 20, 3, 1, 1), "NHWC"),
    operator("depthwise-conv2d", (10, 18, 3, 2, 1), "NHWC"),
    operator("depthwise-conv2d", (8, 16, 5, 1, 2), "NHWC"),
    max_pool(9, 20, 3, 2, 1),
    operator("depthwise-conv2d", (9, 5, 3, 1, 1), "NCHW"),
    rows("max", 17, 3, 3, 2, 1),
    rows("max", 9, 3, 5, 1, 2),
    rows("max", 12, 3, 2, 2, 0),
    rows("avg", 15, 3, 3, 2, 1),
    rows("avg", 31, 2, 2, 2, 1),
]


@pytest.mark.parametrize("func", CASES, ids=lambda f: f.name)
def test_candidates_match_the_oracle(func: ts.Function) -> None:
    assert_right(ts.Task(func, ts.cpu(2)))


def test_channels_are_taken_in_parts_where_common_rows_exceed_the_cache() -> None:
    func = operator("depthwise-conv2d", (9, 75, 3, 1, 1), "NHWC")
    whole = ts.Task(func, replace(ts.cpu(2), l2_nbytes=1 << 20))
    parts = ts.Task(func, replace(ts.cpu(2), l2_nbytes=8192))
    named = [
        any(".channels" in str(x) for s in written_out(t) for x in s.steps) for t in (whole, parts)
    ]
    assert named == [False, True]
    assert_right(parts)


def assert_right(task: ts.Task) -> None:
    func = task.func
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal([n.number for n in b.shape], np.float32) for b in func.inputs]
    want = ts.evaluate(func, *arrays)
    sketches = written_out(task)
    assert sketches
    for sketch in sketches:
        for v in list(variants(task, sketch))[:2]:
            for row in v.sample(rng, drawn(1, 2)):
                kernel = ts.build(v.function(row), task.target)
                given = [kernel.pack(b.name, a) for b, a in zip(func.inputs, arrays, strict=True)]
                assert_close(kernel(*given), want, f"{v.decided(row)}")


@pytest.mark.parametrize(
    ("name", "shape", "layout"),
    [
        ("conv2d", (8, 16, 16, 3, 1, 1), "NHWC"),  # channels share the image
        ("depthwise-conv2d", (3, 20, 3, 1, 1), "NCHW"),  # rows are shorter than any vector
        ("depthwise-conv2d", (9, 2, 3, 1, 1), "NHWC"),  # no vector is full
    ],
)
def test_others_are_not(name: str, shape: tuple[int, ...], layout: str) -> None:
    assert not written_out(ts.Task(operator(name, shape, layout), ts.cpu(1)))
