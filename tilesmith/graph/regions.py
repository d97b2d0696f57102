"""Regions: where values lie that are parts of other values, or the same bytes under another shape.

A reshape shows the bytes of its input, and so does a slice of contiguous memory. The parts of a
join lie in its result. A region in the midst of rows has the strides of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import GraphError
from tilesmith.graph.graph import Graph, Node
from tilesmith.graph.join import join
from tilesmith.graph.kinds import alias_offset
from tilesmith.graph.strides import Shape, row_major, strides_within
from tilesmith.ops.transform import reshape


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the array of the value `root`, from a byte on. `strides` count elements; None
    where the region is contiguous.
    """

    root: str
    offset: int = 0
    strides: Shape | None = None


def parts_of(graph: Graph, node: Node) -> Iterator[tuple[str, int]]:
    """The parts of a join, each with its first place along the axis."""
    axis = node.setting("axis", 0) % len(graph.values[node.outputs[0]].shape)
    at = 0
    for x in node.inputs:
        yield x, at
        at += graph.values[x].shape[axis]


def shown_by(graph: Graph, value: str) -> str:
    """The value that a reshape, or a chain of them, shows."""
    while (node := graph.producer.get(value)) is not None and node.function is reshape:
        value = node.inputs[0]
    return value


def regions(graph: Graph) -> Mapping[str, Region]:
    """Of every value that has no array of its own."""
    found: dict[str, Region] = {}
    for node in reversed(graph.nodes):  # a join may itself be part of a later one
        if node.function is join:
            _place_parts(graph, node, found)
    for node in graph.nodes:
        at = alias_offset(graph, node)
        if at is None:
            continue
        x, y = graph.values[node.inputs[0]], node.outputs[0]
        base = found.get(x.name, Region(x.name))
        if base.strides is not None:
            raise GraphError(f"{node.name!r} ({node.op}) shows {x}, which is not contiguous")
        found[y] = Region(base.root, base.offset + at * x.dtype.nbytes)
    return found


def _place_parts(graph: Graph, node: Node, found: dict[str, Region]) -> None:
    whole = graph.values[node.outputs[0]]
    own = found.get(whole.name, Region(whole.name))
    strides = own.strides or row_major(whole.shape)
    axis = node.setting("axis", 0) % len(whole.shape)
    for x, at in parts_of(graph, node):
        inner = strides_within(graph.values[x].shape, strides)
        held = shown_by(graph, x) if inner is None else x
        if held in found or graph.is_constant(held) or held in graph.inputs:
            raise GraphError(f"{node.name!r} cannot hold {x!r}, which lies elsewhere")
        offset = own.offset + at * strides[axis] * whole.dtype.nbytes
        found[held] = Region(own.root, offset, inner)
