"""Quantised graphs as exporters state them: dequantize, an operator in float32, quantize. The pass
makes integer kernels of them, within one unit of what the float graph says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.passes.integers import IntegerKernels, integer_kernels_for
from tilesmith.graph.pipeline import PASSES, passes_for, run_passes
from tilesmith.ops.quantize import dequantize, quantize

RNG = np.random.default_rng


class Quantized:
    """A graph with float inputs that are quantised first, and results that are dequantised."""

    def __init__(self, kind: str) -> None:
        self.g = GraphBuilder("quantized", unfolded=(dequantize,))
        self.kind = np.dtype(kind)

    def number(self, x: float) -> Value:
        return self.g.constant(np.float32(x))

    def zero(self, x: int, kind: str = "") -> Value:
        return self.g.constant(np.array(x, kind or self.kind))

    def quantized(self, x: Value, scale: float, zero: int) -> Value:
        """x as what stands for it: quantised and dequantised."""
        s, z = self.number(scale), self.zero(zero)
        q = self.g.add(quantize, x, s, z, dtype=self.kind.name)
        return self.g.add(dequantize, q, s, z)

    def weights(self, shape: tuple[int, ...], axis: int | None = None) -> Value:
        w = self.g.constant(RNG(1).integers(-127, 128, shape).astype(np.int8))
        if axis is None:
            return self.g.add(dequantize, w, self.number(0.02), self.zero(0, "int8"))
        scale = RNG(2).uniform(0.01, 0.03, shape[axis]).astype(np.float32)
        zeros = np.zeros(shape[axis], np.int8)
        return self.g.add(dequantize, w, self.g.constant(scale), self.g.constant(zeros), axis=axis)

    def bias(self, count: int, scale: float) -> Value:
        b = self.g.constant(RNG(3).integers(-500, 500, count).astype(np.int32))
        return self.g.add(dequantize, b, self.number(scale), self.zero(0, "int32"))


ZERO = {"int8": -5, "uint8": 120}


def convolution(kind: str, axis: int | None) -> Graph:
    q = Quantized(kind)
    x = q.quantized(q.g.input("x", (1, 6, 7, 7), "float32"), 0.03, ZERO[kind])
    y = q.g.add(ts.ops.conv2d, x, q.weights((5, 6, 3, 3), axis), padding=((1, 1), (1, 1)), stride=2)
    y = q.g.add(ts.ops.bias_add, y, q.bias(5, 0.0006), axis=1)
    return q.g.finish({"y": q.quantized(q.g.add(ts.ops.relu, y), 0.05, ZERO[kind])})


def residual(kind: str, _: int | None) -> Graph:
    """Two convolutions and their sum, then pooling and a product: a small network."""
    q = Quantized(kind)
    x = q.quantized(q.g.input("x", (1, 4, 6, 6), "float32"), 0.03, ZERO[kind])
    one = q.quantized(q.g.add(ts.ops.conv2d, x, q.weights((4, 4, 1, 1))), 0.04, 3)
    two = q.g.add(ts.ops.conv2d, one, q.weights((4, 4, 3, 3)), padding=((1, 1), (1, 1)))
    total = q.g.add(ts.ops.add, q.quantized(two, 0.2, 1), one)
    y = q.quantized(q.g.add(ts.ops.relu, total), 0.15, ZERO[kind])
    y = q.quantized(q.g.add(ts.ops.max_pool2d, y, kernel=2), 0.15, ZERO[kind])
    y = q.g.add(ts.ops.reshape, y, shape=(1, 36))
    return q.g.finish({"y": q.quantized(q.g.add(ts.ops.matmul, y, q.weights((36, 3))), 1.5, 2)})


CASES: dict[str, Callable[[str, int | None], Graph]] = {
    "convolution": convolution, "residual": residual,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("activations", ["", "int8", "uint8"])
@pytest.mark.parametrize("name", CASES)
def test_the_same_within_one_unit(name: str, activations: str, kind: str) -> None:
    graph = CASES[name](kind, 0)
    x = {"x": RNG(0).standard_normal(graph.values["x"].shape).astype(np.float32)}
    want = evaluate_graph(graph, x)["y"]
    done = run_passes(graph, (IntegerKernels(activations), *PASSES[1:]))
    got = evaluate_graph(done, x)["y"]
    unit = {"convolution": 0.05, "residual": 1.5}[name]
    assert want.any()
    assert np.abs(got - want).max() <= 1.001 * unit
    assert np.mean(np.abs(got - want) > unit / 2) < 0.05
    sums = [n for n in done.nodes if n.op in ("conv2d", "matmul")]
    inside = activations or kind
    assert sums
    for n in sums:
        types = [done.values[v].dtype.name for v in (*n.inputs, *n.outputs)]
        assert types == [inside, "int8", "int32"]
    assert not any(n.op in ("dequantize", "quantize") for n in done.nodes)


@pytest.mark.parametrize("name", CASES)
def test_gpus_that_multiply_bytes(name: str) -> None:
    graph, h200 = CASES[name]("uint8", 0), ts.Target.named("nvidia-h200")
    x = {"x": RNG(0).standard_normal(graph.values["x"].shape).astype(np.float32)}
    done = run_passes(graph, passes_for(h200))
    unit = {"convolution": 0.05, "residual": 1.5}[name]
    assert (
        np.abs(evaluate_graph(done, x)["y"] - evaluate_graph(graph, x)["y"]).max() <= 1.001 * unit
    )
    sums = [n for n in done.nodes if n.op in ("conv2d", "matmul")]
    assert all(done.values[n.outputs[0]].dtype.name == "int32" for n in sums)
    assert all(n.setting("layout") == "NHWC" for n in sums if n.op == "conv2d")
    without = run_passes(graph, passes_for(replace(h200, arch="sm_75", cpu="sm_75")))
    assert any(n.op == "dequantize" for n in without.nodes)


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("activations", ["", "int8", "uint8"])
@pytest.mark.parametrize("zeros", [(100, -20), (0, 3), (7, 0), (0, 0)])
def test_products_of_two_computed_matrices(
    zeros: tuple[int, int], activations: str, transposed: tuple[bool, bool]
) -> None:
    """Zero points are corrected by sums of rows and columns: with powers of two for scales, bit for
    bit. Without zero points there is nothing to correct.
    """
    g = GraphBuilder("both", unfolded=(dequantize,))
    shapes = (2, 5, 7), (2, 7, 6)
    values = []
    for k, (name, kind) in enumerate((("a", "uint8"), ("b", "int8"))):
        *lead, m, n = shapes[k]
        x = g.input(name, (*lead, n, m) if transposed[k] else shapes[k], "float32")
        scale, zero = g.constant(np.float32(0.25)), g.constant(np.array(zeros[k], kind))
        q = g.add(quantize, x, scale, zero, dtype=kind)
        values.append(g.add(dequantize, q, scale, zero))
    turned = dict(zip(("transpose_a", "transpose_b"), transposed, strict=True))
    graph = g.finish({"y": g.add(ts.ops.batch_matmul, *values, **turned)})
    feeds = {
        x: (RNG(0).integers(-200, 200, graph.values[x].shape) / 8).astype(np.float32)
        for x in graph.inputs
    }
    done = run_passes(graph, (IntegerKernels(activations), *PASSES[1:]))
    want, got = (evaluate_graph(one, feeds)["y"] for one in (graph, done))
    np.testing.assert_array_equal(got, want)
    (product,) = [n for n in done.nodes if n.op == "batch_matmul"]
    assert done.values[product.outputs[0]].dtype.name == "int32"
    assert any(n.op == "reduce_sum" for n in done.nodes) == any(zeros)


@pytest.mark.parametrize("reals", [True, False])
def test_what_is_added_stays_float32_or_becomes_a_byte(reals: bool) -> None:
    """The same numbers either way: what an addition reads was rounded before."""
    graph = residual("uint8", None)
    x = RNG(7).standard_normal(graph.values["x"].shape).astype(np.float32)
    done = run_passes(graph, (IntegerKernels(reals=reals), *PASSES[1:]))
    (added,) = [n for n in done.nodes if n.op == "weighted_sum"]
    kinds = sorted(done.values[v].dtype.name for v in added.inputs[:2])
    assert kinds == (["float32", "uint8"] if reals else ["uint8", "uint8"])
    want, got = (evaluate_graph(one, {"x": x})["y"] for one in (graph, done))
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert integer_kernels_for(ts.Target.named("neoverse-n1")).reals
    assert not integer_kernels_for(ts.Target.named("cascadelake")).reals


def test_a_network_runs_as_kernels() -> None:
    graph = residual("int8", None)
    x = RNG(0).standard_normal(graph.values["x"].shape).astype(np.float32)
    model = ts.compile_model(graph, ts.cpu(num_cores=1), cache=None)
    want = evaluate_graph(run_passes(graph, passes_for(ts.cpu())), {"x": x})["y"]
    np.testing.assert_allclose(model({"x": x})["y"], want, atol=1.501)


def test_weights_alone_become_floats() -> None:
    """Nothing quantises the input, so the product is one of floats, with folded weights."""
    q = Quantized("int8")
    x = q.g.input("x", (2, 36), "float32")
    graph = q.g.finish({"y": q.g.add(ts.ops.matmul, x, q.weights((36, 3)))})
    done = run_passes(graph)
    assert [n.op for n in done.nodes] == ["matmul"]
    a = {"x": RNG(0).standard_normal((2, 36)).astype(np.float32)}
    want, got = evaluate_graph(graph, a)["y"], evaluate_graph(done, a)["y"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_the_sign_follows_the_target() -> None:
    def sign(name: str) -> str:
        return integer_kernels_for(ts.Target.named(name)).activations

    assert sign("neoverse-n1") == "int8"
    assert sign("cascadelake") == "uint8"
    assert sign("sapphirerapids") == sign("haswell") == ""
