"""The oracle of whole models: node by node with NumPy, by the definitions in the DSL."""

from __future__ import annotations

from typing import Any

from tilesmith.base.errors import GraphError
from tilesmith.graph.builder import node_function
from tilesmith.graph.checks import verified
from tilesmith.graph.graph import Array, Graph
from tilesmith.graph.program import Feeds, Program, Runner
from tilesmith.graph.stages import StagedRun
from tilesmith.ir.evaluate import evaluate


def evaluate_graph(graph: Graph, feeds: Feeds) -> dict[str, Array]:
    """The outputs of a graph by name."""
    live: dict[str, Any] = {**graph.constants, **{n: feeds[n] for n in graph.inputs}}
    for node in graph.nodes:
        arrays = [live[x] for x in node.inputs]
        try:
            result = evaluate(node_function(node, arrays), *arrays)
        except MemoryError:
            raise GraphError(f"there is not enough memory for {node.origin or node.name}") from None
        several = result if isinstance(result, tuple) else (result,)
        live.update(zip(node.outputs, several, strict=True))
    return verified(graph.checks, feeds, {name: live[value] for name, value in graph.outputs})


def evaluate_program(model: Graph | Program, feeds: Feeds) -> dict[str, Array]:
    """The outputs of a model by name."""
    if isinstance(model, Graph):
        return evaluate_graph(model, feeds)

    def compile_graph(graph: Graph) -> Runner:
        return lambda given: evaluate_graph(graph, given)

    return StagedRun(model, compile_graph)(feeds)
