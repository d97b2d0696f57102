"""Layouts of networks on GPUs: convolutions in half precision are channels-last, those with kernels
of one element are products, and products of one matrix are a batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_graphs import Numbers, graph_of, ops_of, passed

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Value
from tilesmith.graph.partition import partition
from tilesmith.graph.passes.layouts import channels_last_halves, pointwise_products
from tilesmith.graph.passes.movement import sink_movement
from tilesmith.graph.passes.shared_products import shared_products
from tilesmith.graph.passes.whole_phases import whole_phases
from tilesmith.graph.pipeline import GPU_PASSES, passes_for, run_passes, with_half_precision
from tilesmith.ops.conv import conv2d, depthwise_conv2d
from tilesmith.ops.conv_transpose import conv1d_transpose, conv2d_transpose, conv3d_transpose
from tilesmith.ops.elementwise import add, relu
from tilesmith.ops.matmul import batch_matmul, matmul
from tilesmith.ops.transform import reshape, transpose

NUMBERS = Numbers()


def three_products(b: GraphBuilder, x: Value, biases: bool = True) -> list[Value]:
    out = []
    for _ in range(3):
        y = b.add(matmul, x, b.constant(NUMBERS(8, 6)))
        out.append(b.add(add, y, b.constant(NUMBERS(6))) if biases else y)
    return out


@pytest.mark.parametrize("biases", [True, False])
def test_queries_keys_and_values_are_one_product(biases: bool) -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        q, k, v = (b.add(reshape, y, shape=(4, 2, 3)) for y in three_products(b, x, biases))
        q = b.add(transpose, q, axes=(1, 0, 2))
        scores = b.add(batch_matmul, q, b.add(transpose, k, axes=(1, 2, 0)))
        return b.add(batch_matmul, scores, b.add(transpose, v, axes=(1, 0, 2)))

    graph = passed(graph_of(make, 4, 8), shared_products)
    assert ops_of(graph).count("matmul") == 0
    assert ops_of(graph).count("batch_matmul") == 3
    groups = partition(graph)
    assert [g.nodes[0].op for g in groups if "slice" in g.name] == []  # parts are no copies
    assert len(groups) == 3


def test_products_that_are_computed_with_at_once_stay() -> None:
    """A gated layer: each activation belongs to the kernel of its product."""

    def make(b: GraphBuilder, x: Value) -> Any:
        a, c, _ = three_products(b, x)
        return b.add(add, b.add(relu, a), c)

    graph = graph_of(make, 4, 8)
    assert str(passed(graph, shared_products)) == str(graph)


def test_an_output_of_the_model_stays() -> None:
    graph = graph_of(lambda b, x: tuple(three_products(b, x)), 4, 8)
    assert str(passed(graph, shared_products)) == str(graph)


def bottleneck(b: GraphBuilder, x: Value) -> Any:
    def weights(*shape: int) -> Value:
        return b.constant(NUMBERS(*shape).astype(x.dtype.numpy))

    y = b.add(relu, b.add(add, b.add(conv2d, x, weights(6, 4, 1, 1)), weights(6, 1, 1)))
    y = b.add(depthwise_conv2d, y, weights(6, 1, 3, 3), padding=1)
    y = b.add(relu, b.add(add, y, weights(6, 1, 1)))
    y = b.add(add, b.add(conv2d, y, weights(4, 6, 1, 1)), weights(4, 1, 1))
    return b.add(add, b.add(relu, x), y)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_pointwise_convolutions_are_products_with_their_ends(dtype: str) -> None:
    graph = graph_of(bottleneck, 1, 4, 5, 3, dtype=dtype)
    made = passed(graph, *GPU_PASSES, tolerance=5e-3 if dtype == "float16" else 1e-5)
    assert ops_of(made).count("matmul") == 2
    assert "conv2d" not in ops_of(made)
    depthwise = next(n for n in made.nodes if n.op == "depthwise_conv2d")
    assert depthwise.setting("layout") == ("NHWC" if dtype == "float16" else None)
    names = [g.name for g in partition(made)]
    assert not any(name == "add" or name.startswith("add_relu") for name in names), names
    assert sum("matmul" in name for name in names) == 2


@pytest.mark.parametrize(
    "settings", [{"stride": 2}, {"padding": 1}, {"groups": 2}, {"padding": ((1, 0), (0, 0))}]
)
def test_other_convolutions_are_no_products(settings: dict[str, Any]) -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        inner = 4 // settings.get("groups", 1)
        return b.add(conv2d, x, b.constant(NUMBERS(6, inner, 1, 1)), **settings)

    graph = graph_of(make, 1, 4, 5, 3)
    assert ops_of(passed(graph, pointwise_products)) == ["conv2d"]


def test_a_batch_of_images() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(conv2d, x, b.constant(NUMBERS(6, 4, 1, 1).astype(np.float16)))

    graph = graph_of(make, 2, 4, 5, 3, dtype="float16")
    made = passed(graph, channels_last_halves, pointwise_products, tolerance=5e-3)
    assert "matmul" in ops_of(made)


def test_a_lone_convolution_of_many_pixels_moves_no_channels() -> None:
    """The pixels of each image are one row of a product."""

    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(conv2d, x, b.constant(NUMBERS(6, 4, 1, 1).astype(np.float16)))

    graph = graph_of(make, 2, 4, 16, 17, dtype="float16")
    made = passed(graph, channels_last_halves, pointwise_products, tolerance=5e-3)
    assert "transpose" not in ops_of(made)
    (product,) = (n for n in made.nodes if n.op == "conv1d")
    assert made.values[product.outputs[0]].shape == (2, 6, 272)


def test_half_precision_comes_before_layouts() -> None:
    h200 = ts.Target.named("nvidia-h200")
    graph = run_passes(graph_of(bottleneck, 1, 4, 5, 3), with_half_precision(passes_for(h200)))
    assert ops_of(graph).count("matmul") == 2
    assert all(graph.values[n.inputs[0]].dtype.name == "float16"
               for n in graph.nodes if n.op == "matmul")  # fmt: skip
    own = (sink_movement,)
    assert with_half_precision(own)[:1] == own


@pytest.mark.parametrize(
    ("function", "shape", "weights", "stride"),
    [
        (conv1d_transpose, (2, 3, 7), (3, 5, 3), 3),
        (conv2d_transpose, (2, 4, 5, 3), (4, 6, 2, 3), (2, 3)),
        (conv3d_transpose, (1, 3, 2, 3, 4), (3, 7, 2, 2, 2), 2),
    ],
)
def test_transposed_convolutions_to_patches_are_products(
    function: Any, shape: tuple[int, ...], weights: tuple[int, ...], stride: Any
) -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        w = b.constant(NUMBERS(*weights).astype(np.float16))
        return b.add(function, x, w, stride=stride)

    graph = graph_of(make, *shape, dtype="float16")
    made = passed(graph, channels_last_halves, pointwise_products, tolerance=5e-3)
    assert [op for op in ops_of(made) if op not in ("transpose", "reshape")] == ["matmul"]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("kernel", "settings", "want"),
    [
        (3, {"stride": 2, "padding": 1, "output_padding": 1}, ((4, 4), ((1, 2), (1, 2)))),
        (4, {"stride": (3, 1), "padding": ((1, 2), (2, 1))}, ((6, 4), ((3, 2), (2, 1)))),
    ],
)
def test_weights_have_equally_many_elements_for_each_phase(
    layout: str, kernel: int, settings: dict[str, Any], want: Any
) -> None:
    last = layout == "NHWC"

    def make(b: GraphBuilder, x: Value) -> Any:
        w = NUMBERS(kernel, kernel, 3, 5) if last else NUMBERS(3, 5, kernel, kernel)
        return b.add(conv2d_transpose, x, b.constant(w), layout=layout, **settings)

    graph = graph_of(make, *((2, 4, 5, 3) if last else (2, 3, 4, 5)))
    made = passed(graph, whole_phases)
    (node,) = made.nodes  # they are widened ahead
    wider = made.values[node.inputs[1]].shape
    assert (wider[:2] if last else wider[2:], node.setting("padding")) == want


@pytest.mark.parametrize(
    "settings",
    [{"stride": 1}, {"stride": 2, "padding": 1}, {"stride": 3}, {"stride": 2, "groups": 2},
     {"stride": 3, "output_padding": 1}],
)  # fmt: skip
def test_other_transposed_convolutions_are_no_products(settings: dict[str, Any]) -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        w = b.constant(NUMBERS(4, 6, 2, 2).astype(np.float16))
        return b.add(conv2d_transpose, x, w, **settings)

    graph = graph_of(make, 1, 4, 5, 3, dtype="float16")
    made = passed(graph, channels_last_halves, pointwise_products, tolerance=5e-3)
    assert "conv2d_transpose" in ops_of(made)
