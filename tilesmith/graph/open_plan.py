"""OpenPlan: the kernels of a model for all values of its open sizes, with expressions of the sizes
for shapes, offsets and settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError
from tilesmith.expr.ints import Int
from tilesmith.expr.sizes import OpenSize
from tilesmith.graph.checks import Check
from tilesmith.graph.graph import Graph, Node, Settings
from tilesmith.graph.group_function import identifier
from tilesmith.graph.partition import Group
from tilesmith.graph.program import Signature
from tilesmith.graph.size_fit import value_at
from tilesmith.ir.function import Function

Shape = tuple[Int, ...]


@dataclass(frozen=True, slots=True)
class OpenPlace:
    """A Place whose offset follows the sizes. The kind "none" is that of an array that has a shape
    and no elements: a kernel is told a size by it.
    """

    kind: str
    name: str
    offset: Int


@dataclass(frozen=True)
class OpenStep:
    """A kernel: `sizes` has the expression of each size of `func`, by its name with the #."""

    group: Group
    func: Function
    places: tuple[OpenPlace, ...]
    sizes: Mapping[str, Int]
    origins: tuple[str, ...] = ()  # of a saved model, whose groups have no nodes: their names


@dataclass(frozen=True, slots=True)
class OpenLifetime:
    nbytes: Int
    first: int
    last: int


@dataclass(frozen=True)
class OpenPlan:
    """`graph` is the instance at the largest sizes, which has the constants. Those in `cut` are
    parts of its arrays at smaller sizes. `derived` are sizes that follow from those of the inputs,
    such as the height behind a convolution, in an order in which they can be computed.
    """

    inputs: tuple[Signature, ...]
    sizes: tuple[OpenSize, ...]
    derived: Mapping[str, Int]
    graph: Graph
    shapes: Mapping[str, Shape]
    steps: tuple[OpenStep, ...]
    lifetimes: Mapping[str, OpenLifetime]
    copies: tuple[tuple[str, OpenPlace], ...]
    checks: tuple[Check, ...]
    cut: frozenset[str]
    largest: dict[str, int]  # the sizes of `graph`
    settings: Mapping[str, Settings] = field(default_factory=dict)

    def values_at(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """All sizes, those that follow from others included."""
        values = dict(sizes)
        for name, p in self.derived.items():
            values[name] = value_at(p, values)
        return values

    def in_sizes(self, e: Int) -> Int:
        """The expression in the sizes of the inputs alone."""
        for name in [*self.derived][::-1]:
            e = e.substitute({name: self.derived[name]})
        return e

    @cached_property
    def open_extents(self) -> Mapping[Int, str]:
        """The open extents, each with a value that has it."""
        return {e: x for x, shape in self.shapes.items() for e in shape if e.const is None}

    def require_possible(self, values: Mapping[str, int]) -> None:
        """Raises where an array would have a negative length."""
        for e, x in self.open_extents.items():
            if value_at(e, values) < 0:
                given = {f"#{s.name}": values[f"#{s.name}"] for s in self.sizes}
                raise ArgumentError(
                    f"{self.graph.name} cannot run with {sizes_text(given)}, which is too small: "
                    f"{x!r} would have a length of {value_at(e, values)}"
                )

    def shape_at(self, value: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(value_at(e, sizes) for e in self.shapes[value])

    def settings_at(self, node: Node, sizes: Mapping[str, int]) -> Settings:
        return Settings((k, _number(v, sizes)) for k, v in self.settings[node.name])

    def graph_at(self, sizes: Mapping[str, int]) -> Graph:
        """The graph at some sizes, which are at most the largest ones."""
        values = self.values_at(sizes)
        self.require_possible(values)
        shown = {
            x: replace(v, shape=self.shape_at(x, values)) for x, v in self.graph.values.items()
        }
        nodes = (replace(n, settings=self.settings_at(n, values)) for n in self.graph.nodes)
        parts = {x: self.graph.constants[x][tuple(map(slice, shown[x].shape))] for x in self.cut}
        constants = {**self.graph.constants, **parts}
        return replace(self.graph, nodes=tuple(nodes), values=shown, constants=constants)


def size_names(inputs: Sequence[Signature]) -> dict[str, str]:
    """For each open dimension, the name of its size in kernels, with the #."""
    found: dict[str, str] = {}
    for d in (d for s in inputs for d in s.dims or () if isinstance(d, str)):
        if d not in found:
            name = "#" + (identifier(d).replace("__", "_") or "n")
            while name in found.values():
                name += "_"
            found[d] = name
    return found


def sizes_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{n.removeprefix('#')} = {v}" for n, v in sizes.items())


def _number(v: object, sizes: Mapping[str, int]) -> object:
    if isinstance(v, tuple):
        return tuple(_number(x, sizes) for x in v)
    return value_at(v, sizes) if isinstance(v, Int) else v
