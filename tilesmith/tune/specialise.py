"""The graphs that a model becomes for certain inputs. A model whose sizes are open, or depend on
what it computes, has none before it runs: then these are what is tuned.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tilesmith.base.errors import GraphError
from tilesmith.graph.graph import Graph
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.program import KnownStages, Program, Runner
from tilesmith.graph.stages import StagedRun, checked_feeds


def graphs_for(model: Graph | Program, inputs: Mapping[str, Any] | None) -> list[Graph]:
    """The graphs of all stages that a call with these inputs comes to, bodies of control flow
    included. They are computed by the oracle, because contents may decide what comes next.
    """
    if isinstance(model, Graph):
        return [model]
    if inputs is None:
        return known_graphs(model)
    found: list[Graph] = []

    def collected(graph: Graph) -> Runner:
        found.append(graph)
        return partial(evaluate_graph, graph)

    StagedRun(model, collected)(checked_feeds(model.inputs, inputs, model.name))
    return found


def known_graphs(model: Graph | Program) -> list[Graph]:
    """The graphs of a model that has them before it runs; an error says why it has none."""
    if isinstance(model, Graph):
        return [model]
    if isinstance(model, KnownStages) and not any(s.is_open for s in model.inputs):
        return [g for g in model.graphs() if g.nodes]
    raise no_sizes(model)


def no_sizes(model: Program) -> GraphError:
    """Why a model has no tasks yet, and what to give."""
    open_inputs = [str(s) for s in model.inputs if s.is_open]
    what = f"its inputs {', '.join(open_inputs)} are open" if open_inputs else "it has stages"
    example = ", ".join(f"{s.name!r}: array" for s in model.inputs)
    how = f"tune it for inputs of the sizes that you need: ts.tune_model(..., inputs={{{example}}})"
    if open_inputs:
        how = f'give the sizes, as in ts.load_onnx(path, dims={{"batch": 1}}), or {how}'
    return GraphError(f"{model.name} has no tasks yet: {what}; {how}")


def text_of(model: Graph | Program, inputs: Mapping[str, Any] | None) -> str:
    """The sizes that a model with open ones is tuned for; empty for others."""
    if isinstance(model, Graph) or inputs is None:
        return ""
    feeds = checked_feeds(model.inputs, inputs, model.name)
    return ", ".join(f"{n}: {a.dtype}[{', '.join(map(str, a.shape))}]" for n, a in feeds.items())
