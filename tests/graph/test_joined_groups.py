"""Attention as one group: where groups are joined, that the parts are those of the partition, and
that both ways compute the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.numpy_helper import from_array
from onnx.parser import parse_model
from small_graphs import feeds_of

import tilesmith as ts
from tilesmith.graph.alternatives import parts_of
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Value
from tilesmith.graph.joined_groups import JoinedGroups
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.partition import partition
from tilesmith.graph.pipeline import PASSES, run_passes
from tilesmith.graph.plan import plan
from tilesmith.ops.elementwise import add, multiply, relu
from tilesmith.ops.matmul import batch_matmul, matmul
from tilesmith.ops.norm import layer_norm, softmax
from tilesmith.ops.transform import reshape, transpose
from tilesmith.tune.partition_choice import offered

JOINED = JoinedGroups(partition)


def attention(
    heads: int = 2, queries: int = 17, keys: int = 33, depth: int = 20, *, mask: bool = False,
    returned: bool = False, twice: bool = False, flat: bool = False,
) -> ts.Graph:  # fmt: skip
    b = GraphBuilder("net")
    q, k, v = (
        b.add(transpose, b.input(n, (1, rows, heads, depth), "float32"), axes=(0, 2, 1, 3))
        for n, rows in (("q", queries), ("k", keys), ("v", keys))
    )
    s: Value = b.add(batch_matmul, q, b.add(transpose, k, axes=(0, 1, 3, 2)))
    s = b.add(multiply, s, b.constant(np.float32(0.25)))
    if mask:
        s = b.add(add, s, b.input("mask", (1, 1, queries, keys), "float32"))
    if flat:
        s = b.add(reshape, s, shape=(1, heads * queries, keys))
    p: Value = b.add(softmax, s)
    if flat:
        p = b.add(reshape, p, shape=(1, heads, queries, keys))
    y = b.add(transpose, b.add(batch_matmul, p, v), axes=(0, 2, 1, 3))
    outputs = {"y": y}
    if returned:
        outputs["p"] = p
    if twice:
        outputs["again"] = b.add(relu, s)
    return b.finish(outputs)


def ops(groups: tuple[ts.Group, ...]) -> list[list[str]]:
    return [[n.op for n in g.nodes if n.op not in ("transpose", "reshape")] for g in groups]


@pytest.mark.parametrize("mask", [False, True])
def test_attention_is_one_group(mask: bool) -> None:
    graph = run_passes(attention(mask=mask), PASSES)
    apart = partition(graph)
    (whole,) = JOINED(graph)
    assert ops((whole,)) == [
        ["batch_matmul", "multiply", *(["add"] if mask else []), "softmax", "batch_matmul"]
    ]
    assert whole.parts == apart == parts_of(graph, whole)
    assert set(whole.inputs) == set(graph.inputs) | {
        x for x in whole.inputs if x in graph.constants
    }
    assert len(plan(graph, (whole,)).steps) == 1


def test_what_stays_apart() -> None:
    for graph in (
        attention(returned=True),  # its weights are wanted
        attention(twice=True),  # its scores are read by others, too
        attention(flat=True),  # rows of another shape
    ):
        lowered = run_passes(graph, PASSES)
        assert JOINED(lowered) == partition(lowered)
    b = GraphBuilder("net")
    x = b.input("x", (8, 16), "float32")
    w = [b.constant(np.ones(s, np.float32)) for s in ((16, 16), (16,), (16, 4))]
    first = b.add(matmul, x, w[0])
    lone = b.finish({"y": b.add(layer_norm, first, w[1], w[1])})
    assert JOINED(lone) == partition(lone)


def test_groups_between_are_kept_in_order() -> None:
    """A layer before each operand, and one behind."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("net")
    x = b.input("x", (12, 16), "float32")

    def dense(value: Value) -> Value:
        out: Value = b.add(matmul, value, b.constant(rng.random((16, 16)).astype(np.float32)))
        return out

    q, k, v = (b.add(reshape, dense(x), shape=(1, 12, 16)) for _ in range(3))
    p = b.add(softmax, b.add(batch_matmul, q, b.add(transpose, k, axes=(0, 2, 1))))
    y = dense(b.add(reshape, b.add(batch_matmul, p, v), shape=(12, 16)))
    graph = run_passes(b.finish({"y": y}), PASSES)
    groups = JOINED(graph)
    assert [len(g.parts) for g in groups] == [0, 0, 0, 3, 0]
    assert len(plan(graph, groups).steps) == 5
    feeds = feeds_of(graph)
    model = ts.compile_model(graph, ts.cpu(1), groups=JOINED, cache=None, progress=False)
    np.testing.assert_allclose(
        model(feeds)["y"], evaluate_graph(graph, feeds)["y"], rtol=1e-4, atol=1e-4
    )


