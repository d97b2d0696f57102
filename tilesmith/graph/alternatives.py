"""Other ways to divide a group into kernels. Which one is faster is decided by measuring both.

A group that was joined from others may be these again (`graph/joined_groups.py`).

A group of a product or a convolution whose element-wise end computes a costly function, as gelu,
may be two kernels: the function then no longer takes registers from the product, but its argument
goes through memory. Cheap ends (bias, residual, relu) always stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tilesmith.expr.nodes import Unary, children
from tilesmith.expr.walk import preorder
from tilesmith.graph.graph import Graph, Node, Operator, Settings
from tilesmith.graph.kinds import Kind, stages_of, work_of
from tilesmith.graph.partition import Group
from tilesmith.graph.shapes import Type, applied

_COSTLY = frozenset({"exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "atan", "log2", "log10"})


def parts_of(graph: Graph, group: Group) -> tuple[Group, ...] | None:
    """The group as several, one behind the other; None if there is no such alternative."""
    if group.parts:
        return group.parts
    kinds = {n.name: work_of(graph, n).kind for n in group.nodes}
    if Kind.HEAVY not in kinds.values():
        return None
    first_costly = next(
        (n for n in group.nodes if kinds[n.name] is Kind.ELEMENTWISE and _is_costly(graph, n)), None
    )
    if first_costly is None:
        return None
    makers = {x: n for n in group.nodes for x in n.outputs}
    before = _ancestors([makers[x] for x in first_costly.inputs if x in makers], makers)
    if not any(kinds[n.name] is Kind.HEAVY for n in before):
        return None
    after = [n for n in group.nodes if n not in before]
    views = [n for n in before if kinds[n.name] is Kind.VIEW]
    head = _group(graph, [n for n in group.nodes if n in before], group)
    # Views of what is in memory are repeated where they are read.
    needed = _ancestors([makers[x] for n in after for x in n.inputs if x in makers], makers)
    again = [n for n in views if n in needed and _reads_memory(n, makers, kinds)]
    tail = _group(graph, [n for n in group.nodes if n in after or n in again], group)
    crossing = [x for x in tail.inputs if x in makers]
    if len(crossing) != 1 or head.outputs != tuple(crossing) or tail.outputs != group.outputs:
        return None
    return head, tail


def _reads_memory(view: Node, makers: dict[str, Node], kinds: dict[str, Kind]) -> bool:
    """Whether a view, through others perhaps, is of something that the group does not compute."""
    return all(kinds[n.name] is Kind.VIEW for n in _ancestors([view], makers))


def _ancestors(nodes: Sequence[Node], makers: dict[str, Node]) -> list[Node]:
    """These nodes and all that they need, of the group."""
    found: dict[str, Node] = {}
    stack = list(nodes)
    while stack:
        n = stack.pop()
        if n.name not in found:
            found[n.name] = n
            stack += [makers[x] for x in n.inputs if x in makers]
    return list(found.values())


def _group(graph: Graph, nodes: Sequence[Node], whole: Group) -> Group:
    made = {x for n in nodes for x in n.outputs}
    own = {n.name for n in nodes}
    inputs = dict.fromkeys(x for n in nodes for x in n.inputs if x not in made)
    outputs = []
    for n in nodes:
        if work_of(graph, n).kind is Kind.VIEW and n.outputs[0] not in whole.outputs:
            continue  # repeated by whoever reads it
        for x in n.outputs:
            readers = graph.consumers.get(x, ())
            if x in whole.outputs or any(r.name not in own for r in readers):
                outputs.append(x)
    return Group(tuple(nodes), tuple(inputs), tuple(outputs))


def _is_costly(graph: Graph, node: Node) -> bool:
    types = tuple((graph.values[x].shape, graph.values[x].dtype) for x in node.inputs)
    return _states_costly(node.function, types, node.settings)


@lru_cache(maxsize=1024)
def _states_costly(function: Operator, types: tuple[Type, ...], settings: Settings) -> bool:
    stages = stages_of(applied(function, types, settings).outputs)
    return any(
        isinstance(e, Unary) and e.op in _COSTLY
        for s in stages for v in s.values for e in preorder(v, children)
    )  # fmt: skip
