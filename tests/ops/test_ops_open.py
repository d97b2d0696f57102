"""Operators over open sizes say the same as those that are stated for numbers."""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.ops.pool import max_pool_with_indices
from tilesmith.task.inputs import example_inputs

o = ts.ops


def _image(n, m):
    return ts.placeholder((2, 3, n, m), name="X")


def _weights(*shape):
    return ts.placeholder(shape, name="W")


def _rows(n, m):
    return ts.placeholder((n, m), name="X")


def _windowed(build):
    return lambda n, m: [x := _image(n, m), build(x)]


def _plain(build):
    return lambda n, m: [x := _rows(n, m), build(x)]


def _weighed(build, *shape):
    return lambda n, m: [x := _image(n, m), w := _weights(*shape), build(x, w)]


CASES = {
    "conv": _weighed(lambda x, w: o.conv2d(x, w, stride=2, padding=1), 4, 3, 3, 3),
    "conv_uneven": _weighed(
        lambda x, w: o.conv2d(x, w, stride=(3, 1), padding=((0, 2), 1), dilation=(1, 2)), 4, 3, 3, 2
    ),
    "conv_transpose": _weighed(
        lambda x, w: o.conv2d_transpose(x, w, stride=2, padding=1, output_padding=1), 3, 2, 3, 3
    ),
    "conv_transpose_phases": _weighed(
        lambda x, w: o.conv2d_transpose(x, w, stride=2, padding=1), 3, 2, 4, 4
    ),
    "max_pool": _windowed(lambda x: o.max_pool2d(x, 3, 2, 1)),
    "max_pool_ceil": _windowed(lambda x: o.max_pool2d(x, 3, 2, 1, ceil_mode=True)),
    "max_pool_ceil_last": _windowed(lambda x: o.max_pool2d(x, 2, 3, ceil_mode=True)),
    "max_pool_places": lambda n, m: [x := _image(n, m), *max_pool_with_indices(x, 2, 1, 1)],
    "avg_pool": _windowed(lambda x: o.avg_pool2d(x, 3, 2, 1)),
    "avg_pool_inside": _windowed(lambda x: o.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
    "avg_pool_ceil": _windowed(lambda x: o.avg_pool2d(x, 3, 2, 1, ceil_mode=True)),
    "avg_pool_dilated": _windowed(
        lambda x: o.avg_pool2d(x, 2, 2, 1, count_include_pad=False, ceil_mode=True, dilation=2)
    ),
    "global_pool": _windowed(o.global_avg_pool),
    "cumsum": _plain(lambda x: o.cumsum(x, 1)),
    "cumsum_back": _plain(lambda x: o.cumsum(x, 0, exclusive=True, reverse=True, block=16)),
    "slice": _plain(lambda x: o.slice_(x, (1, None), (None, -1))),
    "slice_steps": _plain(lambda x: o.slice_(x, (None, -2), (None, 0), (-2, -1))),
    "slice_cut": _plain(lambda x: o.slice_(x, (2, -9), (7, 99))),
    "slice_by_size": lambda n, m: [x := _rows(n, m), o.slice_(x, (n - 2, 0), (n, m))],
    "reflect": _plain(lambda x: o.pad_mirrored(x, ((2, 3), 1))),
    "reflect_far": _plain(lambda x: o.pad_mirrored(x, ((9, 12), 0))),
    "edge": _plain(lambda x: o.pad_mirrored(x, 4, "edge")),
    "wrap": _plain(lambda x: o.pad_mirrored(x, ((7, 0), (1, 3)), "wrap")),
    "crop": _plain(lambda x: o.crop_or_pad(x, (-1, 2), (6, 5))),
    "space_to_depth": lambda n, m: [
        x := ts.placeholder((1, 3, 2 * n, 2 * m), name="X"), o.space_to_depth(x, 2)
    ],
    "depth_to_space": lambda n, m: [
        x := ts.placeholder((1, 8, n, m), name="X"), o.depth_to_space(x, 2)
    ],
    "top_k": _plain(lambda x: list(o.top_k(x, 2, 0))),
    "argmax": _plain(lambda x: o.argmax(x, 0)),
    "concatenate": lambda n, m: [
        x := _rows(n, m), y := ts.placeholder((m, m), name="Y"), o.concatenate(x, y, axis=0)
    ],
    "reshape": lambda n, m: [
        x := ts.placeholder((n, m, 12), name="X"), o.reshape(x, (n * m, 3, 4))
    ],
    "tile": _plain(lambda x: o.tile(x, (2, 3))),
    "trilu": _plain(lambda x: o.trilu(x, 1)),
}  # fmt: skip


def _function(case, n, m):
    tensors = [t for x in CASES[case](n, m) for t in (x if isinstance(x, list) else [x])]
    return ts.function(tensors, name=case)


@pytest.mark.parametrize("case", CASES)
def test_an_operator_with_open_sizes_says_what_it_says_with_numbers(case):
    func = _function(case, ts.size("n"), ts.size("m"))
    for n, m in ((3, 4), (8, 5), (4, 11), (7, 9)):
        fixed = _function(case, n, m)
        arrays = example_inputs(fixed)
        got, want = ts.evaluate(func, *arrays), ts.evaluate(fixed, *arrays)
        for x, y in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, want)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5, err_msg=f"{n}, {m}")