def test_gpus_join_by_rule_and_partitions_of_ones_own_stay() -> None:
    def own(graph: ts.Graph) -> tuple[ts.Group, ...]:
        return partition(graph)

    assert offered(partition, ts.cpu(1)) == JOINED
    gpu = offered(partition, ts.Target.named("nvidia-h200"))
    assert isinstance(gpu, JoinedGroups)
    assert gpu.wanted is not None  # only what stays in registers, and then always
    assert offered(own, ts.cpu(1)) is own


def always(graph: ts.Graph) -> tuple[ts.Group, ...]:
    """One kernel, whatever is faster."""
    return tuple(ts.Group(g.nodes, g.inputs, g.outputs) for g in JOINED(graph))


def never(graph: ts.Graph) -> tuple[ts.Group, ...]:
    return partition(graph)


@pytest.mark.parametrize(("groups", "count", "cores"), [(always, 1, 2), (never, 3, 1)])
def test_both_ways_compute_the_same(groups: Any, count: int, cores: int) -> None:
    graph = attention(3, mask=True)
    feeds = feeds_of(graph)
    model = ts.compile_model(graph, ts.cpu(cores), groups=groups, cache=None, progress=False)
    assert len(model.executors[0].kernels) == count
    want = evaluate_graph(graph, feeds)["y"]
    np.testing.assert_allclose(model(feeds)["y"], want, rtol=1e-4, atol=1e-5)


BERT = """<ir_version: 8, opset_import: ["" : 17]>
layer (float[1, 9, 24] x, float[1, 1, 1, 9] mask) => (float[1, 9, 24] y)
<int64[4] split = {0, 0, 3, 8}, int64[3] whole = {0, 0, 24}, float root = {2.8284}>
{
  q0 = MatMul(x, wq)  q1 = Add(bq, q0)  q2 = Reshape(q1, split)
  k0 = MatMul(x, wk)  k1 = Add(bk, k0)  k2 = Reshape(k1, split)
  v0 = MatMul(x, wv)  v1 = Add(bv, v0)  v2 = Reshape(v1, split)
  v = Transpose<perm = [0, 2, 1, 3]>(v2)
  q = Transpose<perm = [0, 2, 1, 3]>(q2)
  k = Transpose<perm = [0, 2, 3, 1]>(k2)
  s0 = MatMul(q, k)  s1 = Div(s0, root)  s2 = Add(s1, mask)
  p = Softmax<axis = -1>(s2)
  c0 = MatMul(p, v)
  c1 = Transpose<perm = [0, 2, 1, 3]>(c0)
  c = Reshape(c1, whole)
  o0 = MatMul(c, wo)  o1 = Add(bo, o0)
  y = Add(o1, x)
}
"""


def test_attention_as_onnx_exporters_write_it() -> None:
    proto = parse_model(BERT)
    rng = np.random.default_rng(0)
    for x in "qkvo":
        for name, shape in ((f"w{x}", (24, 24)), (f"b{x}", (24,))):
            array = rng.standard_normal(shape).astype(np.float32)
            proto.graph.initializer.append(from_array(array, name))
    graph: Any = ts.load_onnx(proto)
    lowered = run_passes(graph, PASSES)
    assert [len(g.parts) for g in JOINED(lowered)] == [0, 0, 0, 3, 0]
    feeds = feeds_of(graph)
    model = ts.compile_model(graph, ts.cpu(1), groups=always, cache=None, progress=False)
    np.testing.assert_allclose(
        model(feeds)["y"], evaluate_graph(graph, feeds)["y"], rtol=1e-3, atol=1e-3
    )
