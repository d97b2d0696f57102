"""The oracle's shortcuts against its plain path and the interpreter; lowering; sizes."""

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.ir import block_products
from tilesmith.ir import contract as contraction
from tilesmith.ir import evaluate as oracle
from tilesmith.ir.nodes import Block, walk


def matmul(dtype_a="float32", dtype_b="float32", shape=(3, 5, 4), out=None):
    m, k, n = shape
    A = ts.placeholder((m, k), dtype=dtype_a, name="A")
    B = ts.placeholder((k, n), dtype=dtype_b, name="B")
    return ts.function([A, B, ts.ops.matmul(A, B, out_dtype=out)])


def programs():
    X = ts.placeholder((2, 3, 6), name="X")
    W = ts.placeholder((4, 3, 3), name="W")
    r, s, c = ts.reduce_axis(3), ts.reduce_axis(6), ts.reduce_axis(3)
    yield "conv", ts.function([X, W, ts.ops.conv1d(X, W, stride=2, padding=1)])
    yield "softmax", ts.function([X, ts.ops.softmax(X, axis=1)])
    yield (
        "turned",
        ts.function(
            [
                X,
                ts.compute(
                    (2,), lambda n: ts.sum(X[n, 2 - c, 5 - s] * X[1 - n, c, s], axis=(c, s))
                ),
            ]
        ),
    )
    yield "diagonal", ts.function([W, ts.compute((4,), lambda o: ts.sum(W[o, r, r], axis=r))])
    yield "fixed", ts.function([X, ts.compute((), lambda: ts.sum(X[1, 2, s] * X[0, 0, 0], axis=s))])
    yield "copies", ts.function([X, ts.compute((2, 5), lambda n, j: ts.sum(X[n, c, 0], axis=c))])
    yield "unread", ts.function([X, ts.compute((2,), lambda n: ts.sum(X[n, 0, s], axis=(s, c)))])
    yield (
        "three",
        ts.function(
            [
                X,
                ts.compute(
                    (3,), lambda j: ts.sum(X[0, j, s] * X[1, j, s] * X[0, c, s], axis=(c, s))
                ),
            ]
        ),
    )
    best = ts.compute((2, 3), lambda n, j: ts.argmax(X[n, j, s], axis=s), name="best")
    yield "argmax", ts.function([X, *best])
    whole = ts.placeholder((2, 3, 6), dtype="uint8", name="Q")
    yield (
        "bytes",
        ts.function(
            [
                whole,
                ts.compute((2,), lambda n: ts.sum(whole[n, c, s] * whole[n, c, s], axis=(c, s))),
            ]
        ),
    )


PROGRAMS = dict(programs())


def arrays(func):
    rng = np.random.default_rng(3)
    return [
        rng.integers(0, 256, [e.const for e in b.shape]).astype(b.dtype.numpy)
        if b.dtype.is_int
        else rng.standard_normal([e.const for e in b.shape]).astype(b.dtype.numpy)
        for b in func.inputs
    ]


def same(got, want):
    for g, w in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, want)), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_shortcuts_change_nothing(name, monkeypatch):
    func = PROGRAMS[name]
    inputs = arrays(func)
    got = ts.evaluate(func, *inputs)
    monkeypatch.setattr(oracle, "contract", lambda *_: False)
    same(got, ts.evaluate(func, *inputs))
    monkeypatch.setattr(oracle, "_CHUNK_ELEMENTS", 1)  # one row at a time
    same(got, ts.evaluate(func, *inputs))
    same(got, ts.interpret(func, *inputs))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_memory_order_of_inputs_changes_nothing(name):
    func = PROGRAMS[name]
    inputs = arrays(func)
    want = ts.evaluate(func, *inputs)
    same(ts.evaluate(func, *map(np.asfortranarray, inputs)), want)
    wide = [np.repeat(a, 2, axis=-1)[..., ::2] for a in inputs]
    assert not wide[0].flags.contiguous
    same(ts.evaluate(func, *wide), want)


def test_which_programs_are_contracted(monkeypatch):
    used = []
    plain = oracle.contract
    monkeypatch.setattr(oracle, "contract", lambda *args: used.append(plain(*args)) or used[-1])
    ts.evaluate(matmul(), np.zeros((3, 5)), np.zeros((5, 4)))
    assert used == [True]
    ts.evaluate(matmul("int8", "uint8"), np.zeros((3, 5)), np.zeros((5, 4)))
    assert used == [True, True]
    ts.evaluate(matmul("int32", "int32"), np.zeros((3, 5)), np.zeros((5, 4)))  # may not be exact
    assert used == [True, True, False]


def test_inputs_are_left_alone():
    a, b = np.ones((3, 5), np.float32), np.ones((5, 4), np.float32)
    ts.evaluate(matmul(), a, b)
    ts.interpret(matmul(), a, b)
    assert (a == 1).all()
    assert (b == 1).all()


def test_anything_that_becomes_an_array_will_do():
    got = ts.evaluate(matmul(shape=(1, 2, 1)), [[1, 2]], ((3,), (4,)))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, [[11]])


def test_sums_are_taken_in_double():
    n = 1 << 16
    V, k = ts.placeholder((n,), name="V"), ts.reduce_axis(n)
    total = ts.function([V, ts.compute((), lambda: ts.sum(V[k], axis=k))])
    squares = ts.function([V, ts.compute((), lambda: ts.sum(V[k] * V[k], axis=k))])
    v = np.full(n, 0.1, np.float32)
    assert ts.evaluate(total, v) == np.float32(v.astype(np.float64).sum())
    assert ts.evaluate(squares, v) == np.float32((v.astype(np.float64) ** 2).sum())


