"""Reductions, running sums and grouped norms by name: open sizes, names and errors."""

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.errors import ExpressionError

OPS = ts.ops


@pytest.mark.parametrize("name", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_log_sum_exp"])
def test_open_sizes_are_reduced(rng, name):
    X = ts.placeholder((ts.size("n"), 4), name="X")
    func = ts.function([X, getattr(OPS, name)(X, axes=0)])
    x = rng.random((5, 4), dtype=np.float32)
    want = {
        "reduce_sum": x.sum(0), "reduce_mean": x.mean(0), "reduce_max": x.max(0),
        "reduce_log_sum_exp": np.log(np.exp(x).sum(0)),
    }[name]  # fmt: skip
    np.testing.assert_allclose(ts.evaluate(ts.instantiate(func, {"#n": 5}), x), want, rtol=1e-5)


def test_a_norm_of_an_open_batch(rng):
    X = ts.placeholder((ts.size("n"), 4, 3), name="X")
    g, b = (ts.placeholder((4,), name=n) for n in "gb")
    func = ts.function([X, g, b, OPS.group_norm(X, g, b, groups=2)])
    x, ones = rng.random((3, 4, 3), dtype=np.float32), np.ones(4, np.float32)
    rows = x.reshape(3, 2, 6).astype(np.float64)
    want = (rows - rows.mean(2, keepdims=True)) / np.sqrt(rows.var(2, keepdims=True) + 1e-5)
    got = ts.evaluate(ts.instantiate(func, {"#n": 3}), x, ones, 0 * ones)
    np.testing.assert_allclose(got, want.reshape(x.shape), rtol=1e-4, atol=1e-5)


def test_an_element_wise_reduction_has_one_stage():
    X = ts.placeholder((3, 4), name="X")
    out = OPS.reduce_sum_square(X, axes=())
    assert out.stage.combiner is None
    assert out.shape == (3, 4)


def test_a_plain_reduction_is_one_stage(stated):
    for name in ("reduce_sum", "reduce_max", "reduce_sum_square"):
        func = stated(getattr(OPS, name), np.zeros((3, 4), np.float32), axes=(1,))
        assert len(func.body) == 1, name


WRONG = [
    (lambda X: OPS.reduce_sum(X, axes=(0, -2)), "reduce_sum: axes .* twice"),
    (lambda X: OPS.reduce_max(X, axes=3), "reduce_max: axis 3 does not exist"),
    (lambda X: OPS.reduce_sum(3), r"reduce_sum\(X=3\) .*; it takes a tensor"),
    (lambda X: OPS.cumsum(X, axis=2), "cumsum: axis 2 does not exist"),
    (lambda X: OPS.hardmax(X, axis=5), "axis 5 does not exist"),
    (lambda X: OPS.lp_normalize(X, p=3), "lp_normalize: p is 3"),
    (lambda X: OPS.local_response_norm(X, size=0), "local_response_norm: .* at least 1"),
    (lambda X: OPS.rms_norm(X, X), "rms_norm: gamma has shape"),
    (lambda X: OPS.logical_and(X, X), "logical_and: .* must be bool"),
    (lambda X: OPS.bitwise_or(X, X), "bitwise_or: .* integer dtype"),
    (lambda X: OPS.celu(X, alpha=0.0), "celu: alpha is 0"),
    (lambda X: OPS.prelu(X, ts.placeholder((2, 3, 4), name="S")), "prelu: slope has shape"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "message"), WRONG, ids=[m for _, m in WRONG])
def test_errors_name_the_operator(state, message):
    X = ts.placeholder((3, 4), name="X")
    with pytest.raises(ExpressionError, match=message):
        state(X)


@pytest.mark.parametrize("last", [False, True])
def test_positions_are_compared_in_32_bits_and_given_in_64(last: bool) -> None:
    x = ts.placeholder((5, 37), name="X")
    func = ts.function([x, ts.ops.argmax(x, 1, last=last, name="Y")])
    assert {str(b.dtype) for b in func.buffers} == {"int32", "float32"}
    a = np.random.default_rng(0).integers(0, 4, (5, 37)).astype(np.float32)
    a[1] = -np.inf
    a[2, 11] = a[2, 20] = np.nan
    want = (36 - a[:, ::-1].argmax(1)) if last else a.argmax(1)
    got = ts.build(func, ts.cpu(1))(a)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, want)
