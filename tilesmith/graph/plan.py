"""Plan: the groups of a graph with a place for every array, before any kernel is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import GraphError
from tilesmith.graph.graph import Graph
from tilesmith.graph.group_function import group_function, with_strides
from tilesmith.graph.memory import ALIGNMENT, Arena, Lifetime, plan_arena
from tilesmith.graph.partition import Group
from tilesmith.graph.regions import Region, regions
from tilesmith.ir.function import Function


@dataclass(frozen=True, slots=True)
class Place:
    """Where an array lies: in the arena ("arena"), or in an input, an output or a constant, by
    name; from the byte `offset` on.
    """

    kind: str
    name: str = ""
    offset: int = 0


@dataclass(frozen=True)
class Step:
    """One kernel: its group, its Function, and where each parameter lies. `stored` is the Function
    with the strides of parameters that lie in the midst of others' rows; schedules of `func` fit.
    """

    group: Group
    func: Function
    stored: Function
    places: tuple[Place, ...]  # inputs, then outputs
    origins: tuple[str, ...] = ()  # of a saved model, whose groups have no nodes: their names


@dataclass(frozen=True)
class Plan:
    graph: Graph
    steps: tuple[Step, ...]
    arena: Arena
    copies: tuple[tuple[str, Place], ...]  # outputs that no kernel writes, and where they lie


def plan(graph: Graph, groups: Sequence[Group], alignment: int = ALIGNMENT) -> Plan:
    """Lifetimes are in steps; a part of an array keeps the whole alive. Arrays in the arena begin
    at multiples of `alignment` bytes.
    """
    how = layout(graph, groups)
    region, late = how.regions, how.late
    arena = plan_arena(how.lifetimes, alignment)
    places = {**how.places, **{x: Place("arena", x, at) for x, at in arena.offsets.items()}}

    def place(at: Region) -> Place:
        whole = places[at.root]
        return replace(whole, offset=whole.offset + at.offset)

    steps = []
    for group in groups:
        func = group_function(graph, group)
        lie = [region.get(x, Region(x)) for x in (*group.inputs, *group.outputs)]
        stored = with_strides(func, [at.strides for at in lie])
        steps.append(Step(group, func, stored, tuple(map(place, lie))))
    return Plan(graph, tuple(steps), arena, tuple((name, place(at)) for name, at in late))


@dataclass(frozen=True)
class Layout:
    """Where arrays lie, before the arena is planned: regions of values, the places of arrays that
    are not in the arena, outputs that are copied when all is computed, lifetimes of the others.
    """

    regions: Mapping[str, Region]
    places: Mapping[str, Place]
    late: tuple[tuple[str, Region], ...]
    lifetimes: Mapping[str, Lifetime]


def layout(graph: Graph, groups: Sequence[Group]) -> Layout:
    region = regions(graph)
    places: dict[str, Place] = {x: Place("input", x) for x in graph.inputs}
    places |= {x: Place("constant", x) for x in graph.constants}
    written = {region.get(x, Region(x)).root for g in groups for x in g.outputs}
    late = []
    for name, value in graph.outputs:
        at = region.get(value, Region(value))
        whole = at.offset == 0 and graph.values[at.root].nbytes == graph.values[value].nbytes
        if at.root in written and at.root not in places and whole:
            places[at.root] = Place("output", name)  # written straight into the caller's array
        else:  # an input, a constant, another output once more, or a part of something
            late.append((name, at))
    return Layout(region, places, tuple(late), _lifetimes(graph, groups, region, places))


def _lifetimes(
    graph: Graph,
    groups: Sequence[Group],
    region: Mapping[str, Region],
    places: Mapping[str, Place],
) -> dict[str, Lifetime]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}

    def root(value: str) -> str:
        return region.get(value, Region(value)).root

    for k, group in enumerate(groups):
        for x in group.inputs:
            if root(x) not in first and root(x) not in places:
                raise GraphError(f"{group.name} reads {x!r} before anything makes it")
            last[root(x)] = k
        for x in group.outputs:
            first.setdefault(root(x), k)
            last[root(x)] = k
    for _, value in graph.outputs:
        last[root(value)] = len(groups)
    return {
        x: Lifetime(graph.values[x].nbytes, begin, last[x])
        for x, begin in first.items()
        if x not in places
    }
