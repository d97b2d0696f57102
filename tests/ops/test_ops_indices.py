"""Gathers, scatters and top_k against NumPy, by the oracle and compiled."""

import numpy as np
import pytest

import tilesmith as ts


@pytest.fixture
def both(stated):
    """By the oracle and by a kernel, which agree."""

    def run(op, *arrays, **settings):
        tensors = [
            ts.placeholder(a.shape, dtype=a.dtype.name, name=f"x{k}") for k, a in enumerate(arrays)
        ]
        made = op(*tensors, **settings)
        func = ts.function([*tensors, *(made if isinstance(made, tuple) else (made,))])
        want = ts.evaluate(func, *arrays)
        got = ts.build(ts.Schedule(func), ts.cpu(1))(*arrays)
        for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (got, want)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
        return want

    return run


@pytest.fixture
def x(rng):
    return rng.standard_normal((3, 4, 5), dtype=np.float32)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(), (6,), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_gather(both, rng, x, axis, shape, dtype):
    low = 0 if dtype == "uint8" else -3
    ids = np.asarray(rng.integers(low, 3, shape)).astype(dtype)
    got = both(ts.ops.gather, x, ids, axis=axis)
    np.testing.assert_array_equal(got, np.take(x, ids.astype(int), axis))


def test_an_index_outside_reads_inside(both, x):
    far = np.array([99, -99, 2**62, -(2**62)])
    got = both(ts.ops.gather, x, far, axis=1)
    np.testing.assert_array_equal(got, x[:, [3, 0, 3, 0]])
    got = both(ts.ops.gather_nd, x, far.reshape(2, 2))
    np.testing.assert_array_equal(got, x[[2, 2], [0, 0]])
    got = both(ts.ops.gather_elements, x[0], np.full((2, 2), 77), axis=0)
    np.testing.assert_array_equal(got, np.stack([x[0][3, :2]] * 2))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_elements(both, rng, x, axis):
    ids = rng.integers(-3, 3, (2, 3, 4))
    inner = [x.shape[d] if d == axis else ids.shape[d] for d in range(3)]
    part = x[tuple(map(slice, inner))]
    got = both(ts.ops.gather_elements, x, ids, axis=axis)
    want = np.take_along_axis(part, np.where(ids < 0, ids + x.shape[axis], ids), axis)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_gather_nd(both, rng, x, depth):
    ids = rng.integers(-3, 3, (2, 4, depth))
    got = both(ts.ops.gather_nd, x, ids)
    np.testing.assert_array_equal(got, x[tuple(np.moveaxis(ids, -1, 0))])


def test_gather_nd_of_a_batch(both, rng, x):
    ids = rng.integers(0, 4, (3, 2, 1))
    got = both(ts.ops.gather_nd, x, ids, batch_dims=1)
    np.testing.assert_array_equal(got, np.stack([x[b][ids[b, :, 0]] for b in range(3)]))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(both, axis):
    ids, values = np.array([[0, -1, 2], [9, 3, -9]]), np.array([2, 5], np.int32)
    got = both(ts.ops.one_hot, ids, values, depth=4, axis=axis)
    places = np.expand_dims(np.where(ids < 0, ids + 4, ids), axis)
    order = np.arange(4).reshape([-1 if d == axis % 3 else 1 for d in range(3)])
    np.testing.assert_array_equal(got, np.where(places == order, 5, 2))


def joined(op, x, places, updates):
    out = x.copy()
    {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[op].at(
        out, places, updates
    )
    return out


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "int64", "float16"])
def test_scatter_elements(both, rng, reduction, dtype):
    x = rng.integers(-5, 5, (4, 5)).astype(dtype)
    ids, updates = rng.integers(-4, 4, (6, 3)), rng.integers(-3, 4, (6, 3)).astype(dtype)
    got = both(ts.ops.scatter_elements, x, ids, updates, axis=0, reduction=reduction)
    assert got.dtype == dtype
    columns = np.broadcast_to(np.arange(3), ids.shape)
    want = joined(reduction, x.astype(np.float64), (ids % 4, columns), updates)
    np.testing.assert_array_equal(got, want.astype(dtype))


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("depth", [1, 2])
def test_scatter_nd(both, rng, reduction, depth):
    x = rng.integers(-5, 5, (4, 5)).astype(np.float32)
    ids = rng.integers(-4, 4, (7, depth))
    updates = rng.integers(-3, 4, (7, *x.shape[depth:])).astype(np.float32)
    got = both(ts.ops.scatter_nd, x, ids, updates, reduction=reduction)
    np.testing.assert_array_equal(got, joined(reduction, x, tuple(ids.T), updates))


