"""What stands between an integer product and the quantize node behind it, and what reads quantised
values. Scales are powers of two, so that the passes must keep every bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.passes.integers import IntegerKernels
from tilesmith.graph.pipeline import PASSES, run_passes
from tilesmith.ops.quantize import dequantize, quantize

RNG = np.random.default_rng
F = np.float32
POWERS = np.exp2([1, -1, 2, 0]).astype(F)  # one for each of four channels
ODD = (0.375, 30.125, 10.25, 10.625)  # no multiples of the sums' scales


class Small:
    """An input that is quantised, four channels of weights with a scale each, and a result."""

    def __init__(self, *shape: int, kind: str = "uint8") -> None:
        self.g = GraphBuilder("small", unfolded=(dequantize,))
        self.kind = np.dtype(kind)
        self.x = self.stands_for(self.g.input("x", shape, "float32"), 0.25, 7)

    def number(self, x: Any) -> Value:
        return self.g.constant(np.asarray(x, F))

    def stands_for(self, x: Value, scale: float, zero: int) -> Value:
        s, z = self.number(scale), self.g.constant(np.array(zero, self.kind))
        q = self.g.add(quantize, x, s, z, dtype=self.kind.name)
        y: Value = self.g.add(dequantize, q, s, z)
        return y

    def weights(self, axis: int, *shape: int) -> Value:
        w = self.g.constant(RNG(1).integers(-1, 2, shape).astype(np.int8))
        y: Value = self.g.add(dequantize, w, self.number(POWERS), axis=axis)
        return y

    def ended(self, y: Value, scale: float = 0.5, zero: int = 5) -> Graph:
        return self.g.finish({"y": self.stands_for(y, scale, zero)})


def conv(s: Small) -> Value:
    w = s.weights(0, 4, 3, 3, 1)
    y: Value = s.g.add(ts.ops.conv2d, s.x, w, padding=((1, 1), (0, 0)))
    return y


def conv_reshaped(*shape: int) -> Callable[[], Graph]:
    """The result of the convolution is of shape (1, 4, 4, 5)."""

    def made() -> Graph:
        s = Small(1, 3, 4, 5)
        return s.ended(s.g.add(ts.ops.reshape, conv(s), shape=shape))

    return made


def conv_with_bias(bias: Any, axis: int, *shape: int) -> Callable[[], Graph]:
    def made() -> Graph:
        s = Small(1, 3, 4, 4)
        y = conv(s)
        y = s.g.add(ts.ops.reshape, y, shape=shape) if shape else y
        return s.ended(s.g.add(ts.ops.bias_add, y, s.number(bias), axis=axis))

    return made


def matmul_reshaped(*shape: int) -> Callable[[], Graph]:
    """The product is of shape (4, 4)."""

    def made() -> Graph:
        s = Small(4, 6)
        y = s.g.add(ts.ops.matmul, s.x, s.weights(1, 6, 4))
        y = s.g.add(ts.ops.bias_add, y, s.number(ODD), axis=1)
        return s.ended(s.g.add(ts.ops.reshape, y, shape=shape))

    return made


def transposed_weights() -> Graph:
    s = Small(2, 6)
    w = s.g.add(ts.ops.transpose, s.weights(0, 4, 6))
    return s.ended(s.g.add(ts.ops.matmul, s.x, w))


def scales_of_rows() -> Graph:
    """One for each place that is summed over: no integers can be summed."""
    s = Small(2, 4)
    return s.ended(s.g.add(ts.ops.matmul, s.x, s.weights(0, 4, 4)))


def sum_of_halves() -> Graph:
    s = Small(4, 5)
    return s.ended(s.g.add(ts.ops.add, s.x, s.x), scale=1, zero=3)


def names_of_moved_values() -> Graph:
    """Values that passes make get names that values of the model have, too."""
    s = Small(2, 3, 4)
    y = s.g.add(ts.ops.reshape, s.x, shape=(6, 4), name="reshape")
    y = s.g.add(ts.ops.slice_, y, starts=(2, 0), stops=(4, 4), name="reshape")
    y = s.g.add(ts.ops.reshape, y, shape=(4, 2), name="reshape")
    return s.ended(s.g.add(ts.ops.matmul, y, s.weights(1, 2, 4)))


CASES: dict[str, tuple[Callable[[], Graph], str]] = {
    "channels joined with rows": (conv_reshaped(1, 16, 5), "int32"),
    "channels split": (conv_reshaped(2, 2, 4, 5), "int32"),
    "channels alone": (conv_reshaped(4, 20), "int32"),
    "channels moved by one": (conv_reshaped(1, 1, 4, 20), "int32"),
    "a bias of floats": (conv_with_bias(ODD, 1), "int32"),
    "a bias along rows": (conv_with_bias(ODD, 2), "int32"),
    "a bias along rows of a reshape": (conv_with_bias(ODD, 1, 4, 4, 4), "int32"),
    "a bias behind a reshape": (conv_with_bias(ODD, 0, 4, 16), "int32"),
    "columns kept": (matmul_reshaped(2, 2, 4), "int32"),
    "columns flat": (matmul_reshaped(16), "int32"),
    "columns mixed up": (matmul_reshaped(1, 2, 8), "int32"),
    "transposed weights": (transposed_weights, "int32"),
    "scales of rows": (scales_of_rows, ""),
    "movements": (names_of_moved_values, "int32"),
    "halves and an odd zero point": (sum_of_halves, ""),
}


@pytest.mark.parametrize("activations", ["", "int8", "uint8"])
@pytest.mark.parametrize("name", CASES)
def test_the_same_bit_for_bit(name: str, activations: str) -> None:
    make, sums = CASES[name]
    graph = make()
    x = (RNG(0).integers(-9, 30, graph.values["x"].shape) / 8).astype(F)
    want = evaluate_graph(graph, {"x": x})["y"]
    done = run_passes(graph, (IntegerKernels(activations), *PASSES[1:]))
    np.testing.assert_array_equal(evaluate_graph(done, {"x": x})["y"], want)
    made = [
        done.values[n.outputs[0]].dtype.name for n in done.nodes if n.op in ("conv2d", "matmul")
    ]
    assert made == [sums or "float32"] * len(made)


def no_zero_point(s: Small, q: Value, scale: Value) -> Value:
    y: Value = s.g.add(dequantize, q, scale)
    return y


def one_for_each_channel(s: Small, q: Value, scale: Value) -> Value:
    zeros = s.g.constant(np.array([0, 3, 100], q.dtype.numpy))
    y: Value = s.g.add(dequantize, q, s.number([1, 2, 4]), zeros, axis=1)
    return y


def one_for_each_block(s: Small, q: Value, scale: Value) -> Value:
    zeros = s.g.constant(np.full((2, 2), 9, q.dtype.numpy))
    y: Value = s.g.add(dequantize, q, s.number([[1, 2], [4, 8]]), zeros, axis=1, block=2)
    return y


def half_precision(s: Small, q: Value, scale: Value) -> Value:
    y: Value = s.g.add(dequantize, q, scale, dtype="float16")
    return y


def as_a_zero_point(s: Small, q: Value, scale: Value) -> Value:
    flat = s.g.constant(np.arange(6, dtype=q.dtype.numpy))
    zeros = s.g.add(ts.ops.reshape, q, shape=(6,))
    y: Value = s.g.add(dequantize, flat, s.number(np.ones(6)), zeros, axis=0)
    return y


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("activations", ["", "int8", "uint8"])
@pytest.mark.parametrize(
    "read",
    [no_zero_point, one_for_each_channel, one_for_each_block, half_precision, as_a_zero_point],
)
def test_whoever_reads_a_quantised_value(
    read: Callable[[Small, Value, Value], Value], activations: str, kind: str
) -> None:
    """Its type and zero point are moved only if all that read it can be moved along."""
    s = Small(2, 3, kind=kind)
    scale = s.number(0.25)
    q = s.g.add(quantize, s.x, scale, s.g.constant(np.array(4, kind)), dtype=kind)
    graph = s.g.finish({"y": read(s, q, scale), "z": s.g.add(dequantize, q, scale)})
    x = {"x": (RNG(0).integers(-99, 100, (2, 3)) / 8).astype(F)}
    want = evaluate_graph(graph, x)
    got = evaluate_graph(run_passes(graph, (IntegerKernels(activations), *PASSES[1:])), x)
    for name, a in want.items():
        np.testing.assert_array_equal(got[name], a)


def test_a_scale_of_one_block() -> None:
    g = GraphBuilder("block", unfolded=(dequantize,))
    one = g.constant(np.full((1, 1), 0.5, F))
    y = g.add(quantize, g.input("x", (1, 3), "float32"), one, axis=1, block=3)
    graph = g.finish({"y": g.add(dequantize, y, one, axis=1, block=3)})
    x = {"x": np.array([[1, 2.3, 300]], F)}
    assert evaluate_graph(run_passes(graph), x)["y"].tolist() == [[1, 2.5, 127.5]]


def test_sums_that_do_not_fit_into_int32_are_floats() -> None:
    g = GraphBuilder("long", unfolded=(dequantize,))
    one, zero = g.constant(F(1)), g.constant(np.uint8(0))
    q = g.add(dequantize, g.add(quantize, g.input("x", (1, 70000), "float32"), one, zero), one)
    w = g.add(dequantize, g.constant(np.full((70000, 1), 127, np.int8)), one)
    y = g.add(ts.ops.matmul, q, w)
    graph = g.finish({"y": g.add(quantize, y, g.constant(F(2**25)), zero)})
    assert evaluate_graph(run_passes(graph), {"x": np.full((1, 70000), 255, F)})["y"].item() == 68
