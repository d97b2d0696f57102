"""`ts.quantize`: what it makes of networks, what it says of layers, and what it refuses."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.pipeline import passes_for, run_passes
from tilesmith.graph.quantization.scales import Extremes, Range, weight_scale
from tilesmith.ops.elementwise import clip

pytestmark = pytest.mark.usefixtures("short_drafts")
RNG = np.random.default_rng
Array = np.ndarray[Any, Any]


def normal(seed: int, *shape: int, scale: float = 1.0) -> Array:
    return np.asarray(RNG(seed).standard_normal(shape) * scale, np.float32)


def filters(b: GraphBuilder, seed: int, *shape: int) -> Value:
    return b.constant(normal(seed, *shape, scale=(2 / np.prod(shape[1:])) ** 0.5), "w")


def network() -> Graph:
    """Convolutions, a depthwise one and a residual, with pooling and a product at the end."""
    b = GraphBuilder("small")
    x = b.input("x", (1, 3, 12, 12), "float32")
    y = b.add(ts.ops.conv2d, x, filters(b, 1, 8, 3, 3, 3), padding=1)
    y = b.add(clip, b.add(ts.ops.bias_add, y, b.constant(normal(2, 8))), low=0.0, high=6.0)
    y = b.add(ts.ops.max_pool2d, y, kernel=2)
    z = b.add(ts.ops.depthwise_conv2d, y, filters(b, 3, 8, 1, 3, 3), padding=1)
    z = b.add(ts.ops.conv2d, b.add(ts.ops.relu, z), filters(b, 4, 8, 8, 1, 1))
    y = b.add(ts.ops.relu, b.add(ts.ops.add, z, y))
    y = b.add(ts.ops.conv2d, y, filters(b, 5, 6, 4, 3, 3), groups=2, stride=2)
    y = b.add(ts.ops.reshape, b.add(ts.ops.global_avg_pool2d, y), shape=(1, 6))
    return b.finish({"y": b.add(ts.ops.dense, y, filters(b, 6, 5, 6), b.constant(normal(7, 5)))})


def attention() -> Graph:
    b = GraphBuilder("attention")
    x = b.input("x", (9, 16), "float32")
    q, k, v = (
        b.add(ts.ops.transpose, b.add(ts.ops.reshape, b.add(ts.ops.matmul, x, w), shape=(9, 2, 8)),
              axes=(1, 0, 2))
        for w in (filters(b, s, 16, 16) for s in (1, 2, 3))
    )  # fmt: skip
    scores = b.add(ts.ops.batch_matmul, q, k, transpose_b=True)
    shares = b.add(ts.ops.softmax, b.add(ts.ops.multiply, scores, B=0.1))
    y = b.add(ts.ops.transpose, b.add(ts.ops.batch_matmul, shares, v), axes=(1, 0, 2))
    y = b.add(ts.ops.matmul, b.add(ts.ops.reshape, y, shape=(9, 16)), filters(b, 4, 16, 16))
    return b.finish({"y": b.add(ts.ops.add, x, y)})


def feeds(graph: Graph, count: int = 20) -> list[dict[str, Array]]:
    return [{"x": normal(10 + k, *graph.values["x"].shape)} for k in range(count)]


def relative(got: Array, want: Array) -> float:
    return float(np.sqrt(np.square(got - want).mean() / np.square(want).mean()))


def quantized(graph: Graph, **options: Any) -> Graph:
    return ts.quantize(graph, feeds(graph), target=ts.cpu(num_cores=1), cache=None, **options)


@pytest.mark.parametrize("make", [network, attention])
def test_networks_in_integers(make: Any) -> None:
    graph = make()
    q = quantized(graph)
    x = feeds(graph, 21)[-1]  # not one of the calibration
    want = evaluate_graph(graph, x)["y"]
    assert relative(evaluate_graph(q, x)["y"], want) < 0.04
    low = run_passes(q, passes_for(ts.cpu()))
    sums = [n for n in low.nodes if n.op in ("conv2d", "depthwise_conv2d", "dense", "matmul",
                                            "batch_matmul")]  # fmt: skip
    assert len(sums) == len(q.layers) == 6 - (make is network)
    assert all(low.values[n.outputs[0]].dtype.name == "int32" for n in sums)
    if make is network:  # and nothing in between is stored in float32, but for the last results
        rounded = [n for n in low.nodes if n.op.startswith("requantize")]
        assert [n.op for n in rounded] == ["requantize", "requantize", "requantize_sum"]
    assert all(note.precision == "int8" and 0 < note.error < 0.03 for note in q.layers)
    model = ts.compile_model(q, ts.cpu(num_cores=1), cache=None)
    np.testing.assert_allclose(model(x)["y"], evaluate_graph(low, x)["y"], rtol=1e-5, atol=1e-5)


def product(rows: int, length: int, weights: Array) -> Graph:
    b = GraphBuilder("product")
    x = b.input("x", (rows, length), "float32")
    return b.finish({"y": b.add(ts.ops.matmul, x, b.constant(weights))})


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("length", [1, 7, 64, 1000])
@pytest.mark.parametrize("kind", ["normal", "uniform", "positive", "heavy", "constant"])
def test_the_stated_bound(kind: str, length: int, scale: float) -> None:
    """docs/accuracy.md: half a step of x for each weight, half a step of w for each x."""
    rng = RNG(length)
    draws = {
        "normal": rng.standard_normal, "uniform": lambda s: rng.uniform(-1, 1, s),
        "positive": rng.random, "heavy": lambda s: rng.standard_t(2, s), "constant": np.ones,
    }  # fmt: skip
    x, w = ((draws[kind](s) * scale).astype(np.float32) for s in ((4, length), (length, 3)))
    graph = product(4, length, w)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        q = quantize_by(graph, [{"x": x}])
    got = evaluate_graph(run_passes(q, passes_for(ts.cpu())), {"x": x})["y"]
    of_x = float(Range(float(x.min()), float(x.max())).scale(False).scale)
    of_w = weight_scale(w, 1).scale.astype(np.float64)
    wide = x.astype(np.float64), w.astype(np.float64)
    bound = of_x / 2 * np.abs(wide[1]).sum(0) + np.abs(wide[0]).sum(1, keepdims=True) * of_w / 2
    bound = bound + length * of_x * of_w / 4
    error = np.abs(got - wide[0] @ wide[1])
    assert (error <= 1.001 * bound + 1e-6 * np.abs(wide[0] @ wide[1]).max()).all()


def quantize_by(graph: Graph, given: Any, **options: Any) -> Graph:
    return ts.quantize(graph, given, target=ts.cpu(num_cores=1), cache=None, **options)


def test_layers_that_lose_too_much_are_named() -> None:
    b = GraphBuilder("outlier")
    x = b.input("x", (4, 32), "float32")
    far = np.zeros(32, np.float32)
    far[0] = 3e4  # one column of its input is far larger than the others, and hardly used
    y = b.add(ts.ops.add, b.add(ts.ops.relu, x), b.constant(far))
    w = normal(1, 32, 8)
    w[0] = 1e-6
    y = b.add(ts.ops.matmul, y, b.constant(w))
    graph = b.finish({"y": b.add(ts.ops.matmul, b.add(ts.ops.relu, y), filters(b, 2, 8, 8))})
    with pytest.warns(
        UserWarning, match=r"1 layers stay in float32: matmul.*int8 would lose .* more"
    ):
        q = quantized(graph)
    assert [n.precision for n in q.layers] == ["float32", "int8"]
    x_ = feeds(graph)[0]
    assert relative(evaluate_graph(q, x_)["y"], evaluate_graph(graph, x_)["y"]) < 0.02
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = quantized(graph, keep=[q.layers[0].name], max_error=10)
    assert [n.precision for n in kept.layers] == ["float32", "int8"]
    with pytest.raises(ts.ArgumentError, match="keep names 'conv9', which is no layer"):
        quantized(graph, keep=["conv9"])


def test_a_layer_whose_inputs_are_not_finite() -> None:
    b = GraphBuilder("infinite")
    x = b.input("x", (4, 8), "float32")
    y = b.add(ts.ops.exp, b.add(ts.ops.multiply, x, B=1e4))
    graph = b.finish({"y": b.add(ts.ops.matmul, y, filters(b, 2, 8, 8))})
    with pytest.warns(UserWarning, match="not finite on the calibration inputs"):
        q = quantized(graph)
    assert [n.precision for n in q.layers] == ["float32"]
    assert not any(n.op == "quantize" for n in q.nodes)


def test_a_layer_that_saw_nothing_but_zeros() -> None:
    """No scale follows from them, and none of its losses could be seen."""
    b = GraphBuilder("dark")
    x = b.input("x", (4, 8), "float32")
    y = b.add(ts.ops.relu, b.add(ts.ops.matmul, x, filters(b, 1, 8, 8)))
    graph = b.finish({"y": b.add(ts.ops.matmul, y, filters(b, 2, 8, 8))})
    with pytest.warns(UserWarning, match="2 layers stay in .* all 0 on the calibration inputs"):
        q = ts.quantize(graph, [{"x": np.zeros((4, 8), np.float32)}], cache=None)
    assert [n.precision for n in q.layers] == ["float32"] * 2
    right = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    want, got = (evaluate_graph(one, {"x": right})["y"] for one in (graph, q))
    np.testing.assert_array_equal(got, want)


def test_percentiles_clip_outliers() -> None:
    w = normal(1, 64, 8)
    x = normal(2, 100, 64)
    x[7, 3] = 2000.0
    graph = product(100, 64, w)
    with pytest.warns(UserWarning, match="int8 would lose .* more than 0.1"):
        quantize_by(graph, [{"x": x}], max_error=0.1)
    (note,) = quantize_by(graph, [{"x": x}], percentile=99.9, max_error=1).layers
    q = quantize_by(graph, [{"x": x}], percentile=99.9, max_error=1)
    got, want = (evaluate_graph(g, {"x": x})["y"] for g in (q, graph))
    assert relative(np.delete(got, 7, 0), np.delete(want, 7, 0)) < 0.03
    assert note.precision == "int8"


def test_extremes_of_several_arrays() -> None:
    arrays = [normal(k, 7, 11) for k in range(5)]
    every = np.sort(np.concatenate([a.ravel() for a in arrays]))
    for percentile, left_out in ((100.0, 0), (99.0, 4), (90.0, 39), (51.0, 189)):
        ends = Extremes(percentile, len(arrays))
        for a in arrays:
            ends.add(a)
        assert ends.range() == Range(every[left_out], every[-1 - left_out])
    ends = Extremes(99.0, 2)
    ends.add(np.array([0.0, np.nan], np.float32))
    ends.add(arrays[0])
    assert not ends.range().is_finite


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], r"calibration of product is empty; give some typical inputs, as \[\{'x': array\}\]"),
        ([{"y": 0}], r"calibration\[0\] of product has no input 'y'; its inputs are x"),
        ([{}], r"calibration\[0\] of product is not given 'x'"),
        ([{"x": np.zeros((4, 9), np.float32)}], r"calibration\[0\] of product: input x: .*shape"),
        ([{"x": np.zeros((4, 8))}], r"calibration\[0\] of product: input x: .*as float64; pass"),
        (
            [{"x": np.full((4, 8), np.nan, np.float32)}],
            "input 'x' holds numbers that are not finit",
        ),
    ],
)
def test_refused_calibration(given: Any, why: str) -> None:
    with pytest.raises(ts.ArgumentError, match=why):
        quantize_by(product(4, 8, normal(1, 8, 2)), given)


def test_refused_settings() -> None:
    graph = product(4, 8, normal(1, 8, 2))
    for options, why in (({"percentile": 40.0}, "percentile"), ({"max_error": -1.0}, "max_error")):
        with pytest.raises(ts.ArgumentError, match=why):
            quantized(graph, **options)
    with pytest.raises(ts.GraphError, match="is quantised already"):
        quantized(quantized(graph))
