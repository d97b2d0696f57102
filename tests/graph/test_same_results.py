"""Graphs of one model with different views: equal only where the oracle has equal results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tests.support.open_models import check, compiled, program
from tilesmith.graph import smallest_sizes
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.same_results import have_same_results
from tilesmith.ops.transform import reshape, transpose
from tilesmith.ops.views import slice_

W = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
Rule = Callable[[GraphBuilder, Value], Value]


def graph(body: Rule, shape: tuple[int, ...] = (1, 4, 6)) -> Graph:
    g = GraphBuilder("g")
    return g.finish({"y": body(g, g.input("x", shape, "float32"))})


def plain(g: GraphBuilder, x: Value) -> Value:
    return g.add(ts.ops.matmul, g.add(reshape, x, shape=(4, 6)), g.constant(W))


def with_views(g: GraphBuilder, x: Value) -> Value:
    """Views that change nothing at these shapes."""
    t = g.add(transpose, x, axes=(1, 0, 2))
    t = g.add(slice_, t, starts=(0, None, 0), stops=(9, None, 6), steps=(1, 1, None))
    t = g.add(reshape, g.add(reshape, t, shape=(2, 2, 6)), shape=(4, 6))
    return g.add(ts.ops.matmul, t, g.constant(W.copy()))


def other_weights(g: GraphBuilder, x: Value) -> Value:
    return g.add(ts.ops.matmul, g.add(reshape, x, shape=(4, 6)), g.constant(W + 1))


def turned(g: GraphBuilder, x: Value) -> Value:
    t = g.add(reshape, g.add(transpose, x, axes=(0, 2, 1)), shape=(4, 6))
    return g.add(ts.ops.matmul, t, g.constant(W))


def backwards(g: GraphBuilder, x: Value) -> Value:
    t = g.add(slice_, x, starts=(0, 3, 0), stops=(1, -5, 6), steps=(1, -1, 1))
    return plain(g, t)


def in_halves(g: GraphBuilder, x: Value) -> Value:
    """Two slices of equal shapes, which are not of the same place."""
    a, b = (g.add(slice_, x, starts=(0, k, 0), stops=(1, k + 2, 6)) for k in (0, 2))
    return plain(g, g.add(ts.ops.concatenate, b, a, axis=1))


def test_views_that_change_nothing_are_left_out() -> None:
    x = {"x": np.random.default_rng(1).standard_normal((1, 4, 6)).astype(np.float32)}
    one, other = graph(plain), graph(with_views)
    np.testing.assert_array_equal(evaluate_graph(one, x)["y"], evaluate_graph(other, x)["y"])
    assert have_same_results(one, other)
    assert have_same_results(other, one)


@pytest.mark.parametrize("body", [other_weights, turned, backwards, in_halves])
def test_other_results_are_told_apart(body: Rule) -> None:
    x = {"x": np.random.default_rng(1).standard_normal((1, 4, 6)).astype(np.float32)}
    one, other = graph(plain), graph(body)
    assert not np.allclose(evaluate_graph(one, x)["y"], evaluate_graph(other, x)["y"])
    assert not have_same_results(one, other)


def test_other_shapes_and_inputs_are_told_apart() -> None:
    def flat(g: GraphBuilder, x: Value) -> Value:
        return g.add(reshape, plain(g, x), shape=(20,))

    assert not have_same_results(graph(plain), graph(flat))
    assert not have_same_results(graph(plain), graph(plain, (4, 1, 6)))


FIRST = """
    first (float[seq, 24] x) => (float[seq, 20] y, float[1, 20] pooled)
    <int64[1] s = {0}, int64[1] e = {1}>
    {h = MatMul(x, w) y = Relu(h) t = Slice(y, s, e, s) pooled = Tanh(t)}"""


def test_the_first_row_of_one_needs_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a length of 1 the first row is everything, so an importer leaves the slice out."""

    def refused(*_: Any) -> Any:
        raise AssertionError("the oracle runs the whole model, which takes long")

    monkeypatch.setattr(smallest_sizes, "evaluate_graph", refused)
    model = program(FIRST, w=(24, 20))
    made = compiled(model, {"seq": (1, 40)})
    assert made._run.trusted == {"#seq": (1, 40)}
    for n in (1, 2, 12, 40):
        check(made, model, seq=n)


def test_a_model_is_imported_once_for_each_of_some_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = program(FIRST, w=(24, 20))
    seen: list[tuple[int, ...]] = []
    whole = type(model).stage

    def stage(self: Any, cursor: Any, types: Any, arrays: Any) -> Any:
        seen.append(types["x"].shape)
        return whole(self, cursor, types, arrays)

    monkeypatch.setattr(type(model), "stage", stage)
    compiled(model, {"seq": (1, 40)})
    assert len(seen) == len(set(seen)) <= 6
