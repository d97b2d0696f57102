"""`bias_add` along an axis becomes a broadcasting `add`, which means the same in any layout."""

from __future__ import annotations

from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Graph, Node, Value
from tilesmith.ops.elementwise import add, bias_add


def bias_as_add(graph: Graph) -> Graph:
    return edited(graph, _rule)


def _rule(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    if node.function is not bias_add:
        return None
    x, b = inputs
    axis = node.setting("axis", -1) % len(x.shape)
    shape = (b.shape[0],) + (1,) * (len(x.shape) - 1 - axis)
    out: Value = e.add(add, x, e.reshape(b, shape))
    return out
