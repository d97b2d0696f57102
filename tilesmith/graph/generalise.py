"""Graphs of one model at several sizes in, an OpenPlan out. Importers and passes compute with plain
numbers, so a model is imported and optimised at several points, and what these instances have in
common is generalised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilesmith.expr.ints import Int, of, product
from tilesmith.expr.sizes import OpenSize
from tilesmith.graph.open_functions import OpenFunctions
from tilesmith.graph.open_numbers import Instance, OpenNumbers
from tilesmith.graph.open_plan import OpenLifetime, OpenPlace, OpenPlan, OpenStep
from tilesmith.graph.partition import Group
from tilesmith.graph.plan import Layout, Place, layout
from tilesmith.graph.program import Signature
from tilesmith.graph.regions import Region
from tilesmith.graph.size_fit import CannotOpen
from tilesmith.ir.function import Function

# Whether a group that was joined from others is rather these: by its Function, and theirs.
Divides = Callable[[Function, Sequence[Function]], bool]


def open_plan(
    inputs: Sequence[Signature], sizes: Sequence[OpenSize], instances: Sequence[Instance],
    divides: Divides,
) -> OpenPlan:  # fmt: skip
    """What the instances have in common; the last one has the largest sizes. Raises CannotOpen with
    the reason if they differ in more than numbers.
    """
    numbers = OpenNumbers(inputs, sizes, instances)
    graph, shapes = numbers.graph, numbers.shapes
    functions = OpenFunctions(numbers)
    groups = _chosen(functions, divides)
    layouts = [layout(i.graph, [g[k] for g in groups]) for k, i in enumerate(instances)]
    _require_same_layout(layouts)
    one = layouts[-1]
    offsets = _offsets(numbers, layouts)

    def place(x: str) -> OpenPlace:
        root = one.regions.get(x, Region(x)).root
        kind = one.places.get(root, Place("arena", root))
        return OpenPlace(kind.kind, kind.name, offsets.get(x, of(0)))

    steps = []
    for versions in groups:
        group = versions[-1]
        func, how, further = functions.function(versions)
        places = [place(x) for x in (*group.inputs, *group.outputs)]
        places[len(group.inputs) : len(group.inputs)] = further
        steps.append(OpenStep(group, func, tuple(places), how))
    lifetimes = {
        x: OpenLifetime(product(shapes[x]) * graph.values[x].dtype.nbytes, a.first, a.last)
        for x, a in one.lifetimes.items()
    }
    values = dict(graph.outputs)
    late = tuple((name, place(values[name])) for name, _ in one.late)
    return replace(numbers.plan(), steps=tuple(steps), lifetimes=lifetimes, copies=late)


def _chosen(functions: OpenFunctions, divides: Divides) -> list[tuple[Group, ...]]:
    """The groups, each in the sizes of every instance; those that were joined may be their parts.
    Sizes do not decide that: there is one answer for all of them.
    """
    known: dict[int, bool] = {}  # by the identity of Functions, of which equal ones are one
    out: list[tuple[Group, ...]] = []
    for groups in zip(*(i.groups for i in functions.instances), strict=True):
        parts = [*zip(*(g.parts for g in groups), strict=True)]
        if parts:
            try:
                whole = functions.function(groups)[0]
            except CannotOpen:
                out += parts
                continue
            if id(whole) not in known:
                known[id(whole)] = divides(whole, [functions.function(p)[0] for p in parts])
            if known[id(whole)]:
                out += parts
                continue
        out.append(groups)
    return out


def _require_same_layout(layouts: Sequence[Layout]) -> None:
    one = layouts[-1]
    for other in layouts[:-1]:
        same = [
            {x: (r.root, r.strides is None) for x, r in h.regions.items()} for h in (one, other)
        ]
        spans = [{x: (t.first, t.last) for x, t in h.lifetimes.items()} for h in (one, other)]
        if same[0] != same[1] or spans[0] != spans[1] or dict(one.places) != dict(other.places):
            raise CannotOpen("its arrays lie in other places at some sizes")
        if [n for n, _ in one.late] != [n for n, _ in other.late]:
            raise CannotOpen("its outputs are stored in other ways at some sizes")
    strided = [x for x, r in one.regions.items() if r.strides is not None]
    if strided:
        raise CannotOpen(f"{strided[0]!r} lies in the midst of another array")


def _offsets(numbers: OpenNumbers, layouts: Sequence[Layout]) -> dict[str, Int]:
    """Where a value begins in the array that it is a part of, in bytes."""
    found = {}
    for x in layouts[-1].regions:
        some = [h.regions[x].offset for h in layouts]
        if any(some):
            near = [e * nbytes for e in numbers.shapes[x] if e.const is None
                    for nbytes in (1, numbers.graph.values[x].dtype.nbytes)]  # fmt: skip
            found[x] = numbers.fit.expression(some, near, f"the place of {x!r}")
    return found
