"""Movements of elements that follow one another become one."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import graph_of, ops_of, passed

from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.edit import edited
from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.passes.movement import sink_movement
from tilesmith.ops.elementwise import relu
from tilesmith.ops.reduce import reduce_log_sum_exp, reduce_max, reduce_mean, reduce_sum
from tilesmith.ops.transform import reshape, transpose


def joined(graph: Graph) -> Graph:
    """Every node as it was, but for movements, which meet those before them."""
    return edited(graph, lambda e, node, inputs: None)


def merged(shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which so many neighbouring dimensions are one."""
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    return tuple(prod(shape[a:b]) for a, b in zip([0, *ends], ends, strict=False))


@st.composite
def movements(draw: st.DrawFn) -> Any:
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=2, max_size=5)))
    first = tuple(draw(st.permutations(range(len(shape)))))
    sizes: list[int] = []
    while sum(sizes) < len(shape):
        sizes.append(draw(st.integers(1, len(shape) - sum(sizes))))
    return shape, first, tuple(sizes), tuple(draw(st.permutations(range(len(sizes)))))


@settings(max_examples=60)
@given(movements())
def test_a_transpose_of_merged_dimensions_moves_them_together(case: Any) -> None:
    shape, first, sizes, second = case

    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(transpose, x, axes=first)
        return b.add(transpose, b.add(reshape, y, shape=merged(y.shape, sizes)), axes=second)

    made = passed(graph_of(make, *shape), joined)
    assert ops_of(made).count("transpose") <= 1


@pytest.mark.parametrize("shape", [(4, 15), (20, 3), (2, 2, 15)])
def test_dimensions_that_are_divided_stay_apart(shape: tuple[int, ...]) -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(reshape, b.add(transpose, x, axes=(1, 0)), shape=shape)
        return b.add(transpose, y, axes=tuple(range(len(shape)))[::-1])

    assert ops_of(passed(graph_of(make, 6, 10), joined)).count("transpose") == 2


@settings(max_examples=30)
@given(st.data())
def test_what_is_summed_is_not_moved_before(draw: st.DataObject) -> None:
    """Its few results are, unless dimensions of one element alone change places."""
    shape = tuple(draw.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    order = tuple(draw.draw(st.permutations(range(len(shape)))))
    some = st.lists(st.integers(-len(shape), len(shape) - 1), unique_by=lambda a: a % len(shape))
    axes = draw.draw(st.one_of(st.none(), st.integers(0, len(shape) - 1), some.map(tuple)))
    function = draw.draw(st.sampled_from([reduce_sum, reduce_mean, reduce_max, reduce_log_sum_exp]))
    keepdims = draw.draw(st.booleans())

    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(transpose, b.add(relu, x), axes=order)
        return b.add(relu, b.add(function, y, axes=axes, keepdims=keepdims))

    ops = ops_of(passed(graph_of(make, *shape), sink_movement))
    place = ops.index(function.__name__)
    assert "transpose" not in ops[:place]
