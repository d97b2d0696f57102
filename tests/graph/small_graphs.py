"""What the tests of graphs share: random arrays, and the same answers before and after a pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilesmith.base.target import cpu
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.executor import Executor
from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.partition import partition
from tilesmith.graph.pipeline import Pass, run_passes
from tilesmith.graph.plan import plan
from tilesmith.runtime.build import compile_function
from tilesmith.runtime.kernel import Kernel, Origin

Array = np.ndarray[Any, Any]


class Numbers:
    """Random arrays, the same in every run."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, *shape: int, dtype: str = "float32") -> Array:
        return np.asarray(self.rng.standard_normal(shape), dtype)

    def positive(self, *shape: int) -> Array:
        return np.asarray(self.rng.uniform(0.5, 2, shape), "float32")


def feeds_of(graph: Graph, seed: int = 1) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    out = {}
    for x in graph.inputs:
        v = graph.values[x]
        if v.dtype.is_float:
            out[x] = np.asarray(rng.standard_normal(v.shape), v.dtype.numpy)
        else:
            out[x] = np.asarray(rng.integers(0, 2, v.shape), v.dtype.numpy)
    return out


def graph_of(
    make: Callable[[GraphBuilder, Value], Any], *shape: int, dtype: str = "float32"
) -> Graph:
    """A graph of one input x and the outputs y, or y0, y1, ..."""
    b = GraphBuilder("g")
    result = make(b, b.input("x", shape, dtype))
    several = result if isinstance(result, tuple) else (result,)
    names = ["y"] if len(several) == 1 else [f"y{k}" for k in range(len(several))]
    return b.finish(dict(zip(names, several, strict=True)))


def assert_close(
    got: Mapping[str, Array], wanted: Mapping[str, Array], tolerance: float = 2e-5
) -> None:
    assert list(got) == list(wanted)
    for name, w in wanted.items():
        g = got[name]
        assert (g.shape, g.dtype) == (w.shape, w.dtype), name
        if w.dtype.kind in "biu":
            np.testing.assert_array_equal(g, w, name)
        else:
            wide = w.astype(np.float64)
            most = float(np.max(np.abs(wide), initial=0.0, where=np.isfinite(wide)))
            np.testing.assert_allclose(
                g.astype(np.float64), wide, rtol=tolerance, atol=tolerance * max(1.0, most),
                err_msg=name,
            )  # fmt: skip


def passed(graph: Graph, *passes: Pass, tolerance: float = 2e-5) -> Graph:
    """The graph after some passes, which must mean what it meant before."""
    after = run_passes(graph, passes)
    feeds = feeds_of(graph)
    assert_close(evaluate_graph(after, feeds), evaluate_graph(graph, feeds), tolerance)
    return after


def before_and_after(graph: Graph, *passes: Pass) -> str:
    return f"{graph}\n\n{passed(graph, *passes)}"


def ops_of(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]


_KERNELS: dict[str, Kernel] = {}


def plainly_compiled(graph: Graph, *passes: Pass) -> Executor:
    """The graph's plan with a plain loop nest for each kernel, which is quick to build."""
    lowered = run_passes(graph, passes)
    made = plan(lowered, partition(lowered))
    target = cpu(1)
    for step in made.steps:
        key = step.stored.digest
        if key not in _KERNELS:
            _KERNELS[key] = Kernel(compile_function(step.stored, target), Origin("naive"))
    return Executor(made, [_KERNELS[s.stored.digest] for s in made.steps])