def test_a_narrowing_cast_inside_a_contraction_rounds():
    V, k = ts.placeholder((2,), name="V"), ts.reduce_axis(2)
    body = lambda: ts.sum(ts.cast(V[k], "float16") * ts.cast(V[k], "float16"), axis=k)  # noqa: E731
    func = ts.function([V, ts.compute((), body)])
    v = np.array([1 + 2**-12, 0], np.float32)
    assert ts.evaluate(func, v) == ts.interpret(func, v) == 1


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integer_sums_wrap(dtype):
    n = 300
    V, k = ts.placeholder((n,), dtype=dtype, name="V"), ts.reduce_axis(n)
    func = ts.function([V, ts.compute((), lambda: ts.sum(V[k] * V[k], axis=k))])
    v = np.full(n, np.iinfo(dtype).max, dtype)
    with np.errstate(over="ignore"):
        want = np.sum(v * v, dtype=dtype)
    assert ts.evaluate(func, v) == want
    assert ts.interpret(func, v) == want


@pytest.mark.parametrize("run", [ts.evaluate, ts.interpret])
def test_nan_and_infinity_go_through(run):
    a = np.array([[np.inf, 1.0], [np.nan, 1.0]], np.float32)
    func = matmul(shape=(2, 2, 1))
    got = run(func, a, np.ones((2, 1), np.float32))
    np.testing.assert_array_equal(got, [[np.inf], [np.nan]])


# lowering
def test_one_nest_per_stage():
    X = ts.placeholder((2, 3), name="X")
    func = ts.function([X, ts.ops.softmax(X, name="s")], name="f")
    assert [b.name for _, b in walk(func.body)] == ["s_max", "s_exp", "s_sum", "s"]
    assert [[loop.name for loop in path] for path, _ in walk(func.body)] == [
        ["s_max.i0", "s_max.k"],
        ["s_exp.i0", "s_exp.i1"],
        ["s_sum.i0", "s_sum.k"],
        ["s.i0", "s.i1"],
    ]


def test_text_of_a_matmul():
    assert str(matmul(shape=(2, 3, 4))) == (
        "def main(A: float32[2, 3], B: float32[3, 4]) -> matmul: float32[2, 4]:\n"
        "  for matmul.i in 2:\n"
        "    for matmul.j in 4:\n"
        "      for matmul.k in 3:\n"
        "        matmul(i=matmul.i, j=matmul.j, k:R=matmul.k):\n"
        "          matmul[i, j] += A[i, k] * B[k, j]  # from 0.0\n"
    )


def test_a_reduction_over_nothing_has_no_reducing_loop():
    A, k = ts.placeholder((2, 0), name="A"), ts.reduce_axis(0)
    func = ts.function([A, ts.compute((2,), lambda i: ts.sum(A[i, k], axis=k), name="S")])
    ((path, block),) = walk(func.body)
    assert [loop.name for loop in path] == ["S.i"]
    assert isinstance(block, Block)
    assert block.combiner is None


def test_equal_computations_have_equal_digests():
    assert matmul().digest == matmul().digest
    assert matmul().digest != matmul("float64", "float64").digest
    assert matmul().digest != matmul(shape=(3, 5, 6)).digest


# sizes
def test_sizes_are_put_in_one_by_one():
    m, n = ts.size("M"), ts.size("N")
    X = ts.placeholder((m, n), name="X")
    func = ts.function([X, ts.compute((m * n,), lambda i: X[i // n, i % n] * n)])
    assert func.sizes == ("#M", "#N")
    some = ts.instantiate(func, {"#N": 3})
    assert some.sizes == ("#M",)
    full = ts.instantiate(some, {"#M": 2})
    assert full.sizes == ()
    assert full.digest == ts.instantiate(func, {"#M": 2, "#N": 3}).digest
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(ts.evaluate(full, x), x.reshape(-1) * 3)
    np.testing.assert_array_equal(ts.interpret(full, x), x.reshape(-1) * 3)


def test_a_function_stated_with_numbers_is_the_one_with_numbers_put_in():
    def state(m, n):
        X = ts.placeholder((m, n), name="X")
        return ts.function([X, ts.ops.softmax(X)])

    put = ts.instantiate(state(ts.size("M"), ts.size("N")), {"#M": 3, "#N": 5})
    assert str(put) == str(state(3, 5))


def test_sums_over_large_windows_are_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = ts.placeholder((2, 9, 8, 5), name="X"), ts.placeholder((3, 3, 5, 4), name="W")
    func = ts.function([x, w, ts.ops.conv2d(x, w, stride=2, layout="NHWC", name="Y")])
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s, dtype=np.float32) for s in ((2, 9, 8, 5), (3, 3, 5, 4))]
    want = ts.evaluate(func, *arrays)
    for most in (1, 300, 700):
        for limit in ("_BLOCK_ELEMENTS", "_KEPT_ELEMENTS", "_RESULT_ELEMENTS"):
            monkeypatch.setattr(block_products, limit, most)
        monkeypatch.setattr(contraction, "_DOUBLE_TERMS", most)
        np.testing.assert_allclose(ts.evaluate(func, *arrays), want, rtol=1e-5, atol=1e-5)
