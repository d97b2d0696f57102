"""When a rewrite keeps every bit, and when a lost bit matters: operators that jump make a small
difference of their operand a large one of their result.
"""

from __future__ import annotations

import numpy as np

from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.graph.graph import Array, Graph, Node
from tilesmith.graph.kinds import Kind, work_of
from tilesmith.ops.activation import shrink, thresholded_relu
from tilesmith.ops.elementwise import cast, ceil, floor, rint, sign, trunc
from tilesmith.ops.integer import floor_divide, fmod, remainder, trunc_divide
from tilesmith.ops.logic import equal, greater, greater_equal, less, less_equal
from tilesmith.ops.search import argmax, argmin, hardmax, top_k

# A quantisation rounds too, but is not among them: it is meant to lose half a step.
_JUMPS = frozenset({
    floor, ceil, rint, trunc, sign, floor_divide, trunc_divide, remainder, fmod, equal, less,
    less_equal, greater, greater_equal, argmax, argmin, hardmax, top_k, shrink, thresholded_relu,
})  # fmt: skip


def is_power_of_two(a: Array) -> Array:
    """Where an array has powers of two, of either sign."""
    with np.errstate(all="ignore"):
        return np.asarray(np.isfinite(a) & (np.abs(np.frexp(a)[0]) == 0.5))


def has_exact_inverse(c: Array) -> bool:
    """Whether 1 / c is exact for each element, so that x / c and x * (1 / c) are the same for every
    x. The inverse must be a normal number: some targets take denormal operands for 0.
    """
    if not is_power_of_two(c).all():
        return False
    with np.errstate(all="ignore"):
        inverse = np.abs(np.asarray(1 / c, c.dtype))
    return bool((np.isfinite(inverse) & (inverse >= np.finfo(c.dtype).tiny)).all())


def feeds_a_jump(graph: Graph, node: Node) -> bool:
    """Whether an operator that jumps reads what a node makes, directly or through movements and
    element-wise operators. A sum in between rounds on its own account.
    """
    stack, seen = [node], {node.name}
    while stack:
        for x in stack.pop().outputs:
            for reader in graph.consumers.get(x, ()):
                if reader.name in seen:
                    continue
                if _jumps(reader):
                    return True
                seen.add(reader.name)
                if work_of(graph, reader).kind not in (Kind.REDUCTION, Kind.HEAVY):
                    stack.append(reader)
    return False


def _jumps(node: Node) -> bool:
    if node.function is cast:
        return not dtype_named(node.setting("dtype")).is_float
    return node.function in _JUMPS
