"""Groups of a partition joined to larger ones, where a kernel may compute them row by row: a
product, a reduction of its rows, and a product of those, as attention is. Their intermediate
results then never lie in memory as a whole. Whether that is faster is decided by measuring both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilesmith.graph.graph import Graph, Node
from tilesmith.graph.group_function import group_function
from tilesmith.graph.kinds import Kind, work_of
from tilesmith.graph.partition import Group, Partition
from tilesmith.ir.nodes import walk
from tilesmith.space import analysis
from tilesmith.space.chains import chain_of

_LONGEST = 4  # groups between the two products


@dataclass(frozen=True)
class JoinedGroups:
    """The groups of `base`, joined wherever that is possible. Each knows its parts."""

    base: Partition

    def __call__(self, graph: Graph) -> tuple[Group, ...]:
        groups = self.base(graph)
        joined: dict[int, Group] = {}  # by the position of the last part
        taken: set[int] = set()
        for k in range(len(groups)):
            chain = _chain(graph, groups, k)
            if chain and not taken & {*chain} and (whole := _joined(graph, groups, chain)):
                taken |= {*chain}
                joined[chain[-1]] = whole
        return tuple(
            joined.get(k, g) for k, g in enumerate(groups) if k in joined or k not in taken
        )


def _kind(graph: Graph, group: Group) -> Kind:
    """That of the node that reduces, if there is one."""
    kinds = {work_of(graph, n).kind for n in group.nodes}
    return next((k for k in (Kind.HEAVY, Kind.REDUCTION) if k in kinds), Kind.ELEMENTWISE)


def _chain(graph: Graph, groups: Sequence[Group], first: int) -> tuple[int, ...]:
    """The positions of a product, of the groups that only read it, and of the product that these
    end in; () if there is no such product.
    """
    if _kind(graph, groups[first]) is not Kind.HEAVY:
        return ()
    chain, kinds = [first], list[Kind]()
    while len(chain) <= _LONGEST + 1:
        value = _only_result(graph, groups[chain[-1]])
        after = [k for k, g in enumerate(groups) if value in g.inputs]
        if value is None or len(after) != 1:
            return ()
        (following,) = after
        own = {n.name for n in groups[following].nodes}
        if any(r.name not in own for r in graph.consumers[value]):
            return ()  # it is read under another shape as well
        chain.append(following)
        kinds.append(_kind(graph, groups[following]))
        if kinds[-1] is Kind.HEAVY:
            return tuple(chain) if Kind.REDUCTION in kinds else ()
    return ()


def _only_result(graph: Graph, group: Group) -> str | None:
    if len(group.outputs) != 1 or group.outputs[0] in graph.returned:
        return None
    return group.outputs[0]


def _joined(graph: Graph, groups: Sequence[Group], chain: tuple[int, ...]) -> Group | None:
    """One group of all; None if it cannot be computed row by row."""
    parts = tuple(groups[k] for k in chain)
    place = {n.name: k for k, n in enumerate(graph.nodes)}
    every: dict[str, Node] = {n.name: n for g in parts for n in g.nodes}
    nodes = tuple(sorted(every.values(), key=lambda n: place[n.name]))
    made = {x for n in nodes for x in n.outputs}
    inputs = dict.fromkeys(x for n in nodes for x in n.inputs if x not in made)
    whole = Group(nodes, tuple(inputs), parts[-1].outputs, parts)
    func = group_function(graph, whole)
    last = [b for _, b in walk(func.body) if analysis.is_output(func, b)]
    return whole if len(last) == 1 and chain_of(func, last[0]) is not None else None
