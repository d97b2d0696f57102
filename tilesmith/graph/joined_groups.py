"""Groups of a partition joined to larger ones, where a kernel may compute them row by row: a
product, a reduction of its rows, and a product of those, as attention is. Their intermediate
results then never lie in memory as a whole. Whether that is faster is decided by measuring both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilesmith.base.dataclass import dataclass
from tilesmith.graph.graph import Graph, Node
from tilesmith.graph.group_function import group_function
from tilesmith.graph.kinds import Kind, work_of
from tilesmith.graph.partition import Group, Partition
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import walk
from tilesmith.ops.transform import reshape
from tilesmith.space import analysis
from tilesmith.space.chains import chain_of

_LONGEST = 4  # groups between the two products


@dataclass(frozen=True)
class JoinedGroups:
    """The groups of `base`, joined wherever that is possible. Each knows its parts. With
    `wanted`, only those are joined whose function passes the test, and it is not asked again
    whether that is faster.
    """

    base: Partition
    wanted: Callable[[Function], bool] | None = None

    def __call__(self, graph: Graph) -> tuple[Group, ...]:
        groups = self.base(graph)
        joined: dict[int, Group] = {}  # by the position of the last part
        taken: set[int] = set()
        for k in range(len(groups)):
            chain = _chain(graph, groups, k)
            if chain is None or taken & {*chain.groups}:
                continue
            whole = _joined(graph, [groups[g] for g in chain.groups], chain.aliases, self.wanted)
            if whole is not None:
                taken |= {*chain.groups}
                joined[chain.groups[-1]] = whole
        return tuple(
            joined.get(k, g) for k, g in enumerate(groups) if k in joined or k not in taken
        )


def _kind(graph: Graph, group: Group) -> Kind:
    """That of the node that reduces, if there is one."""
    kinds = {work_of(graph, n).kind for n in group.nodes}
    return next((k for k in (Kind.HEAVY, Kind.REDUCTION) if k in kinds), Kind.ELEMENTWISE)


@dataclass(frozen=True, slots=True)
class _Chain:
    """Positions of groups, and the reshapes between them."""

    groups: tuple[int, ...]
    aliases: tuple[Node, ...]


def _chain(graph: Graph, groups: Sequence[Group], first: int) -> _Chain | None:
    """A product, the groups that only read it, and the product that these end in, if any."""
    if _kind(graph, groups[first]) is not Kind.HEAVY:
        return None
    chain, kinds, aliases = [first], list[Kind](), list[Node]()
    while len(chain) <= _LONGEST + 1:
        value = _only_result(graph, groups[chain[-1]])
        while value is not None and (alias := _same_rows(graph, value)) is not None:
            aliases.append(alias)
            value = alias.outputs[0]
        after = [k for k, g in enumerate(groups) if value in g.inputs]
        if value is None or value in graph.returned or len(after) != 1:
            return None
        (following,) = after
        own = {n.name for n in groups[following].nodes}
        if any(r.name not in own for r in graph.consumers[value]):
            return None  # it is read under another shape as well
        chain.append(following)
        kinds.append(_kind(graph, groups[following]))
        if kinds[-1] is Kind.HEAVY:
            found = _Chain(tuple(chain), tuple(aliases))
            return found if Kind.REDUCTION in kinds else None
    return None


def _same_rows(graph: Graph, value: str) -> Node | None:
    """The only reader of a value, if that adds or drops dimensions of one element."""
    readers = graph.consumers.get(value, ())
    if len(readers) != 1 or readers[0].function is not reshape or value in graph.returned:
        return None
    before, after = (graph.values[x].shape for x in (value, readers[0].outputs[0]))
    return readers[0] if [n for n in before if n != 1] == [n for n in after if n != 1] else None


def _only_result(graph: Graph, group: Group) -> str | None:
    if len(group.outputs) != 1 or group.outputs[0] in graph.returned:
        return None
    return group.outputs[0]


def _joined(
    graph: Graph, parts: Sequence[Group], aliases: Sequence[Node],
    wanted: Callable[[Function], bool] | None,
) -> Group | None:  # fmt: skip
    """One group of all; None if it cannot be computed row by row."""
    place = {n.name: k for k, n in enumerate(graph.nodes)}
    every = {n.name: n for n in (*aliases, *(n for g in parts for n in g.nodes))}
    nodes = tuple(sorted(every.values(), key=lambda n: place[n.name]))
    made = {x for n in nodes for x in n.outputs}
    inputs = dict.fromkeys(x for n in nodes for x in n.inputs if x not in made)
    whole = Group(nodes, tuple(inputs), parts[-1].outputs, tuple(parts))
    func = group_function(graph, whole)
    if wanted is not None:
        return replace(whole, parts=()) if wanted(func) else None
    last = [b for _, b in walk(func.body) if analysis.is_output(func, b)]
    return whole if len(last) == 1 and chain_of(func, last[0]) is not None else None
