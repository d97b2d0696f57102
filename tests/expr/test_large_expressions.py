"""Expressions of 1,100 operations, deep ones and ones that share: every part of the system takes
them, in time that grows with the number of distinct nodes.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.expr.ints import var
from tilesmith.expr.nodes import Binary, Load, children, rewrite, substitute
from tilesmith.expr.walk import fold, postorder, preorder, show
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.function import operations
from tilesmith.ir.serialize import function_to_json
from tilesmith.search.features import nest as features

N = 1100  # more than Python may nest calls
x = np.linspace(-1, 1, 9).astype(np.float32)


def doubled(v):
    for _ in range(64):
        v = v * 0.25 + v * 0.5
    return v


def chained(v):
    out = v
    for _ in range(N):
        out = out + v
    return out


def mixed(v):
    out = v
    for k in range(N // 5):
        out = ts.sqrt(abs(out)) + ts.where(v > 0.1 * (k % 7), out * 0.25, v)
        out = ts.cast(ts.cast(out, "float64"), "float32")
    return out


def branching(v):
    """Both sides of every choice use what was there before."""
    for k in range(64):
        v = ts.where(v > 0.01 * k, v * 0.5, v + 0.25)
    return v


def nested(v):
    """One choice inside the other."""
    out = v
    for k in range(N):
        out = ts.where(v > 1 - 0.001 * k, v * k, out)
    return out


def conjoined(v):
    cond = v > -2
    for k in range(N):
        cond = cond & (v < 2 + k)
    return ts.where(cond, v, 0.0)


BODIES = {f.__name__: f for f in (doubled, chained, mixed, branching, nested, conjoined)}


def numpy_of(name: str) -> np.ndarray:
    v = x.copy()
    match name:
        case "doubled":
            for _ in range(64):
                v = v * np.float32(0.25) + v * np.float32(0.5)
            return v
        case "chained":
            out = v
            for _ in range(N):
                out = out + v
            return out
        case "mixed":
            out = v
            for k in range(N // 5):
                out = np.sqrt(np.abs(out)) + np.where(
                    v > np.float32(0.1 * (k % 7)), out * np.float32(0.25), v
                )
            return out
        case "branching":
            for k in range(64):
                v = np.where(v > np.float32(0.01 * k), v * np.float32(0.5), v + np.float32(0.25))
            return v
        case "nested":
            out = v
            for k in range(N):
                out = np.where(v > np.float32(1 - 0.001 * k), v * np.float32(k), out)
            return out
    return v


def stated(name: str) -> ts.Function:
    X = ts.placeholder((9,), name="X")
    return ts.function([X, ts.compute((9,), lambda i: BODIES[name](X[i]), name="Y")])


def read_again(name: str) -> ts.Function:
    """The same, but each read is guarded, so that masks matter."""
    X = ts.placeholder((9,), name="X")

    def body(i):
        return ts.where((i > 0) & (i < 8), BODIES[name](X[i - 1] + X[i + 1]), X[i])

    return ts.function([X, ts.compute((9,), body, name="Y")])


names = pytest.mark.parametrize("name", BODIES)


@names
def test_evaluate_interpret_and_kernel_agree(name):
    func = stated(name)
    want = numpy_of(name)
    np.testing.assert_allclose(ts.evaluate(func, x), want, rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(ts.interpret(func, x), want, rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(ts.build(func)(x), want, rtol=2e-3, atol=1e-6)


@names
def test_guarded_reads_stay_guarded(name):
    func = read_again(name)
    want = ts.interpret(func, x)
    np.testing.assert_allclose(ts.evaluate(func, x), want, rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(ts.build(func)(x), want, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["doubled", "branching"])
def test_vectors_of_guarded_reads_stay_guarded(name):
    sch = ts.Schedule(read_again(name))
    sch.vectorize("Y.i")
    want = ts.interpret(sch.func, x)
    np.testing.assert_allclose(ts.build(sch)(x), want, rtol=2e-3, atol=1e-6)


@names
def test_its_text_and_json_are_short_and_survive(name):
    func = stated(name)
    assert len(str(func)) < 400 * N
    text = function_to_json(func)
    assert len(text) < 400 * N
    back = function_from_json(text)
    assert back == func
    assert hash(back) == hash(func)
    assert back.digest == func.digest == stated(name).digest
    assert pickle.loads(pickle.dumps(func)) == func


@names
def test_its_size_is_the_number_of_distinct_nodes(name):
    value = stated(name).body[0].body[0].writes[0].value
    nodes = postorder(value, children)
    assert len(nodes) == len({id(n) for n in nodes}) < 6 * N
    assert operations(value) <= len(nodes)
    b = stated(name).body[0].body[0]
    assert sum(features.operations(b).values()) <= len(nodes)


@names
def test_a_chain_of_stages_is_inlined(name):
    """Each of 20 stages reads the one before twice; inlined one by one, nothing grows."""
    X = ts.placeholder((9,), name="X")
    stages = [X]
    for k in range(20):
        last = stages[-1]
        stages.append(ts.compute((9,), lambda i, t=last: t[i] * 0.25 + t[i] * 0.5, name=f"S{k}"))
    last = stages[-1]
    Y = ts.compute((9,), lambda i: BODIES[name](last[i]), name="Y")
    sch = ts.Schedule(ts.function([X, Y]))
    want = ts.evaluate(sch.func, x)
    for k in range(20):
        sch.inline(f"S{k}")
    np.testing.assert_allclose(ts.build(sch)(x), want, rtol=1e-4, atol=1e-6)
    assert len(postorder(sch.func.body[0].body[0].writes[0].value, children)) < 6 * N


def test_a_chain_of_400_stages_is_inlined():
    X = ts.placeholder((9,), name="X")
    last = X
    for k in range(400):
        last = ts.compute((9,), lambda i, t=last: t[i] * 0.5 + 1, name=f"S{k}")
    sch = ts.Schedule(ts.function([X, last]))
    want = ts.evaluate(sch.func, x)
    for k in range(399):
        sch.inline(f"S{k}")
    assert len(sch.func.body) == 1
    np.testing.assert_allclose(ts.build(sch)(x), want, rtol=1e-5)


@pytest.mark.parametrize("name", ["doubled", "branching"])
def test_it_is_tuned(name):
    result = ts.tune(stated(name), budget=ts.Budget(trials=2), quiet=True)
    np.testing.assert_allclose(result.kernel(x), numpy_of(name), rtol=2e-3, atol=1e-6)


# walking
def test_walks_visit_what_is_shared_once():
    a = Load("A", (var("i"),), ts.placeholder((1,)).dtype)
    two = Binary("add", a, a, a.dtype)
    four = Binary("mul", two, two, a.dtype)
    assert postorder(four, children) == [a, two, four]
    assert list(preorder(four, children)) == [four, two, a]
    assert fold(four, children, lambda _, inner: 1 + sum(inner)) == 7


def test_a_rewrite_keeps_what_is_shared_and_what_does_not_change():
    a = Load("A", (var("i"),), ts.placeholder((1,)).dtype)
    b = Load("B", (var("j"),), a.dtype)
    pair = Binary("add", a, a, a.dtype)
    e = Binary("mul", Binary("sub", pair, pair, a.dtype), b, a.dtype)
    assert rewrite(e, lambda n: n) is e
    moved = substitute(e, {"i": var("k")})
    assert isinstance(moved, Binary)
    assert moved.b is b
    assert moved.a.a is moved.a.b
    assert moved.a.a.a is moved.a.a.b
    assert substitute(e, {"n": var("k")}) is e


def test_equal_graphs_are_equal_whatever_they_share():
    a = Load("A", (var("i"),), ts.placeholder((1,)).dtype)

    def make(share: bool):
        left = Binary("add", a, a, a.dtype)
        right = left if share else Binary("add", a, a, a.dtype)
        return Binary("mul", left, right, a.dtype)

    assert make(True) == make(False)
    assert hash(make(True)) == hash(make(False))
    assert make(True) != Binary("mul", a, a, a.dtype)
    assert show(make(True)) == "((A[i] + A[i]) * (A[i] + A[i]))"


def test_a_long_value_shows_what_it_shares_under_names():
    text = str(stated("doubled"))
    assert "v0 = (X[i] * 0.25) + (X[i] * 0.5)\n" in text
    assert "v1 = (v0 * 0.25) + (v0 * 0.5)\n" in text


def test_an_index_may_be_long_too():
    ids = ts.placeholder((9,), "int64", name="ids")
    X = ts.placeholder((9,), name="X")

    def body(i):
        v = ids[i]
        for _ in range(64):
            v = ts.maximum(v - 1, 0) + ts.minimum(v, 1)
        return X[v % 9]

    func = ts.function([ids, X, ts.compute((9,), body, name="Y")])
    at = np.arange(9)
    for run in (ts.evaluate, ts.interpret, lambda f, *a: ts.build(f)(*a)):
        np.testing.assert_array_equal(run(func, at, x), x)
    assert function_from_json(function_to_json(func)) == func