def test_an_update_outside_is_dropped(both, x):
    updates = np.ones((2, 4, 5), np.float32)
    got = both(ts.ops.scatter_nd, x, np.array([[7], [-8]]), updates)
    np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("circular", [True, False])
def test_tensor_scatter(both, rng, circular):
    x, updates = np.zeros((2, 3, 5, 2), np.float32), rng.random((2, 3, 2, 2), np.float32)
    starts = np.array([4 if circular else 3, 1])
    got = both(ts.ops.tensor_scatter, x, updates, starts, circular=circular)
    for b, s in enumerate(starts):
        for t in range(2):
            x[b, :, (s + t) % 5] = updates[b, :, t]
    np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "float16"])
@pytest.mark.parametrize(("axis", "k"), [(0, 3), (1, 2), (-1, 7), (1, 0)])
def test_top_k(both, rng, largest, dtype, axis, k):
    x = rng.integers(0, 4, (3, 4, 7)).astype(dtype)
    values, places = both(ts.ops.top_k, x, k=k, axis=axis, largest=largest)
    order = np.argsort(-x.astype(int) if largest else x, axis, kind="stable")
    want = np.take(order, np.arange(k), axis)
    np.testing.assert_array_equal(places, want)
    np.testing.assert_array_equal(values, np.take_along_axis(x, want, axis))
    assert values.dtype == dtype
    assert places.dtype == np.int64


@pytest.mark.parametrize("largest", [True, False])
def test_top_k_takes_nan_for_the_largest(both, largest):
    nan, inf = np.nan, np.inf
    x = np.array([1, nan, -inf, inf, nan, 0.0, -0.0], np.float32)
    _, places = both(ts.ops.top_k, x, k=7, largest=largest)
    want = [1, 4, 3, 0, 5, 6, 2] if largest else [2, 5, 6, 0, 3, 1, 4]
    np.testing.assert_array_equal(places, want)


def _p(*shape, dtype="float32"):
    return ts.placeholder(shape, dtype=dtype, name="P")


I = "int64"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda: ts.ops.gather(_p(2), _p(3)), "ids is float32; it must be of an integer"),
        (lambda: ts.ops.gather(_p(0), _p(3, dtype=I)), "dimension 0 of X is empty"),
        (lambda: ts.ops.gather_elements(_p(2, 3), _p(3, dtype=I)), "ids has rank 1"),
        (lambda: ts.ops.gather_elements(_p(2, 3), _p(1, 4, dtype=I)), "must not be larger than 3"),
        (lambda: ts.ops.gather_nd(_p(2, 3), _p(4, 3, dtype=I)), "it must be 1 to 2"),
        (lambda: ts.ops.gather_nd(_p(2, 3), _p(3, 1, dtype=I), 1), "dimension 0 of ids is 3"),
        (lambda: ts.ops.gather_nd(_p(2, 3), _p(dtype=I)), "ids has rank 0"),
        (lambda: ts.ops.one_hot(_p(2), _p(3), 4), "the extent of values is 3"),
        (lambda: ts.ops.scatter_elements(_p(2), _p(3, dtype=I), _p(4)), "they must agree"),
        (lambda: ts.ops.scatter_elements(_p(2), _p(3, dtype=I), _p(3), reduction="or"),
         "reduction 'or' is unknown"),
        (lambda: ts.ops.scatter_nd(_p(2, 3), _p(4, 1, dtype=I), _p(4, 2)), "it must be"),
        (lambda: ts.ops.scatter_nd(_p(2), _p(4, 2, dtype=I), _p(4)), "rows of ids have 2 indices"),
        (lambda: ts.ops.tensor_scatter(_p(2, 3, 4), _p(2, 5, 4), _p(2, dtype=I)), "X has 3"),
        (lambda: ts.ops.top_k(_p(4), 5), "k is 5; axis -1 of X has 4 elements"),
    ],
)  # fmt: skip
def test_errors(state, message):
    with pytest.raises(ts.ExpressionError, match=message):
        state()
