"""Models in half precision: float16 inside, the model's own dtypes outside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.passes.half_precision import half_precision
from tilesmith.ops.elementwise import add, relu
from tilesmith.ops.matmul import matmul
from tilesmith.ops.norm import softmax
from tilesmith.testing.measurers import FakeMeasurer

pytestmark = pytest.mark.filterwarnings("ignore:.*no faster products")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 24)).astype(np.float32)


def network() -> ts.Graph:
    """Two layers, a mask with numbers that float16 has not, and integers that stay as they are."""
    b = GraphBuilder("net")
    x = b.input("x", (6, 24), "float32")
    n = b.input("n", (6,), "int64")
    w = b.constant(RNG.standard_normal((24, 32)).astype(np.float32) / 5)
    v = b.constant(RNG.standard_normal((32, 16)).astype(np.float32) / 6)
    mask = np.zeros((6, 16), np.float32)
    mask[:, 10:] = -1e9
    h = b.add(relu, b.add(matmul, x, w))
    y = b.add(softmax, b.add(add, b.add(matmul, h, v), b.constant(mask)))
    return b.finish({"y": y, "m": b.add(add, n, n)})


HERE = ts.cpu(1)
FEEDS = {"x": X, "n": np.arange(6)}
needs_half = pytest.mark.skipif(
    not HERE.features & {"fp16", "f16c"}, reason="this machine has no half precision"
)


def test_everything_inside_is_float16() -> None:
    graph = network()
    half = half_precision(graph)
    assert {str(half.values[x].dtype) for n in half.nodes for x in n.outputs} == {
        "float16", "float32", "int64",
    }  # fmt: skip
    wide = [n for n in half.nodes if str(half.values[n.outputs[0]].dtype) == "float32"]
    # the mask, which float16 has not, is added in float32; the last one is the output
    assert [n.op for n in wide] == ["cast", "add", "cast"]
    assert [a.min() for a in half.constants.values() if a.dtype == np.float32] == [-1e9]
    assert all(np.isfinite(a).all() for a in half.constants.values())
    got, want = evaluate_graph(half, FEEDS), evaluate_graph(graph, FEEDS)
    assert got["y"].dtype == np.float32
    np.testing.assert_allclose(got["y"], want["y"], atol=5e-3)
    np.testing.assert_array_equal(got["m"], want["m"])


@needs_half
def test_a_compiled_model_in_half_precision() -> None:
    graph = network()
    half = ts.compile_model(graph, HERE, cache=None, progress=False, precision="float16")
    got, want = half(FEEDS), evaluate_graph(graph, FEEDS)
    assert got["y"].dtype == np.float32
    np.testing.assert_allclose(got["y"], want["y"], atol=5e-3)
    np.testing.assert_array_equal(got["m"], want["m"])
    (executor,) = half.executors
    weights = [p for k in executor.kernels for p in k.artifact.inputs if p.name.startswith("w")]
    assert [str(p.dtype) for p in weights if p.shape != (6, 16)] == ["float16"] * 2


@needs_half
def test_tasks_of_both_precisions_are_tuned_apart() -> None:
    graph = network()
    wide = {t.key for t, _ in ts.extract_tasks(graph, HERE)}
    narrow = {t.key for t, _ in ts.extract_tasks(graph, HERE, precision="float16")}
    assert len(wide & narrow) <= 1  # that of the integers
    tuned = ts.tune_model(
        graph, HERE, budget=ts.Budget(trials=8), measurer=FakeMeasurer(), strategy=ts.Random(),
        quiet=True, cache=None, precision="float16",
    )  # fmt: skip
    assert tuned.tuning is not None
    assert {t.task.key for t in tuned.tuning.tasks} == narrow
    np.testing.assert_allclose(tuned(FEEDS)["y"], evaluate_graph(graph, FEEDS)["y"], atol=5e-3)


def test_what_cannot_be_is_refused() -> None:
    old = replace(HERE, features=HERE.features - {"fp16", "f16c"})
    with pytest.raises(ts.TilesmithError, match="no instructions for half precision"):
        ts.compile_model(network(), old, cache=None, precision="float16")
    with pytest.raises(
        ts.TilesmithError, match=r"'float8'.* is unknown; give one of 'float32', 'tf32', 'float16'"
    ):
        ts.tune_model(network(), HERE, precision="float8")
