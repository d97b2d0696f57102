"""Normalisations against SciPy, NumPy and PyTorch, and what they refuse."""

import ml_dtypes
import numpy as np
import pytest
import scipy.special

import tilesmith as ts


@pytest.mark.parametrize("shape", [(4, 6), (1, 1), (3,), (2, 3, 4), (5, 1), (0, 3), (3, 0)])
@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(run, rng, shape, axis, name):
    x = rng.standard_normal(shape, dtype=np.float32) * 10
    if x.size == 0 and x.shape[axis] == 0:
        want = x
    else:
        want = getattr(scipy.special, name)(x.astype(np.float64), axis=axis)
    got = run(getattr(ts.ops, name), x, axis=axis)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_softmax_in_the_middle(run, rng):
    x = rng.standard_normal((2, 3, 4), dtype=np.float32)
    np.testing.assert_allclose(
        run(ts.ops.softmax, x, axis=1), scipy.special.softmax(x, axis=1), rtol=1e-5
    )


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_does_not_overflow(run, name):
    x = np.array([[1e4, 1e4 - 1, -1e4]], np.float32)
    want = getattr(scipy.special, name)(x.astype(np.float64), axis=1)
    np.testing.assert_allclose(run(getattr(ts.ops, name), x), want, rtol=1e-5)


def test_softmax_is_four_stages(stated):
    func = stated(ts.ops.softmax, np.zeros((2, 3), np.float32))
    assert [b.name for b in func.buffers] == ["softmax_max", "softmax_exp", "softmax_sum"]
    assert func.outputs[0].name == "softmax"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_softmax_of_half_precision_sums_in_float32(run, stated, dtype):
    x = np.zeros((1, 4096), dtype)
    got = run(ts.ops.softmax, x)
    assert got.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(got.astype(np.float32), np.full((1, 4096), 1 / 4096))
    buffers = {b.name: b.dtype.name for b in stated(ts.ops.softmax, x).buffers}
    assert buffers["softmax_sum"] == "float32"


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 4), (1, 1)])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("epsilon", [1e-5, 0.1])
def test_layer_norm(torch, run, rng, shape, affine, epsilon):
    x = rng.standard_normal(shape, dtype=np.float32) + 5
    rest = [rng.standard_normal(shape[-1], dtype=np.float32) for _ in range(2 if affine else 0)]
    got = run(ts.ops.layer_norm, x, *rest, epsilon=epsilon)
    peer = torch.nn.functional.layer_norm
    want = peer(torch.from_numpy(x), shape[-1:], *map(torch.from_numpy, rest), eps=epsilon)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)


def test_layer_norm_over_two_axes(torch, run, rng):
    x = rng.standard_normal((2, 3, 4), dtype=np.float32)
    gamma, beta = (rng.standard_normal((3, 4), dtype=np.float32) for _ in range(2))
    got = run(ts.ops.layer_norm, x, gamma, beta, axis=(1, 2))
    np.testing.assert_array_equal(run(ts.ops.layer_norm, x, gamma, beta, axis=(-1, 1)), got)
    want = torch.nn.functional.layer_norm(
        torch.from_numpy(x), (3, 4), torch.from_numpy(gamma), torch.from_numpy(beta)
    )
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)


def test_layer_norm_over_the_first_axis(run, rng):
    x = rng.standard_normal((5, 3), dtype=np.float32)
    want = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    np.testing.assert_allclose(run(ts.ops.layer_norm, x, axis=0), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 4, 5), 1), ((2, 4, 5, 3), -1), ((1, 1), 1)])
def test_batch_norm(torch, run, rng, shape, axis):
    x = rng.standard_normal(shape, dtype=np.float32)
    c = shape[axis]
    gamma, beta, mean = (rng.standard_normal(c, dtype=np.float32) for _ in range(3))
    var = rng.random(c, dtype=np.float32) + 0.1
    got = run(ts.ops.batch_norm, x, gamma, beta, mean, var, axis=axis, epsilon=1e-3)
    want = torch.nn.functional.batch_norm(
        torch.from_numpy(np.moveaxis(x, axis, 1).copy()),
        *map(torch.from_numpy, (mean, var, gamma, beta)),
        eps=1e-3,
    )
    np.testing.assert_allclose(np.moveaxis(got, axis, 1), want.numpy(), rtol=1e-4, atol=1e-5)


def test_scale_shift(run, rng):
    x = rng.standard_normal((2, 3, 4), dtype=np.float32)
    scale, shift = (rng.standard_normal(3, dtype=np.float32) for _ in range(2))
    want = x * scale[:, None] + shift[:, None]
    np.testing.assert_allclose(run(ts.ops.scale_shift, x, scale, shift), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(5,), (4, 6), (1, 1), (1, 3, 4), (16, 3, 4), (0, 2), (2, 0, 3)])
def test_norm(run, rng, shape):
    x = rng.standard_normal(shape, dtype=np.float32)
    want = np.sqrt((x.astype(np.float64) ** 2).sum(axis=(1, 2) if len(shape) == 3 else None))
    got = run(ts.ops.norm, x)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_norm_of_a_large_matrix_is_exact_enough(run):
    x = np.full((1024, 1024), 0.1, np.float32)
    want = np.linalg.norm(x.astype(np.float64))
    np.testing.assert_allclose(run(ts.ops.norm, x), want, rtol=1e-6)


def _p(*shape, dtype="float32"):
    return ts.placeholder(shape, dtype=dtype, name="P")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            lambda: ts.ops.softmax(_p(3, 4), axis=2),
            "softmax: axis 2 does not exist .* from -2 to 1",
        ),
        (
            lambda: ts.ops.softmax(_p(3, 4, dtype="int32")),
            "softmax: X is int32; it must be a float",
        ),
        (lambda: ts.ops.log_softmax(_p(3, 4), axis=-3), "log_softmax: axis -3 does not exist"),
        (lambda: ts.ops.log_softmax(_p(3, 4), axis=1.0), r"axis=1.0\) .*it takes a whole number"),
        (
            lambda: ts.ops.layer_norm(_p(3, 4), _p(3)),
            r"gamma has shape \(3\); .*normalised axes, \(4\)",
        ),
        (lambda: ts.ops.layer_norm(_p(3, 4), _p(4), _p(1, 4)), r"beta has shape \(1, 4\)"),
        (lambda: ts.ops.layer_norm(_p(3, 4), axis=(1, -1)), "must name each axis once"),
        (lambda: ts.ops.layer_norm(_p(3, 4), axis=()), "at least one"),
        (
            lambda: ts.ops.batch_norm(_p(1, 4, 5), _p(4), _p(4), _p(5), _p(4)),
            "the extent of mean is 5, but axis 1 .* is 4",
        ),
        (
            lambda: ts.ops.batch_norm(_p(1, 4, 5), _p(4), _p(4, 1), _p(4), _p(4)),
            "batch_norm: beta .*rank 1",
        ),
        (
            lambda: ts.ops.scale_shift(_p(1, 4), _p(3), _p(4)),
            "scale_shift: the extent of scale is 3",
        ),
        (lambda: ts.ops.norm(_p(1, 2, 3, 4)), r"norm: X has shape \(1, 2, 3, 4\); it must be"),
        (lambda: ts.ops.norm(_p(3, dtype="int8")), "norm: X is int8"),
    ],
)
def test_errors(state, message):
    with pytest.raises(ts.ExpressionError, match=message):
        state()
