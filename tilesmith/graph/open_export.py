"""A model that was compiled once for all of its sizes as an exported Library: expressions of the
sizes in place of the numbers that `export.py` writes.

Arrays of the arena keep the order in which they lie at the largest sizes: at other sizes each
begins where the last of those that live at the same time and lie below it ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilesmith.base.target import cpu
from tilesmith.codegen.artifact import Artifact
from tilesmith.expr.ints import Int, product
from tilesmith.graph.export import addresses, arguments
from tilesmith.graph.memory import Lifetime, plan_arena
from tilesmith.graph.open_plan import OpenLifetime, OpenPlace, OpenPlan, Shape
from tilesmith.graph.open_run import OpenRun
from tilesmith.graph.size_fit import value_at
from tilesmith.runtime.dispatch import leaves, renumbered
from tilesmith.runtime.export.library import (
    Address,
    ArenaArray,
    Copy,
    Library,
    Member,
    OpenCall,
    Part,
    Port,
    Weights,
    symbol_of,
)
from tilesmith.runtime.export.library import OpenPlan as ExportedPlan
from tilesmith.runtime.kernel import Kernel
from tilesmith.runtime.open_kernel import PortfolioKernel


def open_model_library(model: str, run: OpenRun, name: str) -> Library:
    executor = run.executor
    plan, graph = executor.plan, executor.plan.graph
    weights, arena = Weights(), OpenArena(plan)
    parts: dict[str, Part] = {}
    outputs = {n: k for k, (n, _) in enumerate(graph.outputs)}

    def constant(place: OpenPlace) -> Address:
        """In the weights; a part whose rows do not lie together there is copied to the arena."""
        array, shape = graph.constants[place.name], plan.shapes[place.name]
        at = weights.add(array)
        if place.name not in plan.cut or _lies_together(shape, array.shape):
            return Address("weights", place.offset + at)
        if place.name not in parts:
            number = arena.add(product(shape) * array.itemsize)
            parts[place.name] = Part(at, shape, array.shape, array.itemsize, number)
        return Address("arena", place.offset, parts[place.name].number)

    address = addresses(
        graph, lambda p: Address("arena", p.offset, arena.numbers[p.name]), constant
    )
    calls = []
    artifacts: dict[str, Artifact] = {}
    for k, (step, kernel) in enumerate(zip(plan.steps, executor.kernels, strict=True)):
        where = arguments(step.places, executor.held[k], address, weights)
        members, call = _call(kernel, where, step.sizes)
        artifacts |= {symbol_of(m.artifact): m.artifact for m in members}
        calls.append(call)
    named = [(n, v) for n, v in graph.outputs]
    copies = tuple(
        Copy(outputs[n], address(place), product(plan.shapes[dict(named)[n]])
             * graph.values[dict(named)[n]].dtype.nbytes)
        for n, place in plan.copies
    )  # fmt: skip
    exported = ExportedPlan(
        names=tuple(plan.largest),
        limits=tuple(run.trusted[n] for n in plan.largest),
        calls=tuple(calls),
        derived=plan.derived,
        arena=tuple(arena.arrays),
        parts=tuple(parts.values()),
        lengths=tuple(plan.open_extents.items()),
    )
    return Library(
        name=name,
        title=f"model {model}",
        target=next((a.target for a in artifacts.values()), cpu()),
        inputs=tuple(_port(plan, x, x) for x in graph.inputs),
        outputs=tuple(_port(plan, n, v) for n, v in named),
        calls=(),
        artifacts=tuple(artifacts.values()),
        weights=weights,
        copies=copies,
        open=exported,
    )


class OpenArena:
    """The arrays of the arena, by their numbers."""

    def __init__(self, plan: OpenPlan) -> None:
        order, self.arrays = ordered(plan.lifetimes, plan.values_at(plan.largest))
        self.numbers = {x: k for k, x in enumerate(order)}

    def add(self, nbytes: Int) -> int:
        """An array that lives all the time, behind all others."""
        ends = {*range(len(self.arrays))} - {j for a in self.arrays for j in a.below}
        self.arrays.append(ArenaArray(nbytes, tuple(sorted(ends))))
        return len(self.arrays) - 1


def ordered(
    lifetimes: Mapping[str, OpenLifetime], largest: Mapping[str, int]
) -> tuple[list[str], list[ArenaArray]]:
    """The arrays from the lowest to the highest at the largest sizes, each with those below it that
    it meets and that no other one of these lies above.
    """
    lives = {
        x: Lifetime(value_at(t.nbytes, largest), t.first, t.last) for x, t in lifetimes.items()
    }
    offsets = plan_arena(lives).offsets
    order = sorted(lives, key=lambda x: offsets[x])
    arrays: list[ArenaArray] = []
    lower: list[set[int]] = []  # of each array, those that end before it begins
    for k, x in enumerate(order):
        met = [j for j in range(k) if lives[order[j]].meets(lives[x])]
        implied = set[int]().union(*(lower[j] for j in met))
        lower.append(implied | {*met})
        direct = tuple(j for j in met if j not in implied)
        arrays.append(ArenaArray(lifetimes[x].nbytes, direct))
    return order, arrays


def _call(
    kernel: Kernel, addresses: tuple[Address, ...], sizes: Mapping[str, Int]
) -> tuple[Sequence[Kernel], OpenCall]:
    """The kernels that may run, and what a library says of them."""
    if not isinstance(kernel, PortfolioKernel):
        return [kernel], OpenCall(addresses, (Member.of(kernel.artifact, sizes),))
    used = sorted(set(leaves(kernel.choice)))
    members = [kernel.members[k] for k in used]
    choice = renumbered(kernel.choice, {k: n for n, k in enumerate(used)})
    own = {n.removeprefix("#"): e for n, e in sizes.items()}
    every = tuple(Member.of(m.artifact, sizes) for m in members)
    return members, OpenCall(addresses, every, choice, own)


def _lies_together(shape: Shape, whole: Sequence[int]) -> bool:
    """Whether a part of an array is contiguous in it, whatever the sizes are."""
    differ = [d for d, (e, n) in enumerate(zip(shape, whole, strict=True)) if e.const != n]
    return all(e.const == 1 for e in shape[: max(differ, default=0)])


def _port(plan: OpenPlan, name: str, value: str) -> Port:
    v = plan.graph.values[value]
    extents = tuple(map(plan.in_sizes, plan.shapes[value]))
    shape = tuple(-1 if e.const is None else e.const for e in extents)
    return Port(name, shape, v.dtype, "", extents if -1 in shape else ())
