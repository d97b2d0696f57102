"""Running a plan: threads, odd inputs, odd outputs, odd shapes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from small_graphs import Array, Numbers, assert_close, feeds_of, graph_of, plainly_compiled

from tilesmith.base.errors import GraphError
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.pipeline import PASSES
from tilesmith.ops.elementwise import add, cast, multiply, relu, tanh
from tilesmith.ops.logic import greater, logical_not
from tilesmith.ops.matmul import matmul
from tilesmith.ops.norm import softmax
from tilesmith.ops.reduce import reduce_max, reduce_sum
from tilesmith.ops.transform import concatenate, reshape, transpose
from tilesmith.ops.views import slice_


def layered(b: GraphBuilder, x: Value) -> Any:
    """A chain that keeps arrays in the arena for some steps."""
    n = Numbers()
    y = x
    for _ in range(3):
        z = b.add(tanh, b.add(matmul, y, b.constant(n(16, 16))))
        y = b.add(softmax, b.add(add, y, z))
    return y


def right(graph: Graph, feeds: dict[str, Array] | None = None) -> dict[str, Array]:
    """The outputs of a compiled graph, which are those of the oracle."""
    given = feeds_of(graph) if feeds is None else feeds
    got = plainly_compiled(graph, *PASSES)(given)
    assert_close(got, evaluate_graph(graph, given), 1e-4 if "float16" not in str(graph) else 5e-3)
    return got


def test_many_threads_at_once() -> None:
    graph = graph_of(layered, 16, 16)
    run = plainly_compiled(graph, *PASSES)
    feeds = [feeds_of(graph, seed) for seed in range(8)]
    wanted = [evaluate_graph(graph, f) for f in feeds]
    begin = threading.Barrier(8)

    def work(k: int) -> None:
        begin.wait()
        for _ in range(30):
            assert_close(run(feeds[k]), wanted[k], 1e-4)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, k) for k in range(8)]:
            done.result()


def test_a_bound_model_sees_new_contents_and_writes_the_same_outputs() -> None:
    """One output is the input itself, which is copied after the kernels have run."""

    def both(b: GraphBuilder, x: Value) -> Any:
        return layered(b, x), x

    graph = graph_of(both, 16, 16)
    run = plainly_compiled(graph, *PASSES)
    (name,) = (feeds := feeds_of(graph, 1))
    call = run.bind(feeds)
    first = call()
    for seed in (2, 3):
        feeds[name][...] = feeds_of(graph, seed)[name]
        got = call()
        assert all(got[k] is first[k] for k in first)
        assert_close(got, evaluate_graph(graph, feeds), 1e-4)
    with pytest.raises(GraphError, match=f"C-contiguous arrays, and not so is {name}"):
        run.bind({name: feeds[name].T})


def test_results_are_the_callers() -> None:
    graph = graph_of(layered, 16, 16)
    run = plainly_compiled(graph, *PASSES)
    first = run(feeds_of(graph, 1))["y"]
    kept = first.copy()
    run(feeds_of(graph, 2))
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize(
    "change",
    [
        lambda a: np.asfortranarray(a),
        lambda a: np.repeat(a, 2, axis=1)[:, ::2],
        lambda a: a[::-1].copy()[::-1],
        lambda a: np.frombuffer(b"\0" + a.tobytes(), np.float32, offset=1).reshape(a.shape),
        lambda a: np.broadcast_to(a[:1], a.shape),
    ],
    ids=["fortran", "strided", "reversed", "misaligned", "repeated"],
)
def test_inputs_that_do_not_lie_as_kernels_read(change: Any) -> None:
    graph = graph_of(layered, 16, 16)
    right(graph, {"x": change(feeds_of(graph)["x"])})


def test_inputs_are_not_written() -> None:
    graph = graph_of(lambda b, x: b.add(relu, b.add(relu, x)), 5)
    x = feeds_of(graph)["x"]
    kept = x.copy()
    x.flags.writeable = False
    right(graph, {"x": x})
    np.testing.assert_array_equal(x, kept)


def test_outputs_that_nothing_computes() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(tanh, x)
        turned = b.add(reshape, y, shape=(3, 2))
        constant = b.constant(Numbers()(2, 2))
        part = b.add(slice_, y, starts=(1, 0), stops=(2, 3))
        given = b.add(reshape, x, shape=(6,))
        return x, constant, y, y, turned, part, given

    graph = graph_of(make, 2, 3)
    feeds = feeds_of(graph)
    got = right(graph, feeds)
    arrays = list(got.values())
    for k, a in enumerate(arrays):  # each is an array of its own
        assert not np.shares_memory(a, feeds["x"])
        assert not any(np.shares_memory(a, b) for b in arrays[:k])
    # Non-contiguous, an input is still returned as it is.
    right(graph, {"x": np.asfortranarray(feeds["x"])})


def test_a_graph_without_kernels() -> None:
    right(graph_of(lambda b, x: x, 2, 3))


def test_rank_0() -> None:
    right(graph_of(lambda b, x: b.add(relu, x)))
    right(graph_of(lambda b, x: (b.add(reduce_sum, x), b.add(tanh, b.add(reduce_sum, x))), 2, 3))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_empty_arrays(shape: tuple[int, ...]) -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(tanh, x)
        return y, b.add(reduce_sum, y, axes=(0,)), b.add(reshape, y, shape=(0, 5)), x

    right(graph_of(make, *shape))


def test_an_empty_part_of_a_concatenation() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        none = b.add(slice_, x, starts=(0, 0), stops=(0, 3))
        return b.add(concatenate, b.add(relu, x), b.add(tanh, none), b.add(tanh, x), axis=0)

    right(graph_of(make, 2, 3))


def test_bool() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        positive = b.add(greater, x, b.constant(np.zeros((), "float32")))
        both = b.add(concatenate, positive, b.add(logical_not, positive), axis=1)
        return both, b.add(transpose, positive), b.add(reduce_max, positive, axes=(1,))

    right(graph_of(make, 3, 4))


def test_half_precision() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        w = b.constant(Numbers()(8, 4, dtype="float16"))
        y = b.add(matmul, x, w)
        wide = b.add(cast, b.add(multiply, y, y), dtype="float32")
        return b.add(concatenate, b.add(relu, y), b.add(tanh, y), axis=1), wide

    right(graph_of(make, 4, 8, dtype="float16"))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float64"])
def test_other_types(dtype: str) -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(add, x, x), b.add(transpose, b.add(multiply, x, x))

    right(graph_of(make, 3, 4, dtype=dtype))


def test_a_plan_that_fails_leaves_nothing_behind() -> None:
    """A frame is given back even by a call with an input of the wrong kind."""
    graph = graph_of(layered, 16, 16)
    run = plainly_compiled(graph, *PASSES)
    with pytest.raises(KeyError):
        run({})
    feeds = feeds_of(graph)
    assert_close(run(feeds), evaluate_graph(graph, feeds), 1e-4)
