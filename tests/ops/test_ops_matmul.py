"""Matrix products against NumPy, and their dtypes, sizes and errors."""

import ml_dtypes
import numpy as np
import pytest

import tilesmith as ts


@pytest.mark.parametrize(
    "shape", [(3, 5, 4), (1, 1, 1), (1, 7, 1), (8, 1, 3), (2, 0, 3), (0, 3, 2)]
)
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_matmul(run, rng, shape, ta, tb):
    m, k, n = shape
    a = rng.standard_normal((k, m) if ta else (m, k), dtype=np.float32)
    b = rng.standard_normal((n, k) if tb else (k, n), dtype=np.float32)
    got = run(ts.ops.matmul, a, b, transpose_a=ta, transpose_b=tb)
    want = (a.T if ta else a) @ (b.T if tb else b)
    assert got.shape == (m, n)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_matmul_reads_columnwise_and_strided_arrays(run, rng):
    a = rng.standard_normal((7, 5), dtype=np.float32).T
    b = rng.standard_normal((7, 6), dtype=np.float32)[:, ::2]
    np.testing.assert_allclose(run(ts.ops.matmul, a, b), a @ b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_small_integers_accumulate_in_int32(run, dtype):
    limits = np.iinfo(dtype)
    a = np.full((2, 300), limits.max, dtype)
    b = np.full((300, 3), limits.max, dtype)
    got = run(ts.ops.matmul, a, b)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, np.full((2, 3), 300 * limits.max**2))


