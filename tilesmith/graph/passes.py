"""What happens to a graph between the front end and its partition: one visible list of passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilesmith.graph.graph import Graph, verify

Pass = Callable[[Graph], Graph]

PASSES: tuple[Pass, ...] = ()


def run_passes(graph: Graph, passes: Sequence[Pass] = PASSES) -> Graph:
    for one in passes:
        graph = one(graph)
        verify(graph)
    return graph
