"""Factors of a product's operands become a factor of its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from small_graphs import Numbers, before_and_after, graph_of, ops_of, passed

from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Value
from tilesmith.graph.passes.scales import scales_behind_products
from tilesmith.ops.elementwise import add, multiply, relu
from tilesmith.ops.matmul import batch_matmul, matmul
from tilesmith.ops.transform import transpose


def halves(b: GraphBuilder, x: Value, y: Value) -> Any:
    half = b.constant(np.asarray(0.5, x.dtype.numpy))
    turned = b.add(transpose, b.add(multiply, y, half), axes=(0, 2, 1))
    return b.add(batch_matmul, b.add(multiply, x, half), turned)


def test_both_operands_of_attention(golden: Callable[[object], None]) -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(relu, halves(b, x, b.add(relu, x)))

    golden(before_and_after(graph_of(make, 2, 3, 4), scales_behind_products))


def test_one_operand() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(matmul, b.add(multiply, x, B=3.0), b.constant(Numbers()(4, 5)))

    assert ops_of(passed(graph_of(make, 3, 4), scales_behind_products)) == ["matmul", "multiply"]


def unchanged(make: Callable[[GraphBuilder, Value], Any], *shape: int, **settings: Any) -> None:
    graph = graph_of(make, *shape, **settings)
    assert str(passed(graph, scales_behind_products, tolerance=5e-3)) == str(graph)


def test_half_precision_stays() -> None:
    unchanged(lambda b, x: halves(b, x, b.add(relu, x)), 2, 3, 4, dtype="float16")


def test_what_others_read_stays() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(multiply, x, B=3.0)
        return b.add(matmul, y, b.constant(Numbers()(4, 5))), b.add(relu, y)

    unchanged(make, 3, 4)


def test_a_square_of_a_scaled_matrix() -> None:
    """Both operands are one value, which only the product reads."""

    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(multiply, x, B=3.0)
        return b.add(matmul, y, y)

    assert ops_of(passed(graph_of(make, 4, 4), scales_behind_products)) == ["matmul", "multiply"]


def test_vectors_and_sums_stay() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        w = b.constant(Numbers()(4, 5))
        y = b.add(matmul, b.add(multiply, x, b.constant(Numbers(1)(4))), w)
        return y, b.add(matmul, b.add(add, x, B=3.0), w)

    unchanged(make, 3, 4)
