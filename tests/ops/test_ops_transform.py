"""Transforms against NumPy, and what they refuse."""

import numpy as np
import pytest

import tilesmith as ts


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((3, 4), None),
        ((2, 3, 4), (1, 2, 0)),
        ((2, 3, 4), (-1, 0, 1)),
        ((), None),
        ((0, 2), (1, 0)),
        ((5,), (0,)),
    ],
)
def test_transpose(run, rng, shape, axes):
    x = np.asarray(rng.standard_normal(shape), np.float32)
    np.testing.assert_array_equal(run(ts.ops.transpose, x, axes=axes), np.transpose(x, axes))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((2, 3, 4), (6, 4)),
        ((2, 3, 4), (2, 12)),
        ((2, 3, 4), (4, 3, 2)),
        ((2, 3, 4), (24,)),
        ((24,), (2, 3, 4)),
        ((2, 6, 5), (2, 3, 2, 5)),
        ((2, 3), (-1,)),
        ((2, 3, 4), (3, -1, 2)),
        ((1, 1), ()),
        ((), (1, 1)),
        ((4, 1, 3), (4, 3)),
        ((4, 3), (1, 4, 1, 3, 1)),
        ((0, 3), (3, 0)),
        ((0, 4), (0, 2, 2)),
        ((6, 4), (8, 3)),
        ((2, 2, 3), (2, 3, 2)),
    ],
)
def test_reshape(run, rng, old, new):
    x = np.asarray(rng.standard_normal(old), np.float32)
    np.testing.assert_array_equal(run(ts.ops.reshape, x, shape=new), x.reshape(new))


def test_reshape_of_open_sizes(rng):
    n = ts.size("N")
    X = ts.placeholder((n, 6), name="X")
    Y = ts.ops.reshape(X, (n, 2, -1))
    assert Y.shape == (n, 2, 3)
    flat = ts.ops.reshape(Y, (n * 6,))
    x = rng.standard_normal((5, 6)).astype(np.float32)
    func = ts.instantiate(ts.function([X, flat]), {"#N": 5})
    np.testing.assert_array_equal(ts.evaluate(func, x), x.reshape(-1))


@pytest.mark.parametrize("shape", [(2, 3, 4), (5,), (3, 0)])
def test_flatten(run, rng, shape):
    x = rng.standard_normal(shape, dtype=np.float32)
    want = x.reshape(shape[0], int(np.prod(shape[1:])))
    np.testing.assert_array_equal(run(ts.ops.flatten, x), want)


@pytest.mark.parametrize("widths", [1, (1, 2), ((0, 2), (3, 0)), (0, 0)])
@pytest.mark.parametrize("value", [0, -1.5])
def test_pad(rng, widths, value):
    X = ts.placeholder((3, 4), name="X")
    x = rng.standard_normal((3, 4), dtype=np.float32)
    Y = ts.ops.pad(X, widths, value=value)
    pairs = [
        (w, w) if isinstance(w, int) else w for w in ((widths,) * 2 if widths == 1 else widths)
    ]
    want = np.pad(x, pairs, constant_values=value)
    np.testing.assert_array_equal(ts.evaluate(ts.function([X, Y]), x), want)


def test_pad_of_an_open_size(rng):
    X = ts.placeholder((ts.size("N"),), name="X")
    func = ts.instantiate(ts.function([X, ts.ops.pad(X, ((1, 2),))]), {"#N": 3})
    np.testing.assert_array_equal(ts.evaluate(func, [1, 2, 3]), [0, 1, 2, 3, 0, 0])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_concatenate(run, rng, axis, count):
    arrays = []
    for k in range(count):
        shape = [3, 4]
        shape[axis] = (2, 1, 0, 5)[k]
        arrays.append(rng.standard_normal(shape, dtype=np.float32))
    got = run(lambda *tensors: ts.ops.concatenate(tensors, axis=axis), *arrays)
    np.testing.assert_array_equal(got, np.concatenate(arrays, axis=axis))


def test_concatenate_promotes(run):
    got = run(lambda *t: ts.ops.concatenate(t), np.array([1], np.int8), np.array([2], np.int32))
    assert got.dtype == np.int32


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("ids", [(), (1,), (4,), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_take(run, rng, axis, ids, dtype):
    x = rng.standard_normal((3, 4, 5), dtype=np.float32)
    at = rng.integers(0, 3, ids).astype(dtype)
    at = np.asarray(at)
    np.testing.assert_array_equal(run(ts.ops.take, x, at, axis=axis), np.take(x, at, axis=axis))


def test_embedding(run, rng):
    table = rng.standard_normal((7, 3), dtype=np.float32)
    ids = np.array([[6, 0], [3, 3]], np.int64)
    np.testing.assert_array_equal(run(ts.ops.embedding, table, ids), table[ids])


def test_an_id_past_the_table_is_found(stated):
    table, ids = np.zeros((3, 2), np.float32), np.zeros(2, np.int64)
    func = stated(ts.ops.embedding, table, ids)
    with pytest.raises(
        ts.ArgumentError, match=r"is read at index .* = 3 in dimension 0, which has 3 elements"
    ):
        ts.evaluate(func, table, np.array([0, 3]))


def _p(*shape, dtype="float32"):
    return ts.placeholder(shape, dtype=dtype, name="P")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda: ts.ops.transpose(_p(2, 3), (0, 0)), "must name each of the 2 dimensions"),
        (lambda: ts.ops.transpose(_p(2, 3), (0, 2)), "transpose: axis 2 does not exist"),
        (lambda: ts.ops.transpose(_p(2, 3), (0,)), "must name each of the 2 dimensions"),
        (lambda: ts.ops.reshape(_p(2, 3), (4,)), r"shape \(2, 3\) has 6 elements, .*shape \(4\)"),
        (lambda: ts.ops.reshape(_p(2, 3), (4, -1)), r"do not fill the shape \(4, -1\)"),
        (lambda: ts.ops.reshape(_p(2, 3), (-1, -1)), "more than one -1"),
        (lambda: ts.ops.reshape(_p(0, 3), (0, -1)), "do not fill"),
        (lambda: ts.ops.flatten(_p()), "flatten: X has rank 0"),
        (lambda: ts.ops.pad(_p(2, 3), (1, 2, 3)), "pad: padding .* has 3 entries for 2"),
        (lambda: ts.ops.pad(_p(2), (-1,)), "pad: padding is -1"),
        (lambda: ts.ops.concatenate([]), "there is nothing to join"),
        (lambda: ts.ops.concatenate([_p(2), _p(2, 3)]), "tensor 1 has rank 2 and tensor 0 has 1"),
        (lambda: ts.ops.concatenate([_p(2, 3), _p(2, 4)]), "dimension 1 of tensor 1 is 4, .* is 3"),
        (lambda: ts.ops.concatenate([_p(2)], axis=1), "concatenate: axis 1 does not exist"),
        (lambda: ts.ops.take(_p(2, 3), _p(4)), "take: ids is float32; it must be of an integer"),
        (lambda: ts.ops.take(_p(2, 3), _p(4, dtype="int32"), axis=2), "take: axis 2 does not"),
        (lambda: ts.ops.embedding(_p(2), _p(4, dtype="int32")), r"rank 2: \(V, D\)"),
    ],
)
def test_errors(state, message):
    with pytest.raises(ts.ExpressionError, match=message):
        state()
