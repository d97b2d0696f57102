"""No kernel only moves elements, in a block of attention and in a small convolutional network."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
from small_graphs import Numbers, assert_close, feeds_of, graph_of, plainly_compiled

from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.kinds import Kind, work_of
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.passes.affine import bias_as_add
from tilesmith.graph.passes.layouts import channels_last
from tilesmith.graph.passes.movement import sink_movement
from tilesmith.graph.pipeline import PASSES, run_passes
from tilesmith.ops.conv import conv2d, depthwise_conv2d
from tilesmith.ops.elementwise import add, bias_add, clip, divide, multiply, relu
from tilesmith.ops.matmul import batch_matmul, matmul
from tilesmith.ops.norm import batch_norm, layer_norm, softmax
from tilesmith.ops.pool import max_pool2d
from tilesmith.ops.reduce import reduce_mean
from tilesmith.ops.transform import concatenate, reshape, transpose
from tilesmith.ops.views import slice_

WIDTH, HEADS, TOKENS = 12, 3, 5


def kernels(graph: Graph) -> list[list[str]]:
    run = plainly_compiled(graph, *PASSES)
    feeds = feeds_of(graph)
    assert_close(run(feeds), evaluate_graph(graph, feeds), 1e-4)
    for step in run.plan.steps:
        kinds = {work_of(run.plan.graph, n).kind for n in step.group.nodes}
        assert kinds != {Kind.VIEW}, f"{step.group.name} computes nothing"
    return [[n.op for n in s.group.nodes] for s in run.plan.steps]


def projected(b: GraphBuilder, x: Value, n: Numbers, width: int) -> Any:
    y = b.add(matmul, x, b.constant(n(x.shape[1], width)))
    return b.add(bias_add, y, b.constant(n(width)), axis=1)


def heads(b: GraphBuilder, x: Value, axes: tuple[int, ...]) -> Any:
    y = b.add(reshape, x, shape=(1, TOKENS, HEADS, WIDTH // HEADS))
    return b.add(transpose, y, axes=axes)


def attended(b: GraphBuilder, n: Numbers, q: Any, k: Any, v: Any, x: Value) -> Any:
    scores = b.add(batch_matmul, heads(b, q, (0, 2, 1, 3)), heads(b, k, (0, 2, 3, 1)))
    scores = b.add(divide, scores, b.constant(np.asarray(sqrt(WIDTH / HEADS), "float32")))
    mixed = b.add(batch_matmul, b.add(softmax, scores), heads(b, v, (0, 2, 1, 3)))
    mixed = b.add(transpose, mixed, axes=(0, 2, 1, 3))
    y = projected(b, b.add(reshape, mixed, shape=(TOKENS, WIDTH)), n, WIDTH)
    return b.add(layer_norm, b.add(add, x, y), b.constant(n(WIDTH)), b.constant(n(WIDTH)))


def attention(b: GraphBuilder, x: Value) -> Any:
    n = Numbers()
    q, k, v = (projected(b, x, n, WIDTH) for _ in range(3))
    return attended(b, n, q, k, v, x)


def fused_attention(b: GraphBuilder, x: Value) -> Any:
    """Q, K and V are slices of one product."""
    n = Numbers()
    both = projected(b, x, n, 3 * WIDTH)
    q, k, v = (
        b.add(slice_, both, starts=(0, k * WIDTH), stops=(TOKENS, (k + 1) * WIDTH), steps=(1, 1))
        for k in range(3)
    )
    return attended(b, n, q, k, v, x)


def stacked_attention(b: GraphBuilder, x: Value) -> Any:
    """Q, K and V are slices of a transpose, as vision transformers have them."""
    n = Numbers()
    y = b.add(reshape, projected(b, x, n, 3 * WIDTH), shape=(1, TOKENS, 3, HEADS, WIDTH // HEADS))
    y = b.add(transpose, y, axes=(2, 0, 3, 1, 4))
    q, k, v = (
        b.add(
            reshape,
            b.add(slice_, y, starts=(k, 0, 0, 0, 0), stops=(k + 1, *y.shape[1:])),
            shape=y.shape[1:],
        )
        for k in range(3)
    )
    scores = b.add(softmax, b.add(batch_matmul, q, b.add(transpose, k, axes=(0, 1, 3, 2))))
    mixed = b.add(transpose, b.add(batch_matmul, scores, v), axes=(0, 2, 1, 3))
    return projected(b, b.add(reshape, mixed, shape=(TOKENS, WIDTH)), n, WIDTH)


def normalised(b: GraphBuilder, x: Value, n: Numbers) -> Any:
    c = x.shape[1]
    return b.add(batch_norm, x, *(b.constant(a) for a in (n(c), n(c), n(c), n.positive(c))))


def network(b: GraphBuilder, x: Value) -> Any:
    n = Numbers()
    y = b.add(relu, normalised(b, b.add(conv2d, x, b.constant(n(8, 3, 3, 3)), padding=1), n))
    y = b.add(max_pool2d, y, kernel=2)
    z = normalised(b, b.add(depthwise_conv2d, y, b.constant(n(8, 1, 3, 3)), padding=1), n)
    z = b.add(clip, z, low=0.0, high=6.0)
    z = normalised(b, b.add(conv2d, z, b.constant(n(8, 8, 1, 1))), n)
    y = b.add(relu, b.add(add, y, z))
    wide = [
        b.add(relu, b.add(conv2d, y, b.constant(n(4, 8, k, k)), padding=k // 2)) for k in (1, 3)
    ]
    y = b.add(concatenate, *wide, axis=1)
    y = b.add(reduce_mean, y, axes=(2, 3), keepdims=True)
    return projected(b, b.add(reshape, y, shape=(1, 8)), n, 5)


def test_attention() -> None:
    found = kernels(graph_of(attention, TOKENS, WIDTH))
    assert len(found) == 3 + 2 + 2 + 1, found  # projections, products, softmax and norm, the last


def test_slices_of_a_fused_projection() -> None:
    found = kernels(graph_of(fused_attention, TOKENS, WIDTH))
    assert len(found) == 1 + 2 + 2 + 1, found


def test_slices_of_a_transpose() -> None:
    found = kernels(graph_of(stacked_attention, TOKENS, WIDTH))
    assert len(found) == 1 + 2 + 1 + 1, found


def test_a_convolutional_network() -> None:
    found = kernels(graph_of(network, 1, 3, 8, 8))
    # Each convolution with all that follows it, pooling, the mean, the last layer.
    assert "concatenate" not in [op for k in found for op in k]
    assert len(found) == 5 + 1 + 1 + 1, found


# what each pass does to a graph
Golden = Callable[[object], None]


def shown(graph: Graph, *passes: Any) -> str:
    return f"{graph}\n\n{run_passes(graph, passes)}"


def test_bias_becomes_an_addition(golden: Golden) -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(bias_add, x, b.constant(Numbers()(3), "b"), axis=1)

    golden(shown(graph_of(make, 2, 3, 4), bias_as_add))


def test_convolutions_become_channels_last(golden: Golden) -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(conv2d, x, b.constant(Numbers()(4, 3, 3, 3), "w"))
        return b.add(max_pool2d, y, kernel=2)

    golden(shown(graph_of(make, 1, 3, 6, 6), channels_last))


def test_movement_sinks_to_the_border(golden: Golden) -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(transpose, b.add(relu, x), axes=(0, 2, 1))
        z = b.add(transpose, b.add(reshape, x, shape=(2, 3, 4)), axes=(0, 2, 1))
        y = b.add(add, b.add(multiply, y, b.constant(Numbers()(3), "c")), z)
        return b.add(transpose, y, axes=(0, 2, 1))

    golden(shown(graph_of(make, 2, 3, 4), sink_movement))


def test_the_whole_list_of_passes(golden: Golden) -> None:
    golden(shown(graph_of(network, 1, 3, 8, 8), *PASSES))
