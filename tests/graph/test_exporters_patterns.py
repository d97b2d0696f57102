"""What exporters spell out becomes one operator, and only that."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import numpy as np
import pytest
from small_graphs import Array, Numbers, before_and_after, graph_of, ops_of, passed

from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Value
from tilesmith.graph.passes.patterns import exporters_patterns
from tilesmith.graph.pipeline import run_passes
from tilesmith.ops import elementwise as el
from tilesmith.ops.activation import hard_sigmoid, softplus
from tilesmith.ops.norm import layer_norm
from tilesmith.ops.reduce import reduce_max, reduce_mean, reduce_sum

Make = Callable[[GraphBuilder, Value], Any]


class Spelling:
    """Nodes as an exporter writes them: numbers are constants of one element."""

    def __init__(self, b: GraphBuilder, dtype: Any = "float32") -> None:
        self.b, self.dtype = b, dtype

    def of(self, v: Any) -> Value:
        if isinstance(v, Value):
            return v
        return self.b.constant(np.asarray(v, self.dtype))

    def __call__(self, function: Any, *values: Any, **settings: Any) -> Any:
        return self.b.add(function, *map(self.of, values), **settings)


def spelled(f: Callable[[Spelling, Value], Any], dtype: str = "float32") -> Make:
    return lambda b, x: f(Spelling(b, dtype), x)


def mean(s: Spelling, x: Any, axes: tuple[int, ...] = (-1,)) -> Any:
    return s(reduce_mean, x, axes=axes, keepdims=True)


GAMMA, BETA = Numbers(1).positive(6), Numbers(2)(6)


# PyTorch and ONNX Runtime's own functions
def layer_norm_of_torch(s: Spelling, x: Value, eps: float = 1e-5) -> Any:
    d = s(el.subtract, x, mean(s, x))
    std = s(el.sqrt, s(el.add, mean(s, s(el.power, d, B=2)), eps))
    return s(el.add, s(el.multiply, s(el.divide, d, std), GAMMA), BETA)


def layer_norm_by_reciprocal(s: Spelling, x: Value) -> Any:
    d = s(el.subtract, x, mean(s, x))
    std = s(el.sqrt, s(el.add, 1e-5, mean(s, s(el.multiply, d, d))))
    y = s(el.multiply, s(el.reciprocal, std), d)
    return s(el.add, BETA, s(el.multiply, GAMMA, y))


def layer_norm_gamma_first(s: Spelling, x: Value) -> Any:
    d = s(el.subtract, x, mean(s, x))
    inverse = s(el.power, s(el.add, mean(s, s(el.multiply, d, d)), 1e-6), B=-0.5)
    return s(el.add, s(el.multiply, d, s(el.multiply, inverse, GAMMA)), BETA)


def layer_norm_of_tensorflow(s: Spelling, x: Value) -> Any:
    m = mean(s, x)
    d = s(el.subtract, x, m)
    inverse = s(el.reciprocal, s(el.sqrt, s(el.add, mean(s, s(el.multiply, d, d)), 1e-3)))
    scale = s(el.multiply, inverse, GAMMA)
    return s(
        el.add, s(el.multiply, x, scale), s(el.subtract, BETA, s(el.multiply, m, scale))
    )  # fmt: skip


def rms_norm_of_llama(s: Spelling, x: Value) -> Any:
    square = mean(s, s(el.power, x, B=2))
    inverse = s(el.divide, 1.0, s(el.sqrt, s(el.add, square, 1e-6)))
    return s(el.multiply, GAMMA, s(el.multiply, x, inverse))


def rms_norm_by_division(s: Spelling, x: Value) -> Any:
    square = mean(s, s(el.multiply, x, x))
    return s(el.divide, x, s(el.sqrt, s(el.add, square, 1e-6)))


def gelu_by_erf(s: Spelling, x: Value) -> Any:
    inner = s(el.erf, s(el.divide, x, sqrt(2)))
    return s(el.multiply, s(el.multiply, x, s(el.add, inner, 1.0)), 0.5)


def gelu_half_first(s: Spelling, x: Value) -> Any:
    inner = s(el.erf, s(el.multiply, x, sqrt(0.5)))
    return s(el.multiply, s(el.multiply, 0.5, x), s(el.add, 1.0, inner))


def gelu_by_tanh(s: Spelling, x: Value) -> Any:
    cube = s(el.multiply, 0.044715, s(el.power, x, B=3))
    inner = s(el.multiply, sqrt(2 / pi), s(el.add, x, cube))
    return s(el.multiply, s(el.multiply, 0.5, x), s(el.add, 1.0, s(el.tanh, inner)))


def gelu_by_tanh_of_squares(s: Spelling, x: Value) -> Any:
    square = s(el.multiply, s(el.multiply, x, 0.044715), x)
    inner = s(el.multiply, s(el.multiply, x, sqrt(2 / pi)), s(el.add, 1.0, square))
    return s(el.multiply, x, s(el.multiply, 0.5, s(el.add, 1.0, s(el.tanh, inner))))


def silu(s: Spelling, x: Value) -> Any:
    return s(el.multiply, x, s(el.sigmoid, x))


def silu_by_exp(s: Spelling, x: Value) -> Any:
    return s(el.divide, x, s(el.add, 1.0, s(el.exp, s(el.negative, x))))


def quick_gelu(s: Spelling, x: Value) -> Any:
    return s(el.multiply, x, s(el.sigmoid, s(el.multiply, x, 1.702)))


def hard_swish(s: Spelling, x: Value) -> Any:
    inner = s(el.clip, s(el.add, x, 3.0), low=0.0, high=6.0)
    return s(el.divide, s(el.multiply, x, inner), 6.0)


def hard_swish_divided_inside(s: Spelling, x: Value) -> Any:
    inner = s(el.clip, s(el.add, x, 3.0), low=0.0, high=6.0)
    return s(el.multiply, x, s(el.divide, inner, 6.0))


def hard_swish_by_hard_sigmoid(s: Spelling, x: Value) -> Any:
    return s(el.multiply, x, s(hard_sigmoid, x, alpha=1 / 6, beta=0.5))


def mish(s: Spelling, x: Value) -> Any:
    return s(el.multiply, x, s(el.tanh, s(softplus, x)))


def softmax(s: Spelling, x: Value) -> Any:
    top = s(reduce_max, x, axes=(-1,), keepdims=True)
    e = s(el.exp, s(el.subtract, x, top))
    return s(el.divide, e, s(reduce_sum, e, axes=(-1,), keepdims=True))


def softmax_without_maximum(s: Spelling, x: Value) -> Any:
    e = s(el.exp, x)
    total = s(reduce_sum, e, axes=(1,), keepdims=True)
    return s(el.multiply, e, s(el.reciprocal, total))


@pytest.mark.parametrize(
    ("f", "ops"),
    [
        (layer_norm_of_torch, ["layer_norm"]),
        (layer_norm_by_reciprocal, ["layer_norm"]),
        (layer_norm_gamma_first, ["layer_norm"]),
        (layer_norm_of_tensorflow, ["layer_norm"]),
        (rms_norm_of_llama, ["rms_norm"]),
        (rms_norm_by_division, ["rms_norm"]),
        (gelu_by_erf, ["gelu"]),
        (gelu_half_first, ["gelu"]),
        (gelu_by_tanh, ["gelu"]),
        (gelu_by_tanh_of_squares, ["gelu"]),
        (silu, ["silu"]),
        (silu_by_exp, ["silu"]),
        (quick_gelu, ["swish"]),
        (hard_swish, ["hard_swish"]),
        (hard_swish_divided_inside, ["hard_swish"]),
        (hard_swish_by_hard_sigmoid, ["hard_swish"]),
        (mish, ["mish"]),
        (softmax, ["softmax"]),
        (softmax_without_maximum, ["softmax"]),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_a_spelling_becomes_one_operator(f: Any, ops: list[str]) -> None:
    graph = graph_of(spelled(f), 2, 4, 6)
    after = passed(graph, exporters_patterns)
    assert ops_of(after) == ops
    # Behind something, and in front of something, it is the same.
    around = graph_of(
        lambda b, x: b.add(el.relu, f(Spelling(b), b.add(el.multiply, x, x))), 2, 4, 6
    )
    assert ops_of(passed(around, exporters_patterns)) == ["multiply", *ops, "relu"]


@pytest.mark.parametrize("f", [gelu_by_erf, gelu_by_tanh, silu, hard_swish, layer_norm_of_torch])
def test_patterns_in_half_precision(f: Any) -> None:
    graph = graph_of(spelled(f, "float16"), 2, 4, 6, dtype="float16")
    assert len(passed(graph, exporters_patterns, tolerance=2e-2).nodes) == 1


def test_layer_norm_spelled_out(golden: Callable[[object], None]) -> None:
    golden(before_and_after(graph_of(spelled(layer_norm_of_torch), 2, 4, 6), exporters_patterns))


def test_gelu_spelled_out(golden: Callable[[object], None]) -> None:
    golden(before_and_after(graph_of(spelled(gelu_by_tanh), 2, 6), exporters_patterns))


def test_softmax_spelled_out(golden: Callable[[object], None]) -> None:
    golden(before_and_after(graph_of(spelled(softmax), 2, 6), exporters_patterns))


# what only looks like one
def wrong_constant(s: Spelling, x: Value) -> Any:
    inner = s(el.erf, s(el.divide, x, 1.5))
    return s(el.multiply, s(el.multiply, x, s(el.add, inner, 1.0)), 0.5)


def wrong_axis_of_the_mean(s: Spelling, x: Value) -> Any:
    d = s(el.subtract, x, mean(s, x, (1,)))
    return s(el.divide, d, s(el.sqrt, s(el.add, mean(s, s(el.power, d, B=2)), 1e-5)))


def cube_for_a_square(s: Spelling, x: Value) -> Any:
    return s(el.divide, x, s(el.sqrt, s(el.add, mean(s, s(el.power, x, B=4)), 1e-5)))


def sum_of_another(s: Spelling, x: Value) -> Any:
    e = s(el.exp, x)
    other = s(el.exp, s(el.absolute, x))
    return s(el.divide, e, s(reduce_sum, other, axes=(-1,), keepdims=True))


def maximum_of_another_axis(s: Spelling, x: Value) -> Any:
    """The maximum is over another axis, so it stays a subtraction in front of the softmax."""
    top = s(reduce_max, x, axes=(1,), keepdims=True)
    e = s(el.exp, s(el.subtract, x, top))
    return s(el.divide, e, s(reduce_sum, e, axes=(-1,), keepdims=True))


def sigmoid_of_another(s: Spelling, x: Value) -> Any:
    return s(el.multiply, x, s(el.sigmoid, s(el.relu, x)))


def wrong_clip(s: Spelling, x: Value) -> Any:
    inner = s(el.clip, s(el.add, x, 3.0), low=0.0, high=5.0)
    return s(el.divide, s(el.multiply, x, inner), 6.0)


@pytest.mark.parametrize(
    ("f", "never"),
    [
        (wrong_constant, "gelu"),
        (cube_for_a_square, "rms_norm"),
        (sum_of_another, "softmax"),
        (sigmoid_of_another, "silu"),
        (wrong_clip, "hard_swish"),
    ],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_what_only_looks_like_it_stays(f: Any, never: str) -> None:
    graph = graph_of(spelled(f), 2, 4, 6)
    after = passed(graph, exporters_patterns)
    assert never not in ops_of(after)
    assert len(after.nodes) == len(graph.nodes)


def test_the_part_that_fits_is_taken() -> None:
    after = passed(graph_of(spelled(maximum_of_another_axis), 2, 4, 6), exporters_patterns)
    assert ops_of(after) == ["reduce_max", "subtract", "softmax"]
    after = passed(graph_of(spelled(wrong_axis_of_the_mean), 2, 4, 6), exporters_patterns)
    assert ops_of(after) == ["reduce_mean", "subtract", "rms_norm"]


def test_what_somebody_reads_in_between_stays() -> None:
    def shared(s: Spelling, x: Value) -> Any:
        inner = s(el.erf, s(el.divide, x, sqrt(2)))
        return s(el.multiply, s(el.multiply, x, s(el.add, inner, 1.0)), 0.5), inner

    assert "gelu" not in ops_of(passed(graph_of(spelled(shared), 2, 6), exporters_patterns))

    def later(s: Spelling, x: Value) -> Any:
        """Another node reads the difference, and comes behind the norm."""
        d = s(el.subtract, x, mean(s, x))
        y = s(el.divide, d, s(el.sqrt, s(el.add, mean(s, s(el.power, d, B=2)), 1e-5)))
        return y, s(el.relu, d)

    after = passed(graph_of(spelled(later), 2, 6), exporters_patterns)
    assert sorted(ops_of(after)) == ["reduce_mean", "relu", "rms_norm", "subtract"]


def test_gamma_of_another_shape_stays_outside() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(layer_norm, x, axis=(-1,))
        return b.add(el.multiply, y, b.constant(Numbers()(4, 1)))

    assert ops_of(passed(graph_of(make, 2, 4, 6), exporters_patterns)) == ["layer_norm", "multiply"]


def divisor(*numbers: float) -> Array:
    return np.asarray(numbers, "float32")


@pytest.mark.parametrize(
    ("c", "op"),
    [
        (divisor(8.0), "multiply"),
        (divisor(4.0, 1.0, -0.5), "multiply"),
        (divisor(2.0**-126), "multiply"),
        (divisor(3.0), "divide"),
        (divisor(4.0, 7.0, -2.0), "divide"),
        (divisor(2.0**127), "divide"),
        (divisor(0.0), "divide"),
        (divisor(3e38), "divide"),
        (divisor(1e-40), "divide"),
        (divisor(np.inf, 1.0, 1.0), "divide"),
    ],
)
def test_division_by_a_constant(c: Array, op: str) -> None:
    graph = graph_of(lambda b, x: b.add(el.divide, x, b.constant(c)), 2, 3)
    assert ops_of(run_passes(graph, (exporters_patterns,))) == [op]
