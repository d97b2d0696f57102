"""Groups that may be two kernels instead of one."""

from __future__ import annotations

import numpy as np

import tilesmith as ts
from tilesmith.graph.alternatives import parts_of
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.partition import partition
from tilesmith.graph.plan import plan
from tilesmith.ops.elementwise import add, gelu, relu
from tilesmith.ops.matmul import matmul
from tilesmith.ops.transform import transpose

RNG = np.random.default_rng(0)


def dense(function: object, turned: bool = False, residual: bool = False) -> ts.Graph:
    b = GraphBuilder("net")
    x = b.input("x", (6, 8), "float32")
    w = b.constant(RNG.standard_normal((8, 10)).astype(np.float32))
    c = b.constant(RNG.standard_normal((10,)).astype(np.float32))
    y = b.add(function, b.add(add, b.add(matmul, x, w), c))  # type: ignore[arg-type]
    if residual:
        y = b.add(add, y, b.input("r", (6, 10), "float32"))
    return b.finish({"y": b.add(transpose, y, axes=(1, 0)) if turned else y})


def test_a_costly_end_may_be_a_kernel_of_its_own() -> None:
    for graph in (dense(gelu), dense(gelu, residual=True), dense(gelu, turned=True)):
        groups = partition(graph)
        (group,) = groups
        parts = parts_of(graph, group)
        assert parts is not None
        head, tail = parts
        assert [n.op for n in head.nodes] == ["matmul", "add"]
        assert tail.nodes[0].op == "gelu"
        assert tail.outputs == group.outputs
        made = plan(graph, parts)  # every value is made before it is read
        assert len(made.steps) == 2
        assert {x for s in made.steps for x in s.group.inputs} >= set(group.inputs)


def test_cheap_ends_and_lone_functions_stay() -> None:
    graph = dense(relu)
    (group,) = partition(graph)
    assert parts_of(graph, group) is None
    b = GraphBuilder("net")
    lone = b.finish({"y": b.add(gelu, b.input("x", (4, 4), "float32"))})
    assert parts_of(lone, partition(lone)[0]) is None


def test_both_ways_compute_the_same() -> None:
    graph = dense(gelu, turned=True, residual=True)

    def divided(g: ts.Graph) -> tuple[ts.Group, ...]:
        return tuple(p for group in partition(g) for p in parts_of(g, group) or (group,))

    feeds = {
        k: RNG.standard_normal(s).astype(np.float32) for k, s in (("x", (6, 8)), ("r", (6, 10)))
    }
    model = ts.compile_model(graph, ts.cpu(1), groups=divided, cache=None, progress=False)
    assert len(model.executors[0].kernels) == 2
    np.testing.assert_allclose(
        model(feeds)["y"], evaluate_graph(graph, feeds)["y"], rtol=1e-4, atol=1e-5
    )
