"""Pooling against PyTorch, in both layouts, and what it refuses."""

import numpy as np
import pytest

import tilesmith as ts

SHARED = [
    {"kernel": 2},
    {"kernel": 3, "stride": 2, "padding": 1},
    {"kernel": (2, 3), "stride": (1, 2)},
    {"kernel": 3, "stride": 1, "padding": (1, 0)},
    {"kernel": 1},
    {"kernel": 3, "stride": 2, "ceil_mode": True},
    {"kernel": 2, "stride": 3, "padding": 1, "ceil_mode": True},
    {"kernel": 3, "stride": 3, "padding": 1, "ceil_mode": True},
]


def _both_layouts(run, op, x, want, **settings):
    np.testing.assert_allclose(run(op, x, **settings), want, rtol=1e-5, atol=1e-6)
    last = np.moveaxis(x, 1, -1).copy()
    got = run(op, last, layout="NHWC", **settings)
    np.testing.assert_allclose(np.moveaxis(got, -1, 1), want, rtol=1e-5, atol=1e-6)


def _peer(settings):
    return {"kernel_size" if k == "kernel" else k: v for k, v in settings.items()}


@pytest.mark.parametrize("settings", [*SHARED, {"kernel": 2, "stride": 1, "dilation": 2}])
@pytest.mark.parametrize("shape", [(1, 1, 6, 7), (2, 3, 8, 5)])
def test_max_pool(torch, run, rng, settings, shape):
    x = -rng.random(shape, dtype=np.float32)  # all below 0: padding must not count as 0
    want = torch.nn.functional.max_pool2d(torch.from_numpy(x), **_peer(settings)).numpy()
    _both_layouts(run, ts.ops.max_pool2d, x, want, **settings)


@pytest.mark.parametrize("settings", SHARED)
@pytest.mark.parametrize("count_include_pad", [True, False])
@pytest.mark.parametrize("shape", [(1, 1, 6, 7), (2, 3, 8, 5)])
def test_avg_pool(torch, run, rng, settings, count_include_pad, shape):
    x = rng.standard_normal(shape, dtype=np.float32)
    peer = torch.nn.functional.avg_pool2d
    want = peer(torch.from_numpy(x), **_peer(settings), count_include_pad=count_include_pad)
    _both_layouts(
        run, ts.ops.avg_pool2d, x, want.numpy(), count_include_pad=count_include_pad, **settings
    )


def test_avg_pool_with_uneven_padding(run):
    x = np.ones((1, 1, 4, 4), np.float32)
    got = run(ts.ops.avg_pool2d, x, kernel=2, stride=2, padding=((1, 1), (0, 0)))
    np.testing.assert_allclose(got[0, 0, :, 0], [0.5, 1.0, 0.5])
    got = run(
        ts.ops.avg_pool2d, x, kernel=2, stride=2, padding=((1, 1), (0, 0)), count_include_pad=False
    )
    np.testing.assert_allclose(got, np.ones((1, 1, 3, 2)))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 5, 4), (0, 3, 2, 2)])
def test_global_avg_pool(run, rng, shape):
    x = rng.standard_normal(shape, dtype=np.float32)
    _both_layouts(run, ts.ops.global_avg_pool2d, x, x.mean(axis=(2, 3), keepdims=True))


@pytest.mark.parametrize("rank", [1, 3])
def test_pooling_of_other_ranks(torch, run, rng, rank):
    x = rng.standard_normal((2, 3, 6, 5, 7)[: 2 + rank], dtype=np.float32)
    X = torch.from_numpy(x)
    settings = {"kernel": 3, "stride": 2, "padding": 1, "ceil_mode": True}
    last = {1: "NWC", 3: "NDHWC"}[rank]
    for op, peer, more in [
        (ts.ops.max_pool, torch.nn.functional.max_pool1d, {"dilation": 2}),
        (ts.ops.avg_pool, torch.nn.functional.avg_pool1d, {"count_include_pad": False}),
    ]:
        if rank == 3:
            peer = getattr(torch.nn.functional, peer.__name__.replace("1d", "3d"))
        want = peer(X, **_peer(settings), **more).numpy()
        np.testing.assert_allclose(run(op, x, **settings, **more), want, rtol=1e-5, atol=1e-6)
        moved = np.moveaxis(x, 1, -1).copy()
        got = run(op, moved, layout=last, **settings, **more)
        np.testing.assert_allclose(np.moveaxis(got, -1, 1), want, rtol=1e-5, atol=1e-6)


def test_dilated_means_count_what_their_taps_meet(run):
    x = np.arange(1, 6, dtype=np.float32).reshape(1, 1, 5)
    settings = {"kernel": 3, "stride": 1, "padding": 2, "dilation": 2}
    got = run(ts.ops.avg_pool, x, count_include_pad=False, **settings)
    np.testing.assert_allclose(got[0, 0], [2, 3, 3, 3, 4])
    got = run(ts.ops.avg_pool, x, **settings)
    np.testing.assert_allclose(got[0, 0], [4 / 3, 2, 3, 2, 8 / 3])


@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms_of_windows(run, rng, p):
    x = rng.standard_normal((2, 3, 8), dtype=np.float32)
    want = (np.abs(x.reshape(2, 3, 4, 2)) ** p).sum(-1) ** (1 / p)
    np.testing.assert_allclose(run(ts.ops.lp_pool, x, kernel=2, p=p), want, rtol=1e-5)
    whole = (np.abs(x) ** p).sum(-1, keepdims=True) ** (1 / p)
    np.testing.assert_allclose(run(ts.ops.global_lp_pool, x, p=p), whole, rtol=1e-5)


def test_half_precision_means_are_summed_in_float32(run):
    x = np.full((1, 1, 64, 64), 100.0, np.float16)  # the sum, 409,600, lies beyond float16
    got = run(ts.ops.global_avg_pool2d, x)
    assert got.dtype == np.float16
    assert got[0, 0, 0, 0] == 100.0


def test_max_pool_of_integers(run):
    x = np.array([[[[-128, -5], [-7, -128]]]], np.int8)
    got = run(ts.ops.max_pool2d, x, kernel=2, stride=1, padding=1)
    assert got.dtype == np.int8
    np.testing.assert_array_equal(got[0, 0], [[-128, -5, -5], [-7, -5, -5], [-7, -7, -128]])


X = ts.placeholder((1, 4, 5, 5), name="X")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda: ts.ops.max_pool2d(X, 6), "max_pool2d: in H the kernel reaches over 6 .* has 5"),
        (lambda: ts.ops.max_pool2d(X, 2, padding=2), "padding .* in H is as large as the kernel"),
        (lambda: ts.ops.max_pool2d(X, 0), "kernel is 0; it must be at least 1"),
        (lambda: ts.ops.avg_pool2d(X, (2, 2, 2)), "avg_pool2d: kernel .* has 3 entries"),
        (lambda: ts.ops.avg_pool2d(X, 2, layout="NCW"), "unknown layout 'NCW'"),
        (lambda: ts.ops.global_avg_pool2d(ts.placeholder((3, 4))), r"rank 4: \(N, C, H, W\)"),
    ],
)
def test_errors(state, message):
    with pytest.raises(ts.ExpressionError, match=message):
        state()
