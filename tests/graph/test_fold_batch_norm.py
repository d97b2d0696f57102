"""Batch norm and products with constants go into the weights in front of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_graphs import Numbers, before_and_after, graph_of, ops_of, passed

from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Value
from tilesmith.graph.passes.batch_norm import fold_batch_norm
from tilesmith.ops.conv import conv1d, conv2d, conv3d, depthwise_conv2d
from tilesmith.ops.conv_transpose import conv2d_transpose
from tilesmith.ops.elementwise import add, bias_add, divide, multiply, relu, subtract
from tilesmith.ops.matmul import batch_matmul, dense, matmul
from tilesmith.ops.norm import batch_norm, scale_shift
from tilesmith.ops.transform import reshape, transpose


def normalised(b: GraphBuilder, x: Value, channels: int, axis: int = 1) -> Any:
    n = Numbers(3)
    given = (n.positive(channels), n(channels), n(channels), n.positive(channels))
    return b.add(batch_norm, x, *(b.constant(a) for a in given), axis=axis)


def test_batch_norm_behind_a_convolution(golden: Callable[[object], None]) -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        n = Numbers()
        y = b.add(conv2d, x, b.constant(n(4, 3, 3, 3), "w"), padding=1)
        y = b.add(bias_add, y, b.constant(n(4), "b"), axis=1)
        return b.add(relu, normalised(b, y, 4))

    golden(before_and_after(graph_of(make, 1, 3, 5, 5), fold_batch_norm))


def test_batch_norm_alone(golden: Callable[[object], None]) -> None:
    graph = graph_of(lambda b, x: normalised(b, b.add(relu, x), 3), 2, 3, 4)
    golden(before_and_after(graph, fold_batch_norm))


Make = Callable[[GraphBuilder, Value], Any]


def behind(function: Any, shape: tuple[int, ...], **settings: Any) -> Make:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(function, x, b.constant(Numbers()(*shape)), **settings)
        axis = 1 if settings.get("layout", "NC").startswith("NC") and len(y.shape) > 2 else -1
        return normalised(b, y, y.shape[axis], axis % len(y.shape))

    return make


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (behind(conv1d, (4, 3, 3)), (2, 3, 7)),
        (behind(conv2d, (4, 1, 2, 2), groups=2), (1, 2, 5, 5)),
        (behind(conv2d, (2, 2, 3, 4), layout="NHWC"), (1, 5, 5, 3)),
        (behind(conv3d, (2, 3, 1, 2, 2)), (1, 3, 2, 4, 4)),
        (behind(depthwise_conv2d, (6, 1, 3, 3)), (1, 3, 5, 5)),
        (behind(conv2d_transpose, (3, 4, 2, 2), stride=2), (1, 3, 3, 3)),
        (behind(conv2d_transpose, (4, 3, 3, 3), stride=2, groups=2), (1, 4, 3, 3)),
        (behind(conv2d_transpose, (2, 2, 4, 3), groups=2, layout="NHWC"), (1, 3, 3, 4)),
        (behind(matmul, (3, 5)), (4, 3)),
        (behind(matmul, (5, 3), transpose_b=True), (4, 3)),
        (behind(dense, (5, 3)), (4, 3)),
    ],
    ids=lambda v: None,
)
def test_every_product_takes_it(make: Make, shape: tuple[int, ...]) -> None:
    graph = graph_of(make, *shape)
    assert ops_of(passed(graph, fold_batch_norm)) == [graph.nodes[0].op, "add"]


def test_numbers_and_vectors_in_any_spelling() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        n = Numbers()
        y = b.add(batch_matmul, x, b.constant(n(3, 4)))
        y = b.add(multiply, b.constant(n(4)), y)
        y = b.add(subtract, b.constant(n(1, 1, 4)), y)
        y = b.add(divide, y, b.constant(n.positive(1)))
        y = b.add(add, y, B=2.0)
        return b.add(scale_shift, y, b.constant(n(4)), b.constant(n(4)), axis=2)

    assert ops_of(passed(graph_of(make, 2, 5, 3), fold_batch_norm)) == ["batch_matmul", "add"]


def test_through_reshapes_and_transposes() -> None:
    """As the scale of Q in attention stands behind the heads' transpose."""

    def make(b: GraphBuilder, x: Value) -> Any:
        n = Numbers()
        y = b.add(bias_add, b.add(matmul, x, b.constant(n(4, 6))), b.constant(n(6)), axis=1)
        y = b.add(reshape, y, shape=(1, 5, 2, 3))
        y = b.add(transpose, y, axes=(0, 2, 1, 3))
        return b.add(multiply, y, B=0.125)

    after = passed(graph_of(make, 5, 4), fold_batch_norm)
    assert ops_of(after) == ["matmul", "add", "reshape", "transpose"]


