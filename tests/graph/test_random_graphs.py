"""Random small graphs: the oracle, the oracle after the passes, and kernels agree."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_graphs import assert_close, feeds_of, plainly_compiled

from tests.support.thorough import drawn
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph, Value, verify
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.pipeline import PASSES, run_passes
from tilesmith.ops.conv import conv2d
from tilesmith.ops.elementwise import (
    add,
    bias_add,
    divide,
    maximum,
    multiply,
    negative,
    relu,
    sigmoid,
    subtract,
    tanh,
)
from tilesmith.ops.matmul import matmul
from tilesmith.ops.norm import batch_norm, layer_norm, softmax
from tilesmith.ops.pool import max_pool2d
from tilesmith.ops.reduce import reduce_max, reduce_mean, reduce_sum
from tilesmith.ops.transform import concatenate, pad, reshape, transpose
from tilesmith.ops.views import expand, slice_

_MAX_SIZE = 200


class Drawn:
    """A graph that grows by one drawn node at a time, out of values that exist."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.b = GraphBuilder("drawn")
        self.rng = np.random.default_rng(draw(st.integers(0, 99)))
        self.values: list[Value] = []
        for k in range(draw(st.integers(1, 2))):
            shape = draw(st.lists(st.integers(1, 4), min_size=0, max_size=4))
            self.values.append(self.b.input(f"x{k}", tuple(shape), "float32"))

    def value(self, rank: int | None = None) -> Value | None:
        fit = [v for v in self.values if rank is None or len(v.shape) == rank]
        # The latest are drawn most often, so that graphs are deep.
        return self.draw(st.sampled_from(fit[::-1])) if fit else None

    def constant(self, *shape: int) -> Value:
        return self.b.constant(np.asarray(self.rng.uniform(0.25, 1.5, shape), "float32"))

    def grow(self) -> None:
        kinds = (
            self.unary, self.unary, self.binary, self.binary, self.scaled, self.movement,
            self.movement, self.part, self.part, self.join, self.join, self.reduction,
            self.product, self.image, self.normalised,
        )  # fmt: skip
        made = self.draw(st.sampled_from(kinds))()
        if made is not None and made.size <= _MAX_SIZE:
            self.values.append(made)

    def unary(self) -> Any:
        return self.b.add(self.draw(st.sampled_from((relu, tanh, negative, sigmoid))), self.value())

    def binary(self) -> Any:
        a, c = self.value(), self.value()
        assert a is not None
        assert c is not None
        try:
            np.broadcast_shapes(a.shape, c.shape)
        except ValueError:
            c = a
        return self.b.add(self.draw(st.sampled_from((add, multiply, subtract, maximum))), a, c)

    def scaled(self) -> Any:
        x = self.value()
        assert x is not None
        shape = [n if self.draw(st.booleans()) else 1 for n in x.shape]
        function = self.draw(st.sampled_from((add, multiply, divide, subtract)))
        return self.b.add(function, x, self.constant(*shape))

    def movement(self) -> Any:
        x = self.value()
        assert x is not None
        if self.draw(st.booleans()):
            return self.b.add(
                transpose, x, axes=tuple(self.draw(st.permutations(range(len(x.shape)))))
            )
        rest, shape = x.size, []
        for p in (2, 3):
            while rest % p == 0 and rest and self.draw(st.booleans()):
                shape.append(p)
                rest //= p
        ones = [1] * self.draw(st.integers(0, 1))
        return self.b.add(
            reshape, x, shape=tuple(self.draw(st.permutations([*shape, rest, *ones])))
        )

    def part(self) -> Any:
        x = self.value()
        assert x is not None
        which = self.draw(st.sampled_from(("slice", "pad", "expand")))
        if which == "pad":
            return self.b.add(
                pad, x, widths=tuple((0, self.draw(st.integers(0, 1))) for _ in x.shape)
            )
        if which == "expand":
            return self.b.add(expand, x, shape=(2, *(2 if n == 1 else n for n in x.shape)))
        starts, stops, steps = [], [], []
        for n in x.shape:
            start = self.draw(st.integers(0, n - 1))
            starts.append(start)
            stops.append(self.draw(st.integers(start + 1, n)))
            steps.append(self.draw(st.sampled_from((1, 1, 1, 2))))
        return self.b.add(slice_, x, starts=starts, stops=stops, steps=steps)

    def join(self) -> Any:
        x = self.value()
        if x is None or not x.shape:
            return None
        axis = self.draw(st.integers(0, len(x.shape) - 1))

        def rest(v: Value) -> tuple[int, ...]:
            return (*v.shape[:axis], *v.shape[axis + 1 :])

        fit = [v for v in self.values if len(v.shape) == len(x.shape) and rest(v) == rest(x)]
        parts = self.draw(st.lists(st.sampled_from(fit[::-1]), min_size=1, max_size=3))
        return self.b.add(concatenate, x, *parts, axis=axis)

    def reduction(self) -> Any:
        x = self.value()
        if x is None or not x.shape:
            return None
        function = self.draw(st.sampled_from((reduce_sum, reduce_mean, reduce_max)))
        axes = self.draw(st.sets(st.integers(0, len(x.shape) - 1), min_size=1))
        return self.b.add(function, x, axes=tuple(sorted(axes)), keepdims=self.draw(st.booleans()))

    def product(self) -> Any:
        x = self.value(2)
        if x is None:
            return None
        n = self.draw(st.integers(1, 4))
        y = self.b.add(matmul, x, self.constant(x.shape[1], n))
        return self.b.add(bias_add, y, self.constant(n), axis=1) if self.draw(st.booleans()) else y

    def image(self) -> Any:
        x = self.value(4)
        if x is None:
            return None
        if self.draw(st.booleans()) and min(x.shape[2:]) > 1:
            return self.b.add(max_pool2d, x, kernel=2, stride=1)
        filters, k = self.draw(st.integers(1, 3)), self.draw(st.sampled_from((1, 3)))
        w = self.constant(filters, x.shape[1], k, k)
        y = self.b.add(conv2d, x, w, padding=k // 2)
        if self.draw(st.booleans()):
            y = self.b.add(batch_norm, y, *(self.constant(filters) for _ in range(4)))
        return y

    def normalised(self) -> Any:
        x = self.value()
        if x is None or not x.shape:
            return None
        if self.draw(st.booleans()):
            return self.b.add(softmax, x, axis=self.draw(st.integers(0, len(x.shape) - 1)))
        return self.b.add(layer_norm, x, self.constant(x.shape[-1]), axis=-1)

    def graph(self) -> Graph:
        for _ in range(self.draw(st.integers(2, 10))):
            self.grow()
        last = self.draw(st.lists(st.sampled_from(self.values[::-1]), min_size=1, max_size=3))
        return self.b.finish({f"y{k}": v for k, v in enumerate(last)})


@st.composite
def graphs(draw: Any) -> Graph:
    return Drawn(draw).graph()


@settings(
    max_examples=drawn(20, 40),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(graphs())
def test_passes_and_kernels_keep_the_meaning(graph: Graph) -> None:
    verify(graph)
    feeds = feeds_of(graph)
    wanted = evaluate_graph(graph, feeds)
    lowered = run_passes(graph, PASSES)
    assert_close(evaluate_graph(lowered, feeds), wanted, 1e-4)
    run = plainly_compiled(graph, *PASSES)
    assert run.plan.arena.nbytes >= run.plan.arena.lower_bound
    for _ in range(2):  # the second time in an arena that is not new
        assert_close(run(feeds), wanted, 1e-4)
