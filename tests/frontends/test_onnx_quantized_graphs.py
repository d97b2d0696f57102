"""Whole quantised graphs give exactly what ONNX Runtime gives without its own rewriting of them:
as they are imported, and after the passes that make integer kernels of them.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from quantized_graphs import Drawn

from tests.support.thorough import by_turns
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.graph import Graph
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.passes.integers import IntegerKernels
from tilesmith.graph.pipeline import GPU_PASSES, PASSES, Pass, run_passes

KINDS: tuple[Pass, ...] = (IntegerKernels(), IntegerKernels("int8"), IntegerKernels("uint8"))
PASSES_TRIED = ((), *((one, *PASSES[1:]) for one in KINDS), GPU_PASSES)


@pytest.mark.parametrize("seed", by_turns(20, 60))
def test_random_graphs(seed: int) -> None:
    drawn = Drawn(seed)
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(drawn.model.SerializeToString(), plain)
    (want,) = session.run(None, {"x": drawn.x})
    graph = load_onnx(drawn.model)
    assert isinstance(graph, Graph)
    for passes in PASSES_TRIED:
        (got,) = evaluate_graph(run_passes(graph, passes), {"x": drawn.x}).values()
        np.testing.assert_array_equal(got, want)
