"""The rules of the partition, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_graphs import Numbers, graph_of, plainly_compiled

from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.kinds import Kind, work_of
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.partition import MAX_NODES, partition
from tilesmith.ops.conv import conv2d
from tilesmith.ops.elementwise import add, multiply, relu, tanh
from tilesmith.ops.group_norm import rms_norm
from tilesmith.ops.matmul import batch_matmul, matmul
from tilesmith.ops.norm import softmax
from tilesmith.ops.pool import max_pool2d
from tilesmith.ops.reduce import reduce_mean, reduce_sum
from tilesmith.ops.transform import concatenate, pad, reshape, transpose
from tilesmith.ops.views import expand, slice_

Make = Callable[[GraphBuilder, Value], Any]


def groups(make: Make, *shape: int) -> list[list[str]]:
    return [[n.op for n in g.nodes] for g in partition(graph_of(make, *shape))]


def weights(b: GraphBuilder, *shape: int) -> Value:
    return b.constant(Numbers()(*shape))


@pytest.mark.parametrize(
    ("function", "settings", "kind"),
    [
        (reshape, {"shape": (4, 2)}, Kind.ALIAS),
        (slice_, {"starts": (1, 0), "stops": (2, 4)}, Kind.ALIAS),
        (slice_, {"starts": (0, 1), "stops": (2, 3)}, Kind.VIEW),
        (transpose, {}, Kind.VIEW),
        (pad, {"widths": 1}, Kind.VIEW),
        (expand, {"shape": (3, 2, 4)}, Kind.VIEW),
        (relu, {}, Kind.ELEMENTWISE),
        (reduce_sum, {"axes": (1,)}, Kind.REDUCTION),
        (softmax, {}, Kind.REDUCTION),
        (rms_norm, {}, Kind.REDUCTION),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_kinds(function: Any, settings: dict[str, Any], kind: Kind) -> None:
    graph = graph_of(lambda b, x: b.add(function, x, **settings), 2, 4)
    assert work_of(graph, graph.nodes[0]).kind is kind


def test_products_are_heavy_and_pooling_is_not() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(conv2d, x, weights(b, 8, 8, 3, 3))
        return b.add(max_pool2d, y, kernel=2)

    graph = graph_of(make, 1, 8, 8, 8)
    assert [work_of(graph, n).kind for n in graph.nodes] == [Kind.HEAVY, Kind.REDUCTION]


def test_a_reshape_belongs_to_no_group() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(tanh, b.add(reshape, b.add(relu, x), shape=(6,)))

    assert groups(make, 2, 3) == [["relu"], ["tanh"]]


def test_a_view_is_repeated_where_it_is_read() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(transpose, x)
        return b.add(relu, y), b.add(matmul, y, weights(b, 2, 4))

    assert sorted(groups(make, 2, 3)) == [["transpose", "matmul"], ["transpose", "relu"]]


def test_a_view_that_is_wanted_is_a_copy() -> None:
    assert groups(lambda b, x: b.add(transpose, x), 2, 3) == [["transpose"]]

    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(relu, b.add(reshape, b.add(transpose, x), shape=(6,)))

    assert groups(make, 2, 3) == [["transpose"], ["relu"]]


def test_bias_residual_and_activation_follow_a_convolution() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(conv2d, x, weights(b, 4, 4, 3, 3), padding=1)
        y = b.add(add, y, weights(b, 4, 1, 1))
        return b.add(relu, b.add(add, y, x))

    assert groups(make, 1, 4, 5, 5) == [["conv2d", "add", "add", "relu"]]


def test_of_two_products_the_later_takes_the_sum() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y, z = (b.add(matmul, x, weights(b, 8, 8)) for _ in range(2))
        return b.add(relu, b.add(add, y, z))

    assert groups(make, 8, 8) == [["matmul"], ["matmul", "add", "relu"]]


def test_what_somebody_else_reads_stays_in_memory() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(matmul, x, weights(b, 8, 8))
        return b.add(relu, y), y

    assert groups(make, 8, 8) == [["matmul"], ["relu"]]


def test_a_broadcast_is_not_one_to_one() -> None:
    """Behind a reduction, what widens its result is another kernel."""

    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(multiply, x, b.add(reduce_mean, x, axes=(1,), keepdims=True))

    assert groups(make, 4, 6) == [["reduce_mean"], ["multiply"]]


def test_the_first_part_of_a_concatenation_is_not_one_to_one() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(concatenate, b.add(matmul, x, weights(b, 8, 8)), x, axis=1)

    assert groups(make, 8, 8) == [["matmul"], ["concatenate"]]


def test_a_mask_goes_in_front_of_its_softmax() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(softmax, b.add(add, b.add(multiply, x, B=0.5), weights(b, 6)))

    assert groups(make, 4, 6) == [["multiply", "add", "softmax"]]


def test_nothing_is_computed_again_for_every_read_of_a_product() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(matmul, b.add(tanh, x), weights(b, 8, 8))

    assert groups(make, 8, 8) == [["tanh"], ["matmul"]]


def test_a_transpose_is_the_order_of_the_stores() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(batch_matmul, x, weights(b, 2, 8, 8))
        return b.add(reshape, b.add(transpose, y, axes=(1, 0, 2)), shape=(8, 16))

    assert groups(make, 2, 8, 8) == [["batch_matmul", "transpose"]]


def test_every_output_is_kept() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(relu, x)
        z = b.add(tanh, y)
        return y, z, b.add(multiply, z, z)

    graph = graph_of(make, 3)
    written = {x for g in partition(graph) for x in g.outputs}
    assert {value for _, value in graph.outputs} <= written


def test_groups_come_after_what_they_read() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(relu, x)
        parts = [b.add(matmul, y, weights(b, 8, 8)) for _ in range(3)]
        return b.add(add, b.add(add, parts[2], parts[0]), b.add(tanh, parts[1]))

    graph: Graph = graph_of(make, 8, 8)
    known = {*graph.inputs, *graph.constants}
    for g in partition(graph):
        assert set(g.inputs) <= known
        known |= set(g.outputs)


def chain(b: GraphBuilder, y: Any, count: int) -> Any:
    for k in range(count):
        y = b.add(tanh, y) if k % 3 else b.add(multiply, y, B=1.0 + k / 64)
    return y


@pytest.mark.parametrize("first", [relu, matmul, softmax])
def test_a_long_chain_becomes_several_groups(first: Any) -> None:
    """Of about equal size, so that the time to compile it is linear in its length."""

    def make(b: GraphBuilder, x: Value) -> Any:
        y = chain(b, b.add(first, *((x, x) if first is matmul else (x,))), 200)
        return b.add(transpose, y)

    graph = graph_of(make, 4, 4)
    sizes = [len(g.nodes) for g in partition(graph)]
    assert sum(sizes) == 202
    assert max(sizes) <= MAX_NODES
    assert len(sizes) <= 202 / MAX_NODES + 2


def test_a_chain_of_diamonds_becomes_groups_of_few_nodes() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        for k in range(100):
            x = b.add(add, b.add(multiply, x, B=0.5 + k / 256), x)
        return x

    graph = graph_of(make, 5)
    assert max(len(g.nodes) for g in partition(graph)) <= MAX_NODES
    x = {"x": np.linspace(-1, 1, 5, dtype="float32") * np.float32(1e-20)}
    got, want = plainly_compiled(graph)(x)["y"], evaluate_graph(graph, x)["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4)


def test_a_chain_of_several_groups_is_right() -> None:
    graph = graph_of(lambda b, x: b.add(transpose, chain(b, x, 3 * MAX_NODES)), 3, 4)
    x = {"x": Numbers()(3, 4)}
    got, want = plainly_compiled(graph)(x)["y"], evaluate_graph(graph, x)["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4)
