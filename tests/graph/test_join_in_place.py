"""Concatenations are places that others write into; slices of contiguous memory are no work."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from small_graphs import Numbers, assert_close, before_and_after, feeds_of, graph_of, ops_of

from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.partition import partition
from tilesmith.graph.passes.concat import join_in_place
from tilesmith.graph.plan import Plan, plan
from tilesmith.graph.strides import row_major, strides_within
from tilesmith.ops.conv import conv2d
from tilesmith.ops.elementwise import exp, negative, relu, tanh
from tilesmith.ops.matmul import matmul
from tilesmith.ops.transform import concatenate, reshape, transpose
from tilesmith.ops.views import slice_
from tilesmith.tune.compile_model import compile_model, extract_tasks

Make = Callable[[GraphBuilder, Value], Any]


def ran(graph: Graph) -> Plan:
    """The plan of a graph whose compiled outputs are those of the oracle."""
    model = compile_model(graph, passes=(join_in_place,))
    feeds = feeds_of(graph)
    for _ in range(2):  # the second time in an arena that is not new
        assert_close(model(feeds), evaluate_graph(graph, feeds))
    (executor,) = model.executors
    return executor.plan


def kernels(graph: Graph) -> list[list[str]]:
    return [[n.op for n in s.group.nodes] for s in ran(graph).steps]


def joined(axis: int, *functions: Any) -> Make:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(concatenate, *(b.add(f, x) for f in functions), axis=axis)
        return b.add(negative, b.add(reshape, y, shape=(-1,)))

    return make


def test_joins(golden: Callable[[object], None]) -> None:
    golden(before_and_after(graph_of(joined(2, relu, tanh), 1, 2, 3), join_in_place))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_parts_are_written_into_their_places(axis: int) -> None:
    graph = graph_of(joined(axis, relu, tanh, exp), 1, 2, 3)
    assert kernels(graph) == [["relu"], ["tanh"], ["exp"], ["negative"]]


def test_an_output_is_written_in_parts() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(concatenate, b.add(relu, x), b.add(tanh, x), axis=1)

    made = ran(graph_of(make, 3, 2))
    assert [s.places[-1].kind for s in made.steps] == ["output", "output"]
    assert made.arena.nbytes == 0


def test_a_convolution_writes_some_of_the_channels() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        n = Numbers()
        parts = [
            b.add(relu, b.add(conv2d, x, b.constant(n(*k, 3, c)), padding=k[0] // 2, layout="NHWC"))
            for k, c in (((1, 1), 4), ((3, 3), 8), ((5, 5), 3))
        ]
        y = b.add(concatenate, *parts, axis=3)
        return b.add(conv2d, y, b.constant(n(1, 1, 15, 5)), layout="NHWC")

    found = kernels(graph_of(make, 2, 6, 6, 3))
    assert found == [["conv2d", "relu"], ["conv2d", "relu"], ["conv2d", "relu"], ["conv2d"]]


def test_schedules_fit_what_lies_in_the_midst_of_rows() -> None:
    """Drafts are made for the plain function, and write the same with other strides."""

    def make(b: GraphBuilder, x: Value) -> Any:
        n = Numbers()
        parts = [
            b.add(relu, b.add(conv2d, x, b.constant(n(3, 3, 16, c)), padding=1, layout="NHWC"))
            for c in (16, 24)
        ]
        return b.add(concatenate, *parts, axis=3)

    graph = graph_of(make, 1, 24, 24, 16)
    model = compile_model(graph)
    feeds = feeds_of(graph)
    assert_close(model(feeds), evaluate_graph(graph, feeds), 1e-4)
    (executor,) = model.executors
    assert [k.origin.kind for k in executor.kernels] == ["draft", "draft"]
    assert [s.places[-1].kind for s in executor.plan.steps] == ["output", "output"]
    assert all(s.func.digest != s.stored.digest for s in executor.plan.steps)


@pytest.mark.parametrize(("layout", "axis"), [("NHWC", 3), ("NHWC", 2), ("NCHW", 3), ("NCHW", 2)])
def test_pointwise_convolutions_in_places_of_others_are_not_plain_loops(
    layout: str, axis: int
) -> None:
    """Their pixels are one row of elements, unless each row of the image is longer than theirs:
    then another sketch is taken.
    """

    def make(b: GraphBuilder, x: Value) -> Any:
        n = Numbers()
        filters = (1, 1, 16, 24) if layout == "NHWC" else (24, 16, 1, 1)
        parts = [
            b.add(relu, b.add(conv2d, x, b.constant(n(*filters)), layout=layout)) for _ in range(2)
        ]
        return b.add(concatenate, *parts, axis=axis)

    graph = graph_of(make, 2, *((14, 15, 16) if layout == "NHWC" else (16, 14, 15)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = compile_model(graph, passes=(join_in_place,), cache=None)
    feeds = feeds_of(graph)
    assert_close(model(feeds), evaluate_graph(graph, feeds))
    (executor,) = model.executors
    steps = [s for s in executor.plan.steps if s.func.flops > 1e5]
    assert any(s.stored.digest != s.func.digest for s in steps)
    assert [k.origin.kind for k in executor.kernels] == ["draft"] * len(executor.kernels)


def test_others_read_a_part_where_it_lies() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(relu, x)
        z = b.add(tanh, b.add(matmul, y, b.constant(Numbers()(3, 5))))
        return b.add(negative, b.add(concatenate, y, z, axis=1)), b.add(exp, y)

    found = kernels(graph_of(make, 4, 3))
    assert sorted(found) == [["exp"], ["matmul", "tanh"], ["negative"], ["relu"]]


def test_joins_in_joins() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        inner = b.add(concatenate, b.add(relu, x), b.add(tanh, x), axis=0)
        other = b.add(exp, b.add(concatenate, x, x, axis=0))
        return b.add(negative, b.add(concatenate, inner, other, axis=1))

    found = kernels(graph_of(make, 2, 3))
    assert sorted(found) == [["concatenate", "exp"], ["negative"], ["relu"], ["tanh"]]


def test_a_small_part_is_copied() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(tanh, b.add(matmul, x, b.constant(Numbers()(2, 12))))
        return b.add(concatenate, x, y, axis=1)

    assert sorted(kernels(graph_of(make, 4, 2))) == [["copy"], ["matmul", "tanh"]]


@pytest.mark.parametrize("axis", [0, 1])
def test_the_same_part_twice_and_an_output(axis: int) -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y, z = b.add(relu, x), b.add(tanh, b.add(concatenate, *[x] * 9, axis=axis))
        return b.add(concatenate, y, z, y, axis=axis), y

    assert "copy" in {op for k in kernels(graph_of(make, 2, 3)) for op in k}


def test_what_would_mostly_be_copied_stays_one_kernel() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(relu, b.add(concatenate, b.add(tanh, x), x, axis=1))

    graph = graph_of(make, 2, 3)
    assert kernels(graph) == [["tanh"], ["concatenate", "relu"]]


def test_a_part_under_another_shape() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(reshape, b.add(relu, x), shape=(3, 2))
        z = b.add(reshape, b.add(tanh, x), shape=(3, 2))
        return tuple(b.add(negative, b.add(concatenate, y, z, axis=a)) for a in (0, 1))

    ran(graph_of(make, 2, 3))


def test_a_transposed_part_is_stored_in_its_place() -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(transpose, b.add(relu, x), axes=(1, 0))
        z = b.add(tanh, b.add(concatenate, *[y] * 7, axis=1))
        return b.add(negative, b.add(concatenate, b.add(transpose, b.add(exp, x)), z, axis=1))

    ran(graph_of(make, 2, 3))


def test_equal_slices_of_a_product_are_one_task() -> None:
    """As Q, K and V of a fused projection."""

    def make(b: GraphBuilder, x: Value) -> Any:
        y = b.add(matmul, x, b.constant(Numbers()(4, 8)))
        y = b.add(reshape, y, shape=(3, 2, 8))
        parts = [
            b.add(slice_, y, starts=(k, 0, 0), stops=(k + 1, 2, 8), steps=(1, 1, 1))
            for k in range(3)
        ]
        return tuple(b.add(tanh, p) for p in parts)

    graph = graph_of(make, 6, 4)
    assert kernels(graph) == [["matmul"], ["tanh"], ["tanh"], ["tanh"]]
    assert [weight for _, weight in extract_tasks(graph)] == [1, 3]


@pytest.mark.parametrize(
    ("starts", "stops", "steps"),
    [
        ((1, 0), (3, 4), (1, 1)),
        ((1, 1), (2, 3), (1, 1)),
        ((0, 1), (4, 3), (1, 1)),
        ((3, 0), (0, 4), (-1, 1)),
        ((0, 0), (4, 4), (2, 1)),
        ((-1, -2), (4, 4), (1, 1)),
    ],
)
def test_slices_of_all_kinds(starts: Any, stops: Any, steps: Any) -> None:
    def make(b: GraphBuilder, x: Value) -> Any:
        inside = b.add(slice_, b.add(tanh, x), starts=starts, stops=stops, steps=steps)
        given = b.add(slice_, x, starts=starts, stops=stops, steps=steps)
        turned = b.add(transpose, x)
        moved = b.add(slice_, turned, starts=starts, stops=stops, steps=steps)
        return b.add(relu, inside), inside, given, b.add(relu, given), b.add(relu, moved)

    ran(graph_of(make, 4, 4))


def test_strides() -> None:
    assert row_major((2, 3, 4)) == (12, 4, 1)
    assert row_major((5,)) == (1,)
    assert row_major(()) == ()
    assert strides_within((1, 3, 4), (12, 4, 1)) is None
    assert strides_within((2, 2, 4), (12, 4, 1)) == (12, 4, 1)


def test_a_join_needs_no_kernel_in_a_partition() -> None:
    graph = join_in_place(graph_of(joined(0, relu, tanh), 2, 3))
    assert "join" in ops_of(graph)
    made = plan(graph, partition(graph))
    assert all("join" not in [n.op for n in s.group.nodes] for s in made.steps)
