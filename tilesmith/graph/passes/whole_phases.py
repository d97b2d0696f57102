"""Whole phases: on a GPU, a transposed convolution whose stride does not divide its kernel computes
with zeros around its weights, so that all phases of its output have equally many elements of them.
"""

from __future__ import annotations

from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Graph, Node, Value
from tilesmith.graph.passes.layouts import TRANSPOSED, is_everywhere
from tilesmith.ops.arguments import pad_pairs, per_dim
from tilesmith.ops.transform import pad


def whole_phases(graph: Graph) -> Graph:
    """Pads the constant weights of transposed convolutions. What that adds to the output is cut off
    again by their padding.
    """
    return edited(graph, _rule)


def _rule(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    if node.function not in TRANSPOSED or len(inputs) != 2:
        return None
    x, w = inputs
    count = len(w.shape) - 2
    if e.array(w) is None or not is_everywhere(node.setting("dilation", 1), 1):
        return None
    last = (node.setting("layout") or "").endswith("C")
    kernel = w.shape[:count] if last else w.shape[2:]
    strides = per_dim("stride", node.setting("stride", 1), count)
    pads = pad_pairs(node.setting("padding", 0), count)
    more = []
    for n, s, (before, _) in zip(kernel, strides, pads, strict=True):
        front = 0 if s == 2 else -before % s  # of a stride of 2 the operator takes any padding
        more.append((front, -(n + front) % s))
    if not any(map(any, more)):
        return None
    none = ((0, 0), (0, 0))
    wider = e.add(pad, w, widths=(*more, *none) if last else (*none, *more))
    cut = tuple((p[0] + m[0], p[1] + m[1]) for p, m in zip(pads, more, strict=True))
    return e.add(node.function, x, wider, **{**dict(node.settings), "padding": cut})
