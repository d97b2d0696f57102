"""Neighbouring dimensions that softmax and normalisations treat alike become one; operators that
stand alone keep their layout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_graphs import Numbers, graph_of, ops_of, passed

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.partition import partition
from tilesmith.graph.passes.layouts import channels_last, channels_last_for
from tilesmith.graph.passes.merge_dimensions import merge_dimensions
from tilesmith.graph.pipeline import PASSES, run_passes
from tilesmith.ops.conv import conv2d
from tilesmith.ops.conv_transpose import conv2d_transpose
from tilesmith.ops.elementwise import add, multiply
from tilesmith.ops.group_norm import group_norm
from tilesmith.ops.norm import layer_norm, log_softmax, softmax
from tilesmith.ops.pool import max_pool2d
from tilesmith.ops.transform import transpose

NUMBERS = Numbers()


def shape_of(graph: Graph, *ops: Any) -> tuple[int, ...]:
    """Of what the one node of these operators reads."""
    (node,) = (n for n in graph.nodes if n.function in ops)
    return graph.values[node.inputs[0]].shape


@pytest.mark.parametrize("function", [softmax, log_softmax])
@pytest.mark.parametrize(
    ("shape", "axis", "merged"),
    [
        ((4, 3, 5, 2), 0, (4, 30)),
        ((4, 3, 5, 2), 1, (4, 3, 10)),
        ((4, 3, 5, 2), -2, (12, 5, 2)),
        ((4, 3, 5, 2), 3, (4, 3, 5, 2)),  # rows are as long as before
        ((4, 1, 5, 1), 2, (4, 5)),
        ((3, 1, 7), 1, (21, 1)),
    ],
)
def test_softmax_over_any_axis(function: Any, shape: Any, axis: int, merged: Any) -> None:
    graph = graph_of(lambda b, x: b.add(function, x, axis=axis), *shape)
    assert shape_of(passed(graph, merge_dimensions), function) == merged


@pytest.mark.parametrize(
    ("axes", "merged"), [((0, 2, 3), (2, 3, 20)), ((2, 3), (6, 20)), ((1,), (2, 3, 20))]
)
def test_normalised_axes(axes: tuple[int, ...], merged: tuple[int, ...]) -> None:
    graph = graph_of(lambda b, x: b.add(layer_norm, x, axis=axes), 2, 3, 4, 5)
    assert shape_of(passed(graph, merge_dimensions), layer_norm) == merged


def test_images_of_a_group_norm_are_rows() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(group_norm, x, b.constant(NUMBERS(6)), b.constant(NUMBERS(6)), groups=2)

    assert shape_of(passed(graph_of(make, 2, 6, 3, 5), merge_dimensions), group_norm) == (2, 6, 15)


def test_what_is_transposed_stays() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(softmax, b.add(transpose, x, axes=(0, 3, 1, 2)), axis=1)

    graph = graph_of(make, 2, 3, 4, 5)
    assert shape_of(passed(graph, merge_dimensions), softmax) == (2, 5, 3, 4)


def test_element_wise_neighbours_stay_in_the_kernel() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(add, x, b.constant(NUMBERS(2, 3, 4, 5)))
        return b.add(multiply, b.add(log_softmax, y, axis=1), b.constant(NUMBERS(2, 3, 4, 5)))

    graph = run_passes(graph_of(make, 2, 3, 4, 5), PASSES)
    assert len(partition(graph)) == 1


def test_kernels_of_merged_dimensions_are_right() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(group_norm, x, b.constant(NUMBERS(8)), b.constant(NUMBERS(8)), groups=4)
        return b.add(log_softmax, y, axis=1)

    graph = graph_of(make, 3, 8, 5, 7)
    x = NUMBERS(3, 8, 5, 7)
    (want,) = evaluate_graph(graph, {graph.inputs[0]: x}).values()
    (got,) = ts.compile_model(graph, ts.cpu(1), cache=None)({graph.inputs[0]: x}).values()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_pooling_alone_keeps_its_layout() -> None:
    alone = graph_of(lambda b, x: b.add(max_pool2d, x, kernel=3, stride=2, padding=1), 1, 4, 9, 9)
    assert ops_of(passed(alone, channels_last)) == ["max_pool2d"]

    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(conv2d, x, b.constant(NUMBERS(4, 4, 3, 3)), padding=1)
        return b.add(max_pool2d, y, kernel=2)

    both = passed(graph_of(make, 1, 4, 8, 8), channels_last)
    assert {n.setting("layout") for n in both.nodes if n.op != "transpose"} == {"NHWC"}


@pytest.mark.parametrize(
    ("size", "dtype", "kept"), [(18, "float32", True), (17, "float32", False), (18, "int8", False)]
)
def test_a_convolution_alone_keeps_long_rows(size: int, dtype: str, kept: bool) -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(conv2d, x, b.constant(np.ones((5, 4, 3, 3), dtype)))

    graph = passed(graph_of(make, 2, 4, 6, size, dtype=dtype), channels_last)
    assert (ops_of(graph) == ["conv2d"]) == kept


@pytest.mark.parametrize(
    ("target", "groups", "filters", "kept"),
    [
        ("skylake-avx512", 4, 8, True),
        ("skylake-avx512", 2, 64, False),  # vectors along the filters are full
        ("skylake-avx512", 6, 1, False),  # depthwise
        ("skylake-avx512", 1, 8, False),
        ("neoverse-n1", 2, 8, True),
        ("neoverse-n1", 2, 16, False),
    ],
)
def test_a_convolution_of_small_groups_alone_keeps_short_rows(
    target: str, groups: int, filters: int, kept: bool
) -> None:
    channels = 1 if filters == 1 else 3

    def make(b: GraphBuilder, x: Value) -> Any:
        w = b.constant(NUMBERS(groups * filters, channels, 3, 3))
        return b.add(conv2d, x, w, padding=1, groups=groups)

    move = channels_last_for(ts.Target.named(target))
    graph = passed(graph_of(make, 2, groups * channels, 7, 7), move)
    assert (ops_of(graph) == ["conv2d"]) == kept


@pytest.mark.parametrize(("size", "kept"), [(16, True), (15, False)])
def test_masks_fill_rows_of_one_vector(size: int, kept: bool) -> None:
    """A transposed convolution has rows as long as its image, whatever it makes of them."""
    move = channels_last_for(ts.Target.named("skylake-avx512"))
    for function, order in ((conv2d, (5, 4)), (conv2d_transpose, (4, 5))):

        def make(b: GraphBuilder, x: Value, f: Any = function, order: Any = order) -> Any:
            stride = 2 if f is conv2d_transpose else 1
            return b.add(f, x, b.constant(NUMBERS(*order, 3, 3)), stride=stride, padding=1)

        graph = passed(graph_of(make, 2, 4, 6, size), move)
        assert (ops_of(graph) == [function.__name__]) == kept


@pytest.mark.parametrize(("stride", "groups", "kept"), [(1, 1, True), (1, 2, True), (2, 1, False)])
def test_pixels_of_a_pointwise_convolution_are_one_row(
    stride: int, groups: int, kept: bool
) -> None:
    def make(b: GraphBuilder, x: Value) -> Value:
        w = b.constant(NUMBERS(8, 4 // groups, 1, 1))
        return b.add(conv2d, x, w, stride=stride, groups=groups)

    graph = passed(graph_of(make, 2, 4, 8, 9), channels_last)
    assert (ops_of(graph) == ["conv2d"]) == kept


@pytest.mark.parametrize("function", [conv2d, max_pool2d])
def test_what_is_given_with_channels_last_is_computed_so(function: Any) -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(transpose, x, axes=(0, 3, 1, 2))
        if function is conv2d:
            y = b.add(conv2d, y, b.constant(NUMBERS(5, 4, 3, 3)), padding=1)
        else:
            y = b.add(max_pool2d, y, kernel=2)
        return b.add(transpose, y, axes=(0, 2, 3, 1))

    graph = run_passes(graph_of(make, 2, 18, 18, 4), PASSES)
    assert "transpose" not in ops_of(graph)
    assert {n.setting("layout") for n in graph.nodes} == {"NHWC"}
