"""Views against NumPy, by the oracle and compiled, and what they refuse."""

import numpy as np
import pytest

import tilesmith as ts


def both(stated, op, *arrays, **settings):
    """By the oracle and by a kernel, which agree."""
    func = stated(op, *arrays, **settings)
    want = ts.evaluate(func, *arrays)
    np.testing.assert_array_equal(ts.build(ts.Schedule(func), ts.cpu(1))(*arrays), want)
    return want


@pytest.mark.parametrize(
    ("starts", "stops", "steps"),
    [
        ((1, 0), (4, 3), None),
        ((None, -2), (None, None), (2, None)),
        ((-1, 0), (None, 100), (-1, 3)),
        ((4, 5), (-100, 1), (-2, -1)),
        ((3, 0), (3, None), (1, 1)),
        ((2, 0), (1, 6), (1, 1)),
    ],
)
def test_slice(stated, rng, starts, stops, steps):
    x = rng.standard_normal((5, 6), dtype=np.float32)
    got = both(stated, ts.ops.slice_, x, starts=starts, stops=stops, steps=steps)
    at = tuple(map(slice, starts, stops, steps or (None, None)))
    np.testing.assert_array_equal(got, x[at])


def test_slice_of_an_open_size():
    n = ts.size("N")
    X = ts.placeholder((n, 6), name="X")
    Y = ts.ops.slice_(X, (0, 1), (None, 3))
    assert Y.shape == (n, 2)
    assert ts.ops.slice_(X, (1, 1), (None, 3)).shape == (n - 1, 2)


@pytest.mark.parametrize("shape", [(2, 3, 4), (5, 2, 3, 4), (2, 3, 0)])
def test_expand(stated, rng, shape):
    x = rng.standard_normal((3, 1), dtype=np.float32)
    got = both(stated, ts.ops.expand, x, shape=shape)
    np.testing.assert_array_equal(got, np.broadcast_to(x, shape))


@pytest.mark.parametrize("repeats", [(1, 1, 1), (2, 1, 3), (0, 1, 1), (1, 4, 2)])
def test_tile(stated, rng, repeats):
    x = rng.standard_normal((3, 1, 2), dtype=np.float32)
    np.testing.assert_array_equal(
        both(stated, ts.ops.tile, x, repeats=repeats), np.tile(x, repeats)
    )


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize(
    "widths",
    [((0, 0), (2, 3)), ((1, 2), (0, 0)), ((2, 2), (4, 4)), ((5, 7), (11, 9)), ((0, 1), (0, 5))],
)
def test_pad_mirrored(stated, rng, mode, widths):
    x = rng.standard_normal((3, 5), dtype=np.float32)
    got = both(stated, ts.ops.pad_mirrored, x, widths=widths, mode=mode)
    np.testing.assert_array_equal(got, np.pad(x, widths, mode=mode))


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_pad_mirrored_of_one_element(stated, mode):
    x = np.array([[3.0]], np.float32)
    got = both(stated, ts.ops.pad_mirrored, x, widths=((2, 1), (0, 3)), mode=mode)
    np.testing.assert_array_equal(got, np.full((4, 4), 3, np.float32))


def test_pad_with(stated, rng):
    x, v = rng.integers(0, 9, (3, 4)), np.array([7])
    got = both(stated, ts.ops.pad_with, x, v, widths=((1, 0), (0, 2)))
    np.testing.assert_array_equal(got, np.pad(x, ((1, 0), (0, 2)), constant_values=7))


@pytest.mark.parametrize("k", [-2, 0, 1, 9])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_trilu(stated, rng, k, dtype):
    x = rng.integers(0, 2, (2, 4, 5)).astype(dtype)
    np.testing.assert_array_equal(both(stated, ts.ops.trilu, x, k=k), np.triu(x, k))
    np.testing.assert_array_equal(both(stated, ts.ops.trilu, x, k=k, upper=False), np.tril(x, k))


def test_reverse_sequence(stated, rng):
    x = rng.standard_normal((4, 5, 2), dtype=np.float32)
    lengths = np.array([1, 5, 0, 3])
    got = both(stated, ts.ops.reverse_sequence, x, lengths, batch_axis=0, time_axis=1)
    want = x.copy()
    for b, n in enumerate(lengths):
        want[b, :n] = x[b, :n][::-1]
    np.testing.assert_array_equal(got, want)


def test_a_length_beyond_the_tensor_reads_inside(stated, rng):
    x = rng.standard_normal((1, 5), dtype=np.float32)
    got = both(stated, ts.ops.reverse_sequence, x, np.array([900]), batch_axis=0, time_axis=1)
    assert set(got.ravel()) <= set(x.ravel())


def test_concatenate_takes_tensors_one_by_one(stated, rng):
    arrays = [rng.standard_normal((2, n), dtype=np.float32) for n in (3, 0, 2)]
    got = both(stated, ts.ops.concatenate, *arrays, axis=1)
    np.testing.assert_array_equal(got, np.concatenate(arrays, axis=1))


def _p(*shape, dtype="float32"):
    return ts.placeholder(shape, dtype=dtype, name="P")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda: ts.ops.slice_(_p(2, 3), (0,), (1, 2)), r"starts \(0,\) has 1 entries"),
        (lambda: ts.ops.slice_(_p(2), (0,), (1,), (0,)), "the step of dimension 0 is 0"),
        (lambda: ts.ops.expand(_p(2, 3), (4,)), "do not broadcast"),
        (lambda: ts.ops.expand(_p(2, 3), (1, 3)), r"\(2, 3\) does not fit into \(1, 3\)"),
        (lambda: ts.ops.tile(_p(2), (-1,)), "repeats is -1; it must be at least 0"),
        (lambda: ts.ops.pad_mirrored(_p(2), 1, "zero"), "mode 'zero' is unknown"),
        (lambda: ts.ops.pad_mirrored(_p(0), 1), "dimension 0 of X is empty"),
        (lambda: ts.ops.pad_with(_p(2), _p(3), 1), "it must have one element"),
        (lambda: ts.ops.trilu(_p(2)), "it must be a matrix"),
        (lambda: ts.ops.reverse_sequence(_p(2, 3), _p(2), 0, 0), "are both 0"),
    ],
)
def test_errors(state, message):
    with pytest.raises(ts.ExpressionError, match=message):
        state()
