"""Each predicate, on computations made to have and to lack it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tilesmith as ts
from tilesmith.space import analysis


def func_of(*tensors: ts.Tensor) -> ts.Function:
    return ts.function(list(tensors), name="f")


def ask(
    predicate: Callable[..., object], func: ts.Function, *names: str, extra: tuple[int, ...] = ()
) -> object:
    return predicate(func, *(analysis.block(func, n) for n in names), *extra)


X = ts.placeholder((8, 6), name="X")
ROW = ts.placeholder((6,), name="R")


def one(body: Callable[[ts.Value, ts.Value], object], shape: tuple[int, int] = (8, 6)) -> object:
    """Whether B, with this body, is strictly inlinable into a consumer."""
    b = ts.compute(shape, body, name="B")
    d = ts.compute(shape, lambda i, j: b[i, j] + 1, name="D")
    inputs = [t for t in (X, ROW) if t.name in str(ts.function([X, ROW, d]).body)]
    return ask(analysis.strictly_inlinable, func_of(*inputs, d), "B")


@pytest.mark.parametrize(
    ("body", "shape", "wanted"),
    [
        (lambda i, j: X[i, j] * 2, (8, 6), True),
        (lambda i, j: X[i, j] + ROW[j], (8, 6), True),  # an axis may be missing
        (lambda i, j: ts.tanh(X[i, j + 1]), (8, 5), True),
        (lambda i, j: X[i, 0] + X[i, j], (8, 6), True),
        (lambda i, j: i + j, (8, 6), True),  # nothing is read
        (lambda i, j: X[j, i], (6, 8), False),  # out of order
        (lambda i, j: X[i, i], (6, 6), False),  # twice
        (lambda i, j: X[2 * i, j], (4, 6), False),
        (lambda i, j: ts.exp(X[i, j]), (8, 6), False),
        (lambda i, j: ts.where(i > 2, X[i, j], 0.0), (8, 6), False),
    ],
)
def test_strictly_inlinable(
    body: Callable[[ts.Value, ts.Value], object], shape: tuple[int, int], wanted: bool
) -> None:
    assert one(body, shape) is wanted


def test_a_reduction_is_not_inlinable() -> None:
    k = ts.reduce_axis(6, name="k")
    b = ts.compute((8,), lambda i: ts.sum(X[i, k], axis=k), name="B")
    f = func_of(X, ts.compute((8,), lambda i: b[i] + 1, name="D"))
    assert ask(analysis.strictly_inlinable, f, "B") is False


def matmul_chain() -> ts.Function:
    a, b, c = (ts.placeholder(s, name=n) for s, n in (((8, 6), "A"), ((6, 5), "B"), ((5, 7), "C")))
    p = ts.ops.matmul(a, b, name="P")
    return func_of(a, b, c, ts.ops.relu(ts.ops.matmul(ts.ops.relu(p, name="Q"), c, name="R"), "S"))


def test_data_reuse() -> None:
    f = matmul_chain()
    found = {n: ask(analysis.has_data_reuse, f, n) for n in ("P", "Q", "R", "S")}
    assert found == {"P": True, "Q": False, "R": True, "S": False}


def test_reuse_without_a_sum_needs_two_operands() -> None:
    v = ts.placeholder((8,), name="V")
    outer = func_of(v, ROW, ts.compute((8, 6), lambda i, j: v[i] * ROW[j], name="O"))
    assert ask(analysis.has_data_reuse, outer, "O") is True
    spread = func_of(X, ROW, ts.compute((8, 6), lambda i, j: X[i, j] * ROW[j], name="O"))
    assert ask(analysis.has_data_reuse, spread, "O") is False


def test_an_axis_of_one_is_not_missing() -> None:
    b, k = ts.placeholder((6, 5), name="B"), ts.reduce_axis(6, name="k")
    f = func_of(b, ts.compute((1, 5), lambda i, j: ts.sum(b[k, j], axis=k), name="O"))
    assert ask(analysis.has_data_reuse, f, "O") is False


def test_producers_and_consumers() -> None:
    f = matmul_chain()

    def names(question: Callable[..., object], block: str) -> list[str]:
        found = ask(question, f, block)
        assert isinstance(found, list)
        return [b.name for b in found]

    assert names(analysis.producers, "R") == ["Q"]
    assert names(analysis.consumers, "P") == ["Q"]
    assert names(analysis.producers, "P") == names(analysis.consumers, "S") == []
    outputs = [n for n in "PQRS" if ask(analysis.is_output, f, n)]
    assert outputs == ["S"]


def test_a_fusible_consumer_is_elementwise_and_alone() -> None:
    f = matmul_chain()
    assert ask(analysis.fusible_consumer, f, "P") == analysis.block(f, "Q")
    assert ask(analysis.fusible_consumer, f, "R") == analysis.block(f, "S")
    assert ask(analysis.fusible_consumer, f, "Q") is None  # the product reads rows of it
    assert ask(analysis.fusible_consumer, f, "S") is None


def with_consumer(*bodies: Callable[[ts.Tensor, ts.Value, ts.Value], object]) -> ts.Function:
    a, b = ts.placeholder((6, 4), name="A"), ts.placeholder((4, 6), name="B")
    p = ts.ops.matmul(a, b, name="P")
    outs = [
        ts.compute((6, 6), lambda i, j, f=f: f(p, i, j), name=f"O{k}") for k, f in enumerate(bodies)
    ]
    return func_of(a, b, *outs)


def test_transposed_shifted_or_several_consumers_are_not_fused() -> None:
    fused = with_consumer(lambda p, i, j: p[i, j] + 1)
    assert ask(analysis.fusible_consumer, fused, "P") is not None
    for bodies in (
        [lambda p, i, j: p[j, i]],
        [lambda p, i, j: p[i, 0]],
        [lambda p, i, j: ts.where(j > 0, p[i, j - 1], 0.0)],
        [lambda p, i, j: p[i, j], lambda p, i, j: p[i, j] * 2],
    ):
        assert ask(analysis.fusible_consumer, with_consumer(*bodies), "P") is None


def test_elementwise_match_along_a_chain() -> None:
    x = ts.placeholder((4, 5), name="X")
    a = ts.compute((4, 5), lambda i, j: x[i, j] * 2, name="A")
    b = ts.compute((4, 5), lambda i, j: ts.exp(a[i, j]), name="B")
    c = ts.compute((4, 5), lambda i, j: b[i, j] + 1, name="C")
    d = ts.compute((5, 4), lambda i, j: c[j, i], name="D")
    f = func_of(x, d)
    assert ask(analysis.elementwise_match, f, "A", "C") is True
    assert ask(analysis.elementwise_match, f, "A", "D") is False


def test_common_outer_axes() -> None:
    x = ts.placeholder((4, 5, 6), name="X")
    k = ts.reduce_axis(6, name="k")
    e = ts.compute((4, 5, 6), lambda i, j, m: ts.exp(x[i, j, m]), name="E")
    s = ts.compute((4, 5), lambda i, j: ts.sum(e[i, j, k], axis=k), name="S")
    t = ts.compute((5, 4), lambda i, j: s[j, i], name="T")
    f = func_of(x, t)
    assert ask(analysis.common_outer_axes, f, "E", "S") == 2
    assert ask(analysis.common_outer_axes, f, "S", "T") == 0


@pytest.mark.parametrize(
    ("n", "m", "k", "wanted"),
    [(4, 4, 1024, True), (64, 64, 1024, False), (8, 8, 63, False), (8, 8, 64, True)],
)
def test_more_parallel_in_the_reduction_with_reuse(n: int, m: int, k: int, wanted: bool) -> None:
    a, b = ts.placeholder((n, k), name="A"), ts.placeholder((k, m), name="B")
    f = func_of(a, b, ts.ops.matmul(a, b, name="C"))
    assert ask(analysis.more_parallel_in_reduction, f, "C", extra=(4,)) is wanted


@pytest.mark.parametrize(("extent", "wanted"), [(4, False), (5, True), (1, False)])
def test_more_parallel_in_a_plain_sum(extent: int, wanted: bool) -> None:
    x, k = ts.placeholder((extent,), name="X"), ts.reduce_axis(extent, name="k")
    f = func_of(x, ts.compute((), lambda: ts.sum(x[k], axis=k), name="S"))
    assert ask(analysis.more_parallel_in_reduction, f, "S", extra=(4,)) is wanted


def test_vectors_go_along_the_rows_of_the_output_if_these_are_long_enough() -> None:
    a, b = ts.placeholder((6, 4), name="A"), ts.placeholder((5, 4), name="B")
    f = func_of(a, b, ts.ops.matmul(a, b, transpose_b=True, name="C"))
    assert ask(analysis.contiguous_axes, f, "C") == ["j"]
    t = func_of(X, ts.compute((6, 8), lambda i, j: X[j, i], name="T"))
    assert ask(analysis.contiguous_axes, t, "T") == ["j"]
    assert analysis.contiguous_axes(t, analysis.block(t, "T"), lanes=8) == ["j"]
    assert analysis.contiguous_axes(t, analysis.block(t, "T"), lanes=16) == ["j", "i"]


def test_batch_axes_have_places_of_their_own() -> None:
    a, b = ts.placeholder((6, 4), name="A"), ts.placeholder((6, 5), name="B")
    r = ts.reduce_axis(2, name="r")
    parted = ts.compute((3, 4, 5), lambda p, i, j: ts.sum(a[2 * p + r, i] * b[2 * p + r, j], r))
    func = func_of(a, b, parted)
    assert analysis.batch_axes(analysis.block(func, parted.name)) == {"p"}
    shared = ts.compute((5, 4, 5), lambda p, i, j: ts.sum(a[p + r, i] * b[p + r, j], r))
    func = func_of(a, b, shared)
    assert analysis.batch_axes(analysis.block(func, shared.name)) == set()
