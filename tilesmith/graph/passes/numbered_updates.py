"""GPU: updates that replace elements are found by their numbers. Threads cannot write in order, but
the largest number of an update for each element is the last one, and a second kernel writes it.
"""

from __future__ import annotations

from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Graph, Node, Value
from tilesmith.ops.scatter import (
    last_row,
    last_update,
    put_elements,
    put_rows,
    scatter_elements,
    scatter_nd,
)


def numbered_updates(graph: Graph) -> Graph:
    if not any(_replaces(n) for n in graph.nodes):
        return graph
    return edited(graph, _numbered)


def _replaces(node: Node) -> bool:
    return node.function in (scatter_elements, scatter_nd) and node.setting("reduction") == "last"


def _numbered(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    if not _replaces(node):
        return None
    x, ids, updates = inputs
    if node.function is scatter_nd:
        return e.add(put_rows, x, updates, e.add(last_row, ids, x))
    if not updates.shape:  # whichever is the last, it writes the same
        return None
    axis = node.setting("axis", 0)
    last = e.add(last_update, ids, x, axis=axis)
    return e.add(put_elements, x, updates, last, axis=axis)
