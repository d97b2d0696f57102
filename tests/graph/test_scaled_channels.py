"""Convolutions that sum nothing become products of channels and numbers, and mean the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_graphs import Numbers, feeds_of, graph_of, ops_of, passed

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.partition import partition
from tilesmith.graph.passes.scaled_channels import scaled_channels
from tilesmith.graph.pipeline import PASSES
from tilesmith.ops.conv import conv1d, conv2d, conv3d, depthwise_conv2d
from tilesmith.ops.elementwise import bias_add, relu
from tilesmith.ops.transform import transpose

NUMBERS = Numbers()


def convolved(function: Any, x: Any, w: Any, dtype: str = "float32", **settings: Any) -> Graph:
    def make(b: GraphBuilder, x: Value) -> Value:
        return b.add(function, x, b.constant(NUMBERS(*w).astype(dtype)), **settings)

    return graph_of(make, *x, dtype=dtype)


@pytest.mark.parametrize(("function", "shape", "weights", "settings"), [
    (conv1d, (3, 5, 7), (5, 1, 1), {"groups": 5}),
    (conv1d, (3, 7, 5), (1, 1, 5), {"groups": 5, "layout": "NWC"}),
    (conv2d, (2, 5, 3, 4), (5, 1, 1, 1), {"groups": 5, "stride": (1, 1)}),
    (conv2d, (2, 1, 3, 4), (1, 1, 1, 1), {}),
    (depthwise_conv2d, (2, 5, 3, 4), (5, 1, 1, 1), {"padding": ((0, 0), (0, 0))}),
    (depthwise_conv2d, (2, 3, 4, 5), (1, 1, 1, 5), {"layout": "NHWC", "dilation": 2}),
    (conv3d, (2, 5, 3, 4, 3), (5, 1, 1, 1, 1), {"groups": 5}),
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_one_number_for_each_channel_is_a_product(
    function: Any, shape: Any, weights: Any, settings: dict[str, Any], dtype: str
) -> None:
    graph = convolved(function, shape, weights, dtype, **settings)
    tolerance = 1e-3 if dtype == "float16" else 1e-6
    assert ops_of(passed(graph, scaled_channels, tolerance=tolerance)) == ["multiply"]


@pytest.mark.parametrize(("function", "shape", "weights", "settings"), [
    (conv2d, (2, 6, 5, 4), (6, 1, 3, 1), {"groups": 6}),
    (conv2d, (2, 6, 5, 4), (6, 3, 1, 1), {"groups": 2}),
    (conv2d, (2, 6, 5, 4), (12, 1, 1, 1), {"groups": 6}),
    (conv2d, (2, 1, 5, 4), (3, 1, 1, 1), {}),
    (depthwise_conv2d, (2, 6, 5, 4), (12, 1, 1, 1), {}),
    (depthwise_conv2d, (2, 6, 5, 4), (6, 1, 1, 1), {"stride": 2}),
    (depthwise_conv2d, (2, 6, 5, 4), (6, 1, 1, 1), {"padding": ((0, 1), (0, 0))}),
    (depthwise_conv2d, (2, 6, 5, 4), (6, 1, 1, 1), {"out_dtype": "float64"}),
])  # fmt: skip
def test_other_convolutions_stay(
    function: Any, shape: Any, weights: Any, settings: dict[str, Any]
) -> None:
    graph = convolved(function, shape, weights, **settings)
    assert str(passed(graph, scaled_channels)) == str(graph)


def test_sums_of_integers_stay() -> None:
    graph = convolved(depthwise_conv2d, (2, 6, 5, 4), (6, 1, 1, 1), "int8")
    assert str(passed(graph, scaled_channels)) == str(graph)


@pytest.mark.parametrize("last", [False, True])
def test_short_rows_with_bias_and_activation_are_one_kernel_without_transposes(last: bool) -> None:
    def make(b: GraphBuilder, x: Value) -> Value:
        y = b.add(transpose, x, axes=(0, 3, 1, 2)) if last else x
        y = b.add(depthwise_conv2d, y, b.constant(NUMBERS(7, 1, 1, 1)))
        y = b.add(relu, b.add(bias_add, y, b.constant(NUMBERS(7)), axis=1))
        return b.add(transpose, y, axes=(0, 2, 3, 1)) if last else y

    graph = graph_of(make, 3, *((5, 4, 7) if last else (7, 5, 4)))
    (group,) = partition(passed(graph, *PASSES))
    assert [n.op for n in group.nodes] == ["multiply", "add", "relu"]
    feeds = feeds_of(graph)
    (want,) = evaluate_graph(graph, feeds).values()
    (got,) = ts.compile_model(graph, ts.cpu(1))(feeds).values()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