def test_channels_behind_a_transpose() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(conv2d, x, b.constant(Numbers()(4, 3, 1, 1)))
        y = b.add(transpose, y, axes=(0, 2, 3, 1))
        return b.add(multiply, y, b.constant(Numbers(2)(4)))

    assert ops_of(passed(graph_of(make, 1, 3, 2, 2), fold_batch_norm)) == ["conv2d", "transpose"]


def test_a_bias_stays_what_it_is() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(conv2d, x, b.constant(Numbers()(4, 3, 1, 1)))
        return b.add(bias_add, y, b.constant(Numbers()(4)), axis=1)

    graph = graph_of(make, 1, 3, 2, 2)
    assert str(passed(graph, fold_batch_norm)) == str(graph)


def kept(make: Make, *shape: int, dtype: str = "float32") -> None:
    graph = graph_of(make, *shape, dtype=dtype)
    assert "conv2d" in ops_of(graph)
    after = passed(graph, fold_batch_norm, tolerance=2e-5 if dtype == "float32" else 5e-3)
    assert [n.op for n in after.nodes if n.op == "conv2d"] == ["conv2d"]
    assert "multiply" in ops_of(after)


def test_what_others_read_is_not_scaled() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(conv2d, x, b.constant(Numbers()(4, 3, 1, 1)))
        return normalised(b, y, 4), b.add(relu, y)

    kept(make, 1, 3, 2, 2)


def test_an_output_is_not_scaled() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(conv2d, x, b.constant(Numbers()(4, 3, 1, 1)))
        return y, normalised(b, y, 4)

    kept(make, 1, 3, 2, 2)


def test_along_another_axis_it_is_not_folded() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(conv2d, x, b.constant(Numbers()(4, 3, 1, 1)))
        return b.add(multiply, y, b.constant(Numbers(1)(4)))  # the width, as large as the channels

    kept(make, 1, 3, 4, 4)


def test_weights_that_would_overflow_stay() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        w = np.full((4, 3, 1, 1), 3e4, "float16")
        return b.add(multiply, b.add(conv2d, x, b.constant(w)), B=1e4)

    kept(make, 1, 3, 2, 2, dtype="float16")


def test_weights_of_the_caller_stay() -> None:
    b = GraphBuilder("g")
    x, w = b.input("x", (1, 3, 2, 2), "float32"), b.input("w", (4, 3, 1, 1), "float32")
    graph = b.finish({"y": normalised(b, b.add(conv2d, x, w), 4)})
    assert ops_of(passed(graph, fold_batch_norm)) == ["conv2d", "multiply", "add"]


def test_half_precision_is_rounded_once() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        n = Numbers()
        given = [n(3, dtype="float16") for _ in range(2)]
        return b.add(scale_shift, x, *(b.constant(a) for a in given), axis=1)

    graph = graph_of(make, 2, 3, dtype="float16")
    assert ops_of(passed(graph, fold_batch_norm)) == ["cast", "multiply", "add", "cast"]