def test_int8_times_uint8(run, rng):
    a = rng.integers(-128, 128, (4, 9)).astype(np.int8)
    b = rng.integers(0, 256, (9, 5)).astype(np.uint8)
    np.testing.assert_array_equal(run(ts.ops.matmul, a, b), a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_accumulates_in_float32(run, dtype):
    # 1 + 4096 * 2**-12 is 2; summed in half precision the small terms would all be lost.
    a = np.full((1, 4097), 2.0**-12, dtype)
    a[0, 0] = 1.0
    b = np.ones((4097, 1), dtype)
    got = run(ts.ops.matmul, a, b)
    assert got.dtype == np.dtype(dtype)
    assert float(got[0, 0]) == 2.0
    assert run(ts.ops.matmul, a, b, out_dtype="float32").dtype == np.float32


def test_half_precision_states_a_float32_sum(stated):
    a = np.zeros((2, 3), np.float16)
    func = stated(ts.ops.matmul, a, a.T.copy())
    assert [(b.name, b.dtype.name) for b in func.buffers] == [("matmul_sum", "float32")]
    wide = stated(ts.ops.matmul, a, a.T.copy(), out_dtype="float32")
    assert wide.buffers == ()
    assert wide.outputs[0].dtype.name == "float32"


@pytest.mark.parametrize(
    ("inputs", "asked", "given"),
    [
        ("int8", None, "int32"),
        ("int8", "int64", "int64"),
        ("int8", "float32", "float32"),
        ("int32", None, "int32"),
        ("float64", None, "float64"),
        ("float32", "float64", "float64"),
        ("float32", "float16", "float16"),
    ],
)
def test_out_dtype(run, rng, inputs, asked, given):
    a = rng.integers(-5, 5, (3, 4)).astype(inputs)
    b = rng.integers(-5, 5, (4, 2)).astype(inputs)
    got = run(ts.ops.matmul, a, b, out_dtype=asked)
    assert got.dtype.name == given
    np.testing.assert_array_equal(got, a.astype(int) @ b.astype(int))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((1, 3, 4), (1, 4, 2)),
        ((2, 3, 4), (2, 4, 2)),
        ((2, 3, 4), (1, 4, 2)),
        ((2, 3, 4), (4, 2)),
        ((2, 5, 3, 4), (2, 1, 4, 6)),
        ((5, 3, 4), (2, 5, 4, 1)),
        ((0, 3, 4), (0, 4, 2)),
        ((2, 1, 4), (2, 4, 1)),
    ],
)
def test_batch_matmul(run, rng, a, b):
    x, y = (rng.standard_normal(s, dtype=np.float32) for s in (a, b))
    np.testing.assert_allclose(run(ts.ops.batch_matmul, x, y), x @ y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_batch_matmul_transposed(run, rng, ta, tb):
    x = rng.standard_normal((2, 4, 3) if ta else (2, 3, 4), dtype=np.float32)
    y = rng.standard_normal((2, 5, 4) if tb else (2, 4, 5), dtype=np.float32)
    want = (x.swapaxes(1, 2) if ta else x) @ (y.swapaxes(1, 2) if tb else y)
    got = run(ts.ops.batch_matmul, x, y, transpose_a=ta, transpose_b=tb)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lead", [(), (1,), (3,), (2, 3)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_dense_is_torch_linear(torch, run, rng, lead, with_bias):
    x = rng.standard_normal((*lead, 6), dtype=np.float32)
    w = rng.standard_normal((4, 6), dtype=np.float32)
    bias = [rng.standard_normal(4, dtype=np.float32)] if with_bias else []
    got = run(ts.ops.dense, x, w, *bias)
    want = torch.nn.functional.linear(*map(torch.from_numpy, (x, w, *bias)))
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lead", [(), (1,), (2,)])
def test_transpose_batch_matmul(run, rng, lead):
    q = rng.standard_normal((*lead, 5, 3, 4), dtype=np.float32)
    k = rng.standard_normal((*lead, 6, 3, 4), dtype=np.float32)
    got = run(ts.ops.transpose_batch_matmul, q, k)
    np.testing.assert_allclose(got, np.einsum("...ihd,...jhd->...hij", q, k), rtol=1e-5, atol=1e-5)


def test_open_sizes(rng):
    m, n, k = ts.size("M"), ts.size("N"), ts.size("K")
    A, B = ts.placeholder((m, k), name="A"), ts.placeholder((n, k), name="B")
    C = ts.ops.matmul(A, B, transpose_b=True)
    assert C.shape == (m, n)
    func = ts.function([A, B, ts.ops.softmax(ts.ops.relu(C))])
    small = ts.instantiate(func, {"#M": 3, "#N": 4, "#K": 5})
    a, b = rng.standard_normal((3, 5)), rng.standard_normal((4, 5))
    e = np.exp(np.maximum(a @ b.T, 0))
    np.testing.assert_allclose(
        ts.evaluate(small, a, b), e / e.sum(axis=1, keepdims=True), rtol=1e-4
    )


def test_loops_are_named(stated):
    a = np.zeros((2, 3, 4), np.float32)
    text = str(stated(ts.ops.batch_matmul, a, a, transpose_b=True, name="scores"))
    for loop in ("scores.b in 2", "scores.i in 3", "scores.j in 3", "scores.k in 4"):
        assert loop in text


def _p(*shape, dtype="float32"):
    return ts.placeholder(shape, dtype=dtype, name="P")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            lambda: ts.ops.matmul(_p(2, 3, 4), _p(4, 2)),
            r"matmul: A has shape \(2, 3, 4\); .*rank 2.*batch",
        ),
        (lambda: ts.ops.matmul(_p(2, 3), _p(3)), r"matmul: B has shape \(3\)"),
        (
            lambda: ts.ops.matmul(_p(2, 3), _p(4, 2)),
            r"matmul: the inner extent of B \(4, 2\) is 4, .* A is 3",
        ),
        (
            lambda: ts.ops.matmul(_p(2, 3), np.zeros((3, 2))),
            r"matmul\(B=.* ndarray; it takes a tensor",
        ),
        (lambda: ts.ops.matmul(_p(2, 3, dtype="bool"), _p(3, 2)), "matmul: an operand is bool"),
        (lambda: ts.ops.matmul(_p(2, 3), _p(3, 2), out_dtype="float31"), "unknown dtype 'float31'"),
        (lambda: ts.ops.matmul(_p(2, 3), _p(3, 2), out_dtype="bool"), "out_dtype is bool"),
        (lambda: ts.ops.matmul(_p(2, 3), _p(3, 2), name="a b"), "'a b' is not a name"),
        (
            lambda: ts.ops.matmul(_p(2, ts.size("K")), _p(3, 2)),
            "inner extent of B .* is 3, but that of A is #K",
        ),
        (
            lambda: ts.ops.batch_matmul(_p(2, 3, 4), _p(3, 4, 2)),
            r"do not broadcast: dimension -1 is 2 and 3",
        ),
        (lambda: ts.ops.batch_matmul(_p(2), _p(3, 4, 2)), r"batch_matmul: A has shape \(2\)"),
        (
            lambda: ts.ops.dense(_p(2, 3), _p(3, 5)),
            r"dense: the last extent of X \(2, 3\) is 3, .*takes 5",
        ),
        (
            lambda: ts.ops.dense(_p(2, 3), _p(5, 3), _p(3)),
            "dense: the extent of bias is 3, but W gives 5",
        ),
        (lambda: ts.ops.dense(_p(2, 3), _p(5, 3, 1)), r"dense: W has shape .*rank 2: \(out, in\)"),
        (lambda: ts.ops.dense(_p(), _p(5, 3)), "dense: X has rank 0"),
        (
            lambda: ts.ops.transpose_batch_matmul(_p(2, 3), _p(2, 3)),
            r"must be \(batch, seq, heads, dim\)",
        ),
        (
            lambda: ts.ops.transpose_batch_matmul(_p(2, 3, 4), _p(2, 5, 4)),
            "heads of K is 5, but Q has 3",
        ),
        (
            lambda: ts.ops.transpose_batch_matmul(_p(2, 3, 4), _p(2, 3, 5)),
            "dim of K is 5, but Q has 4",
        ),
        (
            lambda: ts.ops.transpose_batch_matmul(_p(2, 3, 4), _p(1, 2, 3, 4)),
            "Q has rank 3 and K has rank 4",
        ),
        (
            lambda: ts.ops.transpose_batch_matmul(_p(1, 2, 3, 4), _p(2, 2, 3, 4)),
            "batch of K is 2, but Q has 1",
        ),
    ],
)
def test_errors(state, message):
    with pytest.raises(ts.ExpressionError, match=message):
        state()
