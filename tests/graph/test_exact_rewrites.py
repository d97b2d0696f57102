"""Passes keep values that a jump depends on, and numbers that are finite as the model has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_graphs import Array, Numbers, graph_of, ops_of, plainly_compiled

from tilesmith.base.target import Target
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph, Settings, Value
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.passes.batch_norm import fold_batch_norm
from tilesmith.graph.pipeline import PASSES, passes_for, run_passes
from tilesmith.ops import elementwise as el
from tilesmith.ops import logic
from tilesmith.ops.matmul import batch_matmul, matmul
from tilesmith.ops.norm import scale_shift
from tilesmith.ops.search import argmax
from tilesmith.ops.transform import pad, transpose

DIVISORS = np.arange(1, 200, dtype="float32")


def ran(graph: Graph, feeds: dict[str, Array]) -> dict[str, Array]:
    return plainly_compiled(graph, *PASSES)(feeds)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_quotient_of_whole_numbers_is_exact(dtype: str) -> None:
    c = DIVISORS.astype(dtype)

    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(el.floor, b.add(el.divide, x, b.constant(c)))

    graph = graph_of(make, c.size, dtype=dtype)
    for k in (1, 3, 7):
        got = ran(graph, {"x": c * np.asarray(k, dtype)})["y"]
        np.testing.assert_array_equal(got, np.full(c.size, k, dtype))


@pytest.mark.parametrize("c", [3.0, 41.0, 2.0**-4, -8.0, 2.0**127, 2.0**-126, 1e-40, 3e38, np.inf])
def test_division_by_any_constant_keeps_every_bit(c: float) -> None:
    x = np.ldexp(Numbers()(64, 4), np.arange(-140, 116, 4)[:, None]).astype("float32")
    x[0] = [0.0, -0.0, np.inf, np.nan]
    divisor = np.asarray(c, "float32")
    graph = graph_of(lambda b, v: b.add(el.divide, v, b.constant(divisor)), *x.shape)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(ran(graph, {"x": x})["y"], x / divisor)


JUMPS: dict[str, Callable[[GraphBuilder, Value], Any]] = {
    "floor": lambda b, y: b.add(el.floor, y),
    "cast": lambda b, y: b.add(el.cast, y, dtype="int32"),
    "comparison": lambda b, y: b.add(logic.equal, y, b.constant(np.float32(1))),
    "behind others": lambda b, y: b.add(el.ceil, b.add(el.relu, b.add(transpose, y, axes=(1, 0)))),
    "argmax": lambda b, y: b.add(argmax, y),
}


@pytest.mark.parametrize("name", JUMPS)
def test_a_product_in_front_of_a_jump_is_not_folded(name: str) -> None:
    """Sums of whole numbers are exact, and a folded factor would round each term."""
    n = 199

    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(matmul, x, b.constant(np.diag(DIVISORS)))
        return JUMPS[name](b, b.add(el.divide, y, b.constant(DIVISORS)))

    graph = graph_of(make, 2, n)
    feeds = {"x": np.ones((2, n), "float32")}
    want = evaluate_graph(graph, feeds)["y"]
    np.testing.assert_array_equal(ran(graph, feeds)["y"], want)


def test_powers_of_two_are_folded_in_front_of_a_jump() -> None:
    def make(b: GraphBuilder, x: Value, c: float = 0.125) -> Any:
        y = b.add(matmul, x, b.constant(Numbers()(4, 5)))
        return b.add(el.floor, b.add(el.multiply, y, B=c))

    assert ops_of(run_passes(graph_of(make, 3, 4), (fold_batch_norm,))) == ["matmul", "floor"]
    thirds = graph_of(lambda b, x: make(b, x, 1 / 3), 3, 4)
    assert ops_of(run_passes(thirds, (fold_batch_norm,))) == ["matmul", "multiply", "floor"]


def test_of_two_products_none_is_folded_if_one_rounds() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(matmul, x, b.constant(Numbers()(4, 5)))
        return b.add(el.floor, b.add(el.multiply, b.add(el.multiply, y, B=3.0), B=0.5))

    after = run_passes(graph_of(make, 3, 4), (fold_batch_norm,))
    assert ops_of(after) == ["matmul", "multiply", "multiply", "floor"]


def test_no_scale_makes_weights_denormal() -> None:
    """Denormal weights of half precision keep a few bits only."""
    w = Numbers()(4, 5).astype("float16")

    def make(b: GraphBuilder, x: Value) -> Any:
        small, zero = (b.constant(np.full(5, v, "float16")) for v in (2e-6, 0))
        return b.add(scale_shift, b.add(matmul, x, b.constant(w)), small, zero, axis=1)

    graph = graph_of(make, 3, 4, dtype="float16")
    x = (Numbers(1)(3, 4) * 1000).astype("float16")
    want = (x.astype("float64") @ w.astype("float64")) * float(np.float16(2e-6))
    got = evaluate_graph(run_passes(graph, (fold_batch_norm,)), {"x": x})["y"]
    np.testing.assert_allclose(got.astype("float64"), want, rtol=3e-3, atol=2e-7)


@pytest.mark.parametrize("target", ["neoverse-n1", "haswell", "nvidia-h200"])
def test_a_factor_stays_in_front_of_a_product_that_would_overflow(target: str) -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        small = b.constant(np.asarray(1e-12, "float32"))
        left = b.add(el.multiply, x, small)
        right = b.add(transpose, b.add(el.multiply, b.add(el.relu, x), small), axes=(0, 2, 1))
        return b.add(batch_matmul, left, right)

    graph = graph_of(make, 1, 2, 3)
    x: Array = np.full((1, 2, 3), 1e20, "float32")
    after = run_passes(graph, passes_for(Target.named(target)))
    got = evaluate_graph(after, {"x": x})["y"]
    np.testing.assert_allclose(got, np.full((1, 2, 2), 3e16), rtol=1e-5)


def test_equal_settings_that_mean_something_else_stay_apart() -> None:
    """0.0 and -0.0 are equal, and so are 1, 1.0 and True."""

    def make(b: GraphBuilder, x: Value) -> Any:
        fills = [b.add(pad, x, widths=((1, 0),), value=v) for v in (0.0, -0.0)]
        return *fills, b.add(pad, x, widths=((1, 0),), value=-0.0)

    graph = graph_of(make, 3)
    after = run_passes(graph, PASSES)
    assert len(after.nodes) == 2  # equal ones are made once
    feeds = {"x": np.ones(3, "float32")}
    got = ran(graph, feeds)
    assert [bool(np.signbit(got[f"y{k}"][0])) for k in range(3)] == [False, True, True]


def test_numbers_of_any_type_are_told_apart() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        return tuple(b.add(el.add, x, B=v) for v in (1, 1.0))

    graph = graph_of(make, 3, dtype="int32")
    assert [str(graph.values[v].dtype) for _, v in graph.outputs] == ["int32", "float32"]
    got = ran(graph, {"x": np.ones(3, "int32")})
    assert [a.dtype for a in got.values()] == ["int32", "float32"]


def test_nan_as_a_setting_is_itself() -> None:
    assert Settings.of({"B": float("nan")}) == Settings.of({"B": float("nan")})
    assert hash(Settings.of({"B": (0.0,)})) == hash(Settings.of({"B": [0.0]}))
    assert Settings.of({"B": (True,)}) != Settings.of({"B": (1,)})
