"""Half precision gives what float32 gives, for numbers that float16 cannot hold on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_graphs import Array, plainly_compiled

from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.passes.half_precision import half_precision
from tilesmith.graph.pipeline import PASSES
from tilesmith.ops import elementwise as el
from tilesmith.ops.conv import conv2d
from tilesmith.ops.group_norm import group_norm
from tilesmith.ops.indices import gather
from tilesmith.ops.matmul import batch_matmul, matmul
from tilesmith.ops.norm import layer_norm, softmax
from tilesmith.ops.reduce import reduce_mean, reduce_sum
from tilesmith.ops.transform import concatenate, pad

RNG = np.random.default_rng(0)
SCORES = (RNG.standard_normal((4, 8)) * 20).astype("float32")
MASK = np.zeros((4, 8), "float32")
MASK[:, 5:] = MASK[3] = -1e9  # the last row has nothing to attend to
KEEP = (MASK == 0).astype("int64")
LEAST = np.where(MASK < 0, np.finfo("float32").min, 0).astype("float32")
VECTOR = np.array([[0.0, 1.0, 2.0, 0.0]], "float32")
LONG = RNG.uniform(0, 600, (2, 3000)).astype("float32")
QUERIES = (RNG.standard_normal((2, 4, 64)) * 40).astype("float32")


def number(b: GraphBuilder, v: Any) -> Value:
    return b.constant(np.asarray(v, "float32"))


def dropped(b: GraphBuilder, keep: Value) -> Any:
    return b.add(el.subtract, number(b, 1.0), b.add(el.cast, keep, dtype="float32"))


def attended(b: GraphBuilder, scores: Value, mask: Value) -> Any:
    return b.add(softmax, b.add(el.add, scores, mask))


def truth(b: GraphBuilder, keep: Value) -> Any:
    return b.add(el.cast, keep, dtype="bool")


def by_squares(b: GraphBuilder, x: Value, join: Any) -> Any:
    total = b.add(join, b.add(el.multiply, x, x), axes=(1,), keepdims=True)
    return b.add(el.divide, x, b.add(el.sqrt, b.add(el.add, total, number(b, 1e-12))))


Make = Callable[..., Any]
CASES: dict[str, tuple[Make, tuple[Array, ...]]] = {
    "a constant mask": (lambda b, x: attended(b, x, number(b, MASK)), (SCORES,)),
    "a mask as input": (attended, (SCORES, MASK)),
    "the least number as mask": (attended, (SCORES, LEAST)),
    "two masks": (
        lambda b, x, m: attended(b, x, b.add(el.add, m, number(b, MASK))), (SCORES, MASK),
    ),
    "a mask times a number": (
        lambda b, x, k: attended(b, x, b.add(el.multiply, dropped(b, k), number(b, -1e9))),
        (SCORES, KEEP),
    ),
    "a mask times a setting": (
        lambda b, x, k: attended(b, x, b.add(el.multiply, dropped(b, k), B=-1e9)), (SCORES, KEEP),
    ),
    "a choice": (
        lambda b, x, k: b.add(softmax, b.add(el.where, truth(b, k), x, B=-1e9)), (SCORES, KEEP),
    ),
    "padding": (
        lambda b, x: b.add(softmax, b.add(pad, x, widths=((0, 0), (0, 2)), value=-1e9)), (SCORES,),
    ),
    "scores that are scaled afterwards": (
        lambda b, q: b.add(softmax, b.add(
            el.multiply, b.add(batch_matmul, q, q, transpose_b=True), number(b, 1 / 256)
        )), (QUERIES,),
    ),
    "scores that are divided": (
        lambda b, q: b.add(
            el.divide, b.add(batch_matmul, q, q, transpose_b=True), number(b, 100.0)
        ), (QUERIES,),
    ),
    "epsilon behind a square": (lambda b, x: by_squares(b, x, reduce_mean), (VECTOR * 0,)),
    "epsilon as a setting": (
        lambda b, x: b.add(el.divide, x, b.add(el.add, b.add(el.absolute, x), B=1e-8)), (VECTOR,),
    ),
    "a lower bound": (
        lambda b, x: b.add(
            el.divide, x, b.add(el.clip, b.add(el.absolute, x), low=1e-12, high=None)
        ),
        (VECTOR,),
    ),
    "the mean of squares": (lambda b, x: by_squares(b, x, reduce_mean), (LONG,)),
    "the sum of squares": (lambda b, x: by_squares(b, x, reduce_sum), (LONG,)),
    "a sum that is divided": (
        lambda b, x: b.add(el.divide, b.add(reduce_sum, x, axes=(1,)), B=3000.0), (LONG,),
    ),
    "a result": (lambda b, x: b.add(el.multiply, x, x), (LONG,)),
    "weights": (lambda b, x: b.add(matmul, x, number(b, np.full((8, 2), 6.6e4))), (SCORES / 1e3,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_float32_gives(name: str) -> None:
    make, arrays = CASES[name]
    b = GraphBuilder("g")
    inputs = [b.input(f"x{k}", a.shape, a.dtype.name) for k, a in enumerate(arrays)]
    graph: Graph = b.finish({"y": make(b, *inputs)})
    feeds = {f"x{k}": a for k, a in enumerate(arrays)}
    want = evaluate_graph(graph, feeds)["y"]
    most = float(np.abs(want).max())
    for got in (
        evaluate_graph(half_precision(graph), feeds)["y"],
        plainly_compiled(graph, *PASSES, half_precision)(feeds)["y"],
    ):
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=5e-3 * most)


def test_infinities_stay() -> None:
    b = GraphBuilder("g")
    x = b.input("x", (4,), "float32")
    graph = half_precision(b.finish({"y": b.add(el.relu, b.add(pad, x, widths=((1, 1),)))}))
    feeds = {"x": np.array([np.inf, np.nan, 1e30, -1e30], "float32")}
    got = evaluate_graph(graph, feeds)["y"]
    np.testing.assert_array_equal(got, [0, np.inf, np.nan, 65504, 0, 0])


@pytest.mark.parametrize("conv", [False, True])
def test_layers_with_weights_beyond_halves_stay_in_float32_and_are_named(conv: bool) -> None:
    b = GraphBuilder("net")
    rng = np.random.default_rng(3)
    x = b.input("x", (1, 4, 5, 5) if conv else (6, 24), "float32")
    shapes = ((4, 4, 3, 3), (3, 4, 1, 1)) if conv else ((24, 16), (16, 8))
    first, second = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    first *= 1e5
    product = conv2d if conv else matmul
    y = b.add(product, x, b.constant(first))
    y = b.add(el.multiply, y, b.constant(np.float32(1e-5)))
    graph = b.finish({"y": b.add(product, y, b.constant(second))})
    large, small = (n for n in graph.nodes if n.function is product)
    with pytest.warns(UserWarning, match=f"net: {large.name} stay in float32") as seen:
        half = half_precision(graph)
    assert small.name not in str(seen[0].message)
    kinds = [[str(half.values[v].dtype) for v in n.inputs] for n in half.nodes
             if n.function is product]  # fmt: skip
    assert kinds == [["float32"] * 2, ["float16"] * 2]
    feeds = {"x": rng.standard_normal(graph.values["x"].shape).astype(np.float32)}
    got, want = (evaluate_graph(g, feeds)["y"] for g in (half, graph))
    assert np.abs(got - want).max() <= 2e-3 * np.abs(want).max()


def million(*shape: int) -> Array:
    return (np.random.default_rng(len(shape)).standard_normal(shape) * 1e6).astype("float32")


Layer = Callable[[GraphBuilder, Value], Value]
ROWS = {
    "a table": (lambda b, x: b.add(gather, number(b, million(9, 8)), x), np.arange(3)),
    "a table and a bias": (
        lambda b, x: b.add(el.add, b.add(gather, number(b, million(9, 8)), x), B=1.0), np.arange(3),
    ),
    "a bias": (lambda b, x: b.add(el.add, x, number(b, million(8))), SCORES),
    "rows behind others": (
        lambda b, x: b.add(concatenate, x, number(b, million(2, 8)), axis=0), SCORES,
    ),
    "a norm": (
        lambda b, x: b.add(layer_norm, x, number(b, million(8)), number(b, np.ones(8))), SCORES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_what_constants_beyond_halves_make_stays_in_float32(name: str) -> None:
    """Also in the product that reads it, which has weights that float16 holds."""
    make, array = ROWS[name]
    b = GraphBuilder("net")
    rows = make(b, b.input("x", array.shape, array.dtype.name))
    weights = RNG.standard_normal((8, 5)) * 1e-4
    y = b.add(matmul, b.add(el.relu, rows), number(b, weights), origin="product")
    graph = b.finish({"y": b.add(matmul, y, number(b, RNG.standard_normal((5, 8))))})
    with pytest.warns(UserWarning, match="product stay in float32, .* activations beyond 65504"):
        half = half_precision(graph)
    got, want = (evaluate_graph(g, {"x": array})["y"] for g in (half, graph))
    assert np.abs(got - want).max() <= 3e-3 * np.abs(want).max()
    notes = {n.name: (n.precision, n.why) for n in half.precision.layers}
    assert notes["product"] == ("float32", "activations beyond 65504")
    assert [n.precision for n in half.precision.layers][-1] == "float16"


@pytest.mark.parametrize("norm", ["layer", "group"])
def test_norms_with_weights_beyond_halves(norm: str) -> None:
    b = GraphBuilder("net")
    x = b.input("x", (2, 4, 3), "float32")
    n = 3 if norm == "layer" else 4
    scale, shift = number(b, million(n)), number(b, np.ones(n))
    if norm == "layer":
        y = b.add(layer_norm, x, scale, shift, origin="the norm")
    else:
        y = b.add(group_norm, x, scale, shift, groups=2, origin="the norm")
    graph = b.finish({"y": b.add(el.multiply, y, number(b, 1e-6))})
    with pytest.warns(UserWarning, match="net: the norm stay in float32, .* weights beyond"):
        half = half_precision(graph)
    feeds = {"x": RNG.standard_normal((2, 4, 3)).astype(np.float32)}
    got, want = (evaluate_graph(g, feeds)["y"] for g in (half, graph))
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


@pytest.mark.filterwarnings("error")
def test_masks_that_move_keep_no_layer_in_float32() -> None:
    b = GraphBuilder("net")
    x, at = b.input("x", (4, 8), "float32"), b.input("at", (4,), "int64")
    causal = np.where(np.tril(np.ones((9, 8))), 0.0, -1e9)
    y = b.add(softmax, b.add(el.add, x, b.add(gather, number(b, causal), at)))
    graph = b.finish({"y": b.add(matmul, y, number(b, RNG.standard_normal((8, 8))))})
    half = half_precision(graph)
    assert [n.precision for n in half.precision.layers] == ["float16"]
    (rows,) = (n for n in half.nodes if n.function is softmax)
    assert str(half.values[rows.inputs[0]].dtype) == "float16"
    feeds = {"x": SCORES, "at": np.array([0, 3, 8, 1])}
    got, want = (evaluate_graph(g, feeds)["y"] for g in (half, graph))
    np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)
