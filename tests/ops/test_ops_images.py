"""Resizing, blocks and sampling in both layouts, and what they refuse."""

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.ops.fourier import fourier, fourier_frames
from tilesmith.ops.pool import max_pool_with_indices
from tilesmith.ops.resize import Steps, interpolate, resize_nearest


def _last(x):
    return np.moveaxis(x, 1, -1).copy()


def _first(x):
    return np.moveaxis(x, -1, 1)


@pytest.mark.parametrize(("shape", "layout"), [((2, 3, 4, 5), "NHWC"), ((2, 3, 4), "NWC")])
def test_axes_count_as_if_channels_were_first(run, rng, shape, layout):
    x = rng.standard_normal(shape, dtype=np.float32)
    ids = rng.integers(0, shape[2], (6, 3))
    weights = rng.standard_normal((6, 3), dtype=np.float32)
    want = (np.take(x, ids, 2) * weights.reshape((1, 1, 6, 3) + (1,) * (x.ndim - 3))).sum(3)
    np.testing.assert_allclose(run(interpolate, x, ids, weights, axis=2), want, rtol=1e-5)
    got = run(interpolate, _last(x), ids, weights, axis=2, layout=layout)
    np.testing.assert_allclose(_first(got), want, rtol=1e-5)
    steps = (Steps(2, 8, 1, 0, 2),)
    want = x.repeat(2, 2)
    np.testing.assert_array_equal(run(resize_nearest, x, steps=steps), want)
    got = run(resize_nearest, _last(x), steps=steps, layout=layout)
    np.testing.assert_array_equal(_first(got), want)


def test_many_taps_are_a_loop(run, rng):
    x = rng.standard_normal((2, 9), dtype=np.float32)
    ids = rng.integers(0, 9, (3, 7))
    weights = rng.standard_normal((3, 7), dtype=np.float32)
    want = (x[:, ids] * weights).sum(-1)
    np.testing.assert_allclose(run(interpolate, x, ids, weights), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("channel_last", [False, True])
def test_blocks_in_both_layouts(run, rng, channel_last):
    x = rng.standard_normal((2, 8, 3, 2), dtype=np.float32)
    want = run(ts.ops.depth_to_space, x, block=2, channel_last=channel_last)
    settings = {"block": 2, "channel_last": channel_last, "layout": "NHWC"}
    got = run(ts.ops.depth_to_space, _last(x), **settings)
    np.testing.assert_array_equal(_first(got), want)
    back = run(ts.ops.space_to_depth, got, **settings)
    np.testing.assert_array_equal(_first(back), x)


def test_indices_of_maxima_of_integers(torch):
    x = np.random.default_rng(3).integers(-9, 9, (2, 3, 6, 7)).astype(np.int8)
    X = ts.placeholder(x.shape, dtype="int8", name="X")
    func = ts.function([X, *max_pool_with_indices(X, 3, 2, 1)])
    values, places = ts.evaluate(func, x)
    want, at = torch.nn.functional.max_pool2d(
        torch.from_numpy(x.astype(np.float32)), 3, 2, 1, return_indices=True
    )
    np.testing.assert_array_equal(values, want.numpy())
    starts = np.arange(6).reshape(2, 3, 1, 1) * 42  # PyTorch counts within a channel
    np.testing.assert_array_equal(places, at.numpy() + starts)


X = ts.placeholder((1, 4, 5, 5), name="X")
TABLE = ts.placeholder((3, 1, 2, 2), name="T")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda: interpolate(X, X, X), r"ids has shape .* rank 2: \(outputs, taps\)"),
        (lambda: resize_nearest(X, (Steps(9, 1, 1, 0, 1),)), "axis 9 does not exist"),
        (lambda: ts.ops.depth_to_space(X, 3), "4 channels, which block=3 does not divide by 9"),
        (lambda: ts.ops.space_to_depth(X, 2), r"block=2 does not divide the \[5, 5\] pixels"),
        (lambda: ts.ops.grid_sample(X, X), "the last extent of grid is 5, but X has dimensions 2"),
        (lambda: ts.ops.crop_or_pad(X, (0,), (1,)), "X has rank 4; give as many starts"),
        (lambda: ts.ops.col2im(ts.placeholder((1, 4, 9)), (4, 4), 3), "number of columns of X is"),
        (lambda: fourier(X, TABLE), "the last extent of X is 5, but table has parts 1"),
        (lambda: fourier_frames(X, TABLE), r"rank 3: \(N, L, parts\)"),
        (lambda: ts.ops.max_pool(ts.placeholder((3, 4)), 2), "with at least one spatial dimension"),
        (lambda: ts.ops.avg_pool(X, 2, layout="CHWN"), "unknown layout 'CHWN'"),
    ],
)
def test_errors(state, message):
    with pytest.raises(ts.ExpressionError, match=message):
        state()
