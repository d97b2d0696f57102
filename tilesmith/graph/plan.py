"""Plan: the groups of a graph with a place for every array, before any kernel is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilesmith.base.errors import GraphError
from tilesmith.graph.graph import Graph
from tilesmith.graph.group_function import group_function
from tilesmith.graph.kinds import Kind, work_of
from tilesmith.graph.memory import Arena, Lifetime, plan_arena
from tilesmith.graph.partition import Group
from tilesmith.ir.function import Function


@dataclass(frozen=True, slots=True)
class Place:
    """Where an array lies: in the arena ("arena", by byte offset), or it is an input, an output or
    a constant, by name.
    """

    kind: str
    name: str = ""
    offset: int = 0


@dataclass(frozen=True)
class Step:
    """One kernel: its group, its Function, and where each parameter lies."""

    group: Group
    func: Function
    places: tuple[Place, ...]  # inputs, then outputs


@dataclass(frozen=True)
class Plan:
    graph: Graph
    steps: tuple[Step, ...]
    arena: Arena
    copies: tuple[tuple[str, Place], ...]  # outputs that no kernel writes, and where they lie


def plan(graph: Graph, groups: Sequence[Group]) -> Plan:
    """Lifetimes are in steps; an alias keeps the array alive that it shows."""
    root = _roots(graph)
    places: dict[str, Place] = {x: Place("input", x) for x in graph.inputs}
    places |= {x: Place("constant", x) for x in graph.constants}
    written = {x for g in groups for x in g.outputs}
    copies = []
    for name, value in graph.outputs:
        source = root.get(value, value)
        if source in written and source not in places:
            places[source] = Place("output", name)  # written straight into the caller's array
        else:  # an input, a constant, or another output once more
            copies.append((name, places[source]))
    arena = plan_arena(_lifetimes(graph, groups, root, places))
    places |= {x: Place("arena", x, offset) for x, offset in arena.offsets.items()}
    steps = []
    for group in groups:
        func = group_function(graph, group)
        lie = tuple(places[root.get(x, x)] for x in (*group.inputs, *group.outputs))
        steps.append(Step(group, func, lie))
    return Plan(graph, tuple(steps), arena, tuple(copies))


def _roots(graph: Graph) -> dict[str, str]:
    """Which value's bytes an alias shows."""
    root: dict[str, str] = {}
    for node in graph.nodes:
        if work_of(graph, node).kind is Kind.ALIAS:
            x = node.inputs[0]
            root[node.outputs[0]] = root.get(x, x)
    return root


def _lifetimes(
    graph: Graph, groups: Sequence[Group], root: dict[str, str], places: dict[str, Place]
) -> dict[str, Lifetime]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for k, group in enumerate(groups):
        for x in group.inputs:
            r = root.get(x, x)
            if r not in first and r not in places:
                raise GraphError(f"{group.name} reads {x!r} before anything makes it")
            last[r] = k
        for x in group.outputs:
            first[x] = last[x] = k
    for _, value in graph.outputs:
        last[root.get(value, value)] = len(groups)
    return {
        x: Lifetime(graph.values[x].nbytes, begin, last[x])
        for x, begin in first.items()
        if x not in places
    }
