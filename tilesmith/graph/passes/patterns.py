"""Patterns: what exporters spell out node by node becomes the operator it means. A pattern fits
only if its constants and axes are right and nobody reads what lies in between.
"""

from __future__ import annotations

import numpy as np

from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Graph, Node, Value
from tilesmith.graph.passes.activations import activation
from tilesmith.graph.passes.exactness import has_exact_inverse
from tilesmith.graph.passes.match import Match, Root
from tilesmith.graph.passes.norms import normalisation
from tilesmith.ops.elementwise import add, divide, multiply

_ROOTS = (add, divide, multiply)  # the operators that patterns end in


def exporters_patterns(graph: Graph) -> Graph:
    return edited(graph, _rule)


def _rule(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    if node.function not in _ROOTS or not inputs[0].dtype.is_float:
        return None
    wanted = e.graph.values[node.outputs[0]]
    m = Match(e, Root(node.function, inputs, dict(node.settings)))
    found = m.first(activation, normalisation)
    if found is not None and (found.shape, found.dtype) == (wanted.shape, wanted.dtype):
        return found
    return _multiplied(e, node, inputs)


def _multiplied(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    """Division by powers of two as a multiplication, which is cheaper and may be folded further. By
    any other number the product with its rounded inverse would differ: 41 / 41 would not be 1.
    """
    if node.function is not divide or len(inputs) != 2 or inputs[1].dtype.bits < 32:
        return None
    c = e.array(inputs[1])
    if c is None or not c.size or c.size > max(1, inputs[0].size) or not has_exact_inverse(c):
        return None
    return e.add(multiply, inputs[0], e.constant(np.asarray(1 / c, c.dtype), inputs[1].name))
