"""Stages and Functions: reductions, several outputs, rank 0, empty extents, names, counts."""

import numpy as np
import pytest

import tilesmith as ts


def both(func, *arrays):
    want, got = ts.evaluate(func, *arrays), ts.interpret(func, *arrays)
    for w, g in zip(*((x if isinstance(x, tuple) else (x,)) for x in (want, got)), strict=True):
        assert w.dtype == g.dtype
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)
    return want


@pytest.fixture
def X():
    return ts.placeholder((3, 4), name="X")


x = np.array([[3, -1, 4, 1], [-5, 9, 2, -6], [5, 3, 5, 8]], np.float32)


@pytest.mark.parametrize(
    ("name", "peer"), [("sum", np.sum), ("prod", np.prod), ("amax", np.max), ("amin", np.min)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int8"])
def test_reductions(name, peer, dtype):
    A = ts.placeholder((3, 4), dtype=dtype, name="A")
    k, r = ts.reduce_axis(4, name="k"), ts.reduce_axis(3, name="r")
    reduce = getattr(ts, name)
    one = ts.compute((3,), lambda i: reduce(A[i, k], axis=k))
    two = ts.compute((), lambda: reduce(A[r, k], axis=(r, k)))
    a = np.minimum(np.abs(x), 2).astype(dtype)
    got = both(ts.function([A, one]), a)
    assert got.dtype == a.dtype
    np.testing.assert_array_equal(got, peer(a, axis=1))
    if dtype != "int8":
        np.testing.assert_array_equal(both(ts.function([A, two]), a), peer(a.astype(np.float64)))


def test_maximum_over_conditions():
    A = ts.placeholder((2, 3), dtype="bool", name="A")
    k = ts.reduce_axis(3)
    any_, all_ = ts.compute((2,), lambda i: (ts.amax(A[i, k], axis=k), ts.amin(A[i, k], axis=k)))
    a = np.array([[True, False, True], [True, True, True]])
    got = both(ts.function([A, any_, all_]), a)
    np.testing.assert_array_equal(got[0], a.any(axis=1))
    np.testing.assert_array_equal(got[1], a.all(axis=1))


@pytest.mark.parametrize(
    ("name", "neutral"), [("sum", 0), ("prod", 1), ("amax", -np.inf), ("amin", np.inf)]
)
def test_a_reduction_over_nothing_is_neutral(name, neutral):
    A, k = ts.placeholder((2, 0), name="A"), ts.reduce_axis(0)
    Y = ts.compute((2,), lambda i: getattr(ts, name)(A[i, k], axis=k))
    got = both(ts.function([A, Y]), np.zeros((2, 0)))
    np.testing.assert_array_equal(got, [neutral, neutral])


def test_a_reduction_over_no_axis_is_the_value(X):
    Y = ts.compute((3, 4), lambda i, j: ts.sum(X[i, j] * 2, axis=()))
    np.testing.assert_array_equal(both(ts.function([X, Y]), x), x * 2)


def test_a_reduction_over_one_element(X):
    k = ts.reduce_axis(1)
    Y = ts.compute((3, 4), lambda i, j: ts.amax(X[i, j + k], axis=k))
    np.testing.assert_array_equal(both(ts.function([X, Y]), x), x)


@pytest.mark.parametrize("greater", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
def test_the_first_extreme_wins(greater, dtype):
    a = np.array([[1, 7, 7, 0], [5, 5, 5, 5], [0, 2, 0, 9]]).astype(dtype)
    A, k = ts.placeholder((3, 4), dtype=dtype, name="A"), ts.reduce_axis(4)
    find = ts.argmax if greater else ts.argmin
    at, value = ts.compute((3,), lambda i: find(A[i, k], axis=k), name="found")
    got = both(ts.function([A, at, value]), a)
    want = a.argmax(axis=1) if greater else a.argmin(axis=1)
    assert got[0].dtype == np.int64
    np.testing.assert_array_equal(got[0], want)
    np.testing.assert_array_equal(got[1], a[np.arange(3), want])


def test_an_extreme_of_the_lowest_value():
    A, k = ts.placeholder((3,), dtype="int8", name="A"), ts.reduce_axis(3)
    at, _ = ts.compute((), lambda: ts.argmax(A[k], axis=k))
    got = both(ts.function([A, at]), np.full(3, -128, np.int8))
    assert got == 0


def test_only_the_position_of_an_extreme(X):
    k = ts.reduce_axis(4)
    at = ts.compute((3,), lambda i: ts.argmax(X[i, k], axis=k)[0], name="at")
    np.testing.assert_array_equal(both(ts.function([X, at]), x), x.argmax(axis=1))


def test_online_softmax(X):
    k = ts.reduce_axis(4)

    def join(p, q):
        top = ts.maximum(p[0], q[0])
        return top, p[1] * ts.exp(p[0] - top) + q[1] * ts.exp(q[0] - top)

    top, total = ts.compute(
        (3,), lambda i: ts.reduce((X[i, k], 1.0), join, (-1e30, 0.0), axis=k), name="running"
    )
    Y = ts.compute((3, 4), lambda i, j: ts.exp(X[i, j] - top[i]) / total[i])
    got = both(ts.function([X, Y]), x)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(got, e / e.sum(axis=1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 100])
def test_a_joined_reduction_of_any_length(n):
    A, k = ts.placeholder((n,), name="A"), ts.reduce_axis(n)

    def join(p, q):
        return p[0] + q[0], p[1] + q[1]

    count, total = ts.compute((), lambda: ts.reduce((1, A[k]), join, (0, 0), axis=k))
    a = np.arange(n, dtype=np.float32)
    got = both(ts.function([A, count, total]), a)
    assert got == (n, a.sum())


def test_two_joined_reductions_of_one_name(X):
    k, r = ts.reduce_axis(4), ts.reduce_axis(3)
    rows = ts.compute((3,), lambda i: ts.argmax(X[i, k], axis=k), name="best")
    columns = ts.compute((4,), lambda j: ts.argmax(X[r, j], axis=r), name="best")
    Y = ts.compute((3, 4), lambda i, j: rows[1][i] + columns[1][j], name="Y")
    got = both(ts.function([X, Y]), x)
    np.testing.assert_array_equal(got, x.max(axis=1)[:, None] + x.max(axis=0))


def test_a_reduction_inside_an_expression_is_a_stage_of_its_own(X):
    k, r = ts.reduce_axis(4), ts.reduce_axis(4)
    Y = ts.compute((3,), lambda i: ts.sum(X[i, k], axis=k) / 4 - ts.amax(X[i, r], axis=r), name="Y")
    func = ts.function([X, Y])
    assert {b.name for b in func.buffers} == {"Y_sum", "Y_amax1"}
    np.testing.assert_allclose(both(func, x), x.mean(axis=1) - x.max(axis=1), rtol=1e-6)


def test_one_axis_in_two_reductions(X):
    k = ts.reduce_axis(4)
    Y = ts.compute((3,), lambda i: ts.amax(X[i, k], axis=k) - ts.amin(X[i, k], axis=k))
    np.testing.assert_array_equal(both(ts.function([X, Y]), x), np.ptp(x, axis=1))


def test_several_outputs(X):
    low, high = ts.compute((3, 4), lambda i, j: (X[i, j] - 1, X[i, j] > 2), name="pair")
    total = ts.compute((3, 4), lambda i, j: low[i, j] * 2)
    got = both(ts.function([X, high, total, low]), x)
    np.testing.assert_array_equal(got[0], x > 2)
    np.testing.assert_array_equal(got[1], (x - 1) * 2)
    np.testing.assert_array_equal(got[2], x - 1)


def test_only_some_outputs_of_a_stage(X):
    low, _ = ts.compute((3, 4), lambda i, j: (X[i, j] - 1, X[i, j] + 1), name="pair")
    func = ts.function([X, low])
    np.testing.assert_array_equal(both(func, x), x - 1)
    assert [b.name for b in func.buffers] == ["pair_1"]


def test_rank_0():
    V, n = ts.placeholder((5,), name="V"), ts.reduce_axis(5)
    S = ts.compute((), lambda: ts.sum(V[n] * V[n], axis=n), name="S")
    N = ts.compute((5,), lambda i: V[i] / ts.sqrt(S[()]) - S)
    v = np.arange(1.0, 6)
    got = both(ts.function([V, S, N]), v)
    assert got[0].shape == ()
    assert got[0] == 55
    np.testing.assert_allclose(got[1], v / np.sqrt(55) - 55, rtol=1e-6)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (0,), (3, 0), (0, 3), (1, 5, 1)])
def test_extents_of_0_and_1(shape):
    A = ts.placeholder(shape, name="A")
    Y = ts.compute(shape, lambda *i: A[i] + 1)
    a = np.ones(shape, np.float32)
    got = both(ts.function([A, Y]), a)
    assert got.shape == shape
    np.testing.assert_array_equal(got, a + 1)


def test_no_inputs_at_all():
    np.testing.assert_array_equal(both(ts.function([ts.compute((3,), lambda i: 2.5)])), [2.5] * 3)


def test_axes_are_named_after_the_body(X):
    k = ts.reduce_axis(4, name="row")
    Y = ts.compute((3,), lambda row: ts.sum(X[row, k], axis=k), name="Y")
    text = str(ts.function([X, Y]))
    assert "for Y.row in 3:" in text
    assert "for Y.row2 in 4:" in text


def test_axes_can_be_named(X):
    Y = ts.compute((3, 4), lambda *i: X[i], name="Y", axes=("height", "width"))
    text = str(ts.function([X, Y]))
    assert "for Y.height in 3:" in text
    assert "for Y.width in 4:" in text


def test_intermediate_names_are_made_unique(X):
    Y = X
    for _ in range(3):
        Y = ts.compute((3, 4), lambda i, j, Y=Y: Y[i, j] + 1, name="same")
    out = ts.compute((3, 4), lambda i, j: Y[i, j] + 1, name="X_out")
    func = ts.function([X, out])
    assert [b.name for b in func.buffers] == ["same", "same_1", "same_2"]
    np.testing.assert_array_equal(both(func, x), x + 4)


def test_a_long_chain_and_a_diamond():
    A = ts.placeholder((1,), name="A")
    Y = A
    for _ in range(1200):  # longer than Python's stack
        Y = ts.compute((1,), lambda i, Y=Y: Y[i] + Y[i], name="s")
        Y = ts.compute((1,), lambda i, Y=Y: Y[i] / 2, name="h")
    assert ts.evaluate(ts.function([A, Y]), [3.0])[0] == 3.0


def test_producers_come_first():
    A = ts.placeholder((2,), name="A")
    B = ts.compute((2,), lambda i: A[i] + 1, name="B")
    C = ts.compute((2,), lambda i: B[i] * 2, name="C")
    D = ts.compute((2,), lambda i: B[i] + C[i], name="D")
    np.testing.assert_array_equal(both(ts.function([A, D, C]), [1, 2])[0], [6, 9])


# counts
def test_flops_and_bytes_of_a_matmul():
    A, B = ts.placeholder((8, 16), name="A"), ts.placeholder((16, 4), dtype="float16", name="B")
    k = ts.reduce_axis(16)
    C = ts.compute((8, 4), lambda i, j: ts.sum(A[i, k] * ts.cast(B[k, j], "float32"), axis=k))
    func = ts.function([A, B, C])
    assert func.flops == 2 * 8 * 4 * 16
    assert func.nbytes == 4 * 8 * 16 + 2 * 16 * 4 + 4 * 8 * 4


def test_index_arithmetic_and_comparisons_are_free(X):
    moved = ts.compute(
        (2, 4), lambda i, j: ts.where((i > 0) & (j < 2), X[i + 1, (j * 3 + 1) % 4], 0)
    )
    assert ts.function([X, moved]).flops == 0
    some = ts.compute((3, 4), lambda i, j: ts.where(X[i, j] > 0, X[i, j] * 2 + 1, ts.exp(X[i, j])))
    assert ts.function([X, some]).flops == 12 * 2  # the dearer branch


def test_flops_of_several_stages(X):
    Y = ts.compute((3, 4), lambda i, j: ts.exp(X[i, j]) + 1)
    k = ts.reduce_axis(4)
    Z = ts.compute((3,), lambda i: ts.amax(Y[i, k], axis=k))
    assert ts.function([X, Z]).flops == 12 * 2 + 12


def test_work_of_an_open_size_is_not_known():
    A = ts.placeholder((ts.size("N"),), name="A")
    func = ts.function([A, ts.compute(A.shape, lambda i: A[i] * 2)])
    for count in ("flops", "nbytes"):
        with pytest.raises(
            ts.ArgumentError, match=r"open size #N; put in a number with instantiate"
        ):
            getattr(func, count)
    assert ts.instantiate(func, {"#N": 7}).flops == 7
