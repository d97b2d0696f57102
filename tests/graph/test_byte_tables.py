"""Functions of one quantised value become tables, exactly, and are read as such."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.passes.byte_tables import byte_tables
from tilesmith.ops import elementwise as el
from tilesmith.ops.quantize import lookup, to_integers, to_reals

RNG = np.random.default_rng


class Chain:
    """Values of bytes and functions of them."""

    def __init__(self, kind: str) -> None:
        self.g, self.kind = GraphBuilder("chain"), kind
        self.zero = self.g.constant(np.array(3, kind))
        self.scale = self.g.constant(np.float32(0.05))
        self.x = self.g.input("x", (2, 7, 30), kind)

    def real(self, x: Value) -> Value:
        return self.g.add(to_reals, x, self.scale, self.zero)

    def rounded(self, x: Value) -> Value:
        return self.g.add(to_integers, x, self.scale, self.zero, dtype=self.kind)

    def done(self, **outputs: Value) -> Graph:
        return self.g.finish(outputs)


def gelu(kind: str) -> Graph:
    """As quantisers leave it: rounded between all steps, under two shapes."""
    c = Chain(kind)
    g, flat = c.g, c.g.add(ts.ops.reshape, c.x, shape=(14, 30))
    inner = c.rounded(g.add(el.erf, g.add(el.multiply, c.real(flat), B=0.7)))
    inner = c.rounded(g.add(el.add, c.real(inner), g.constant(np.float32(1))))
    return c.done(y=c.rounded(g.add(el.multiply, c.real(flat), c.real(inner))))


def shared(kind: str) -> Graph:
    """What lies inside of a chain is read by others, too."""
    c = Chain(kind)
    inner = c.rounded(c.g.add(el.tanh, c.real(c.x)))
    return c.done(y=c.rounded(c.g.add(el.exp, c.real(inner))), z=inner, w=c.real(inner))


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize(("make", "tables"), [(gelu, 1), (shared, 2)])
def test_chains_become_tables(make: Any, tables: int, kind: str) -> None:
    graph = make(kind)
    done = byte_tables(graph)
    assert [n.op for n in done.nodes].count("lookup") == tables
    assert not any(n.op in ("erf", "tanh", "exp", "to_integers") for n in done.nodes)
    x = np.resize(np.arange(256, dtype=np.uint8), (2, 7, 30)).view(kind)
    want, got = (evaluate_graph(one, {"x": x}) for one in (graph, done))
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


def test_what_stays_as_it_is() -> None:
    c = Chain("uint8")
    g = c.g
    other = g.input("other", (2, 7, 30), "uint8")
    rows = g.constant(RNG(0).random((30,), np.float32))
    short = c.rounded(g.add(el.relu, c.real(c.x)))
    two = c.rounded(g.add(el.multiply, g.add(el.erf, c.real(c.x)), c.real(other)))
    by_rows = c.rounded(g.add(el.multiply, g.add(el.erf, c.real(c.x)), rows))
    wider = c.rounded(
        g.add(el.add, g.add(el.erf, c.real(g.input("v", (30,), "uint8"))), c.real(short))
    )
    graph = c.done(a=short, b=two, c=by_rows, d=wider)
    assert byte_tables(graph) is graph


@pytest.mark.parametrize("lanes", [1, 4, 16, 32, 64, 96])
@pytest.mark.parametrize("kinds", [("uint8", "int8"), ("int8", "uint8")])
def test_kernels_read_tables(kinds: tuple[str, str], lanes: int) -> None:
    x = ts.placeholder((5, 200), dtype=kinds[0], name="x")
    table = ts.placeholder((256,), dtype=kinds[1], name="table")
    y = lookup(x, table, name="y")
    sch = ts.Schedule(ts.function([x, table, y], name="read"))
    if lanes > 1:
        sch.vectorize(sch.split(sch.loops("y")[-1], [None, lanes])[1])
    a = RNG(0).integers(0, 256, (5, 200)).astype(np.uint8)
    t = RNG(1).permutation(256).astype(np.uint8).view(kinds[1])
    got = ts.build(sch, ts.cpu(num_cores=1))(a.view(kinds[0]), t)
    np.testing.assert_array_equal(got, t[a])


def test_wrong_tables_are_refused() -> None:
    x = ts.placeholder((4,), dtype="uint8")
    with pytest.raises(ts.ExpressionError, match=r"lookup: table has shape \(255\); it must be"):
        lookup(x, ts.placeholder((255,), dtype="uint8"))
    with pytest.raises(ts.ExpressionError, match="X is float32; it must be int8 or uint8"):
        lookup(ts.placeholder((4,)), ts.placeholder((256,), dtype="uint8"))
