"""Layers that can be quantised: products and convolutions of float32 with weights, and products of
two computed matrices. Values that only move share a scale.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import FLOAT32
from tilesmith.graph.graph import Graph, Node
from tilesmith.graph.passes.integer_sources import MOVES
from tilesmith.graph.passes.scaled_integers import CONVOLUTIONS, PRODUCTS
from tilesmith.graph.quantization.scales import Range, Scale, joined
from tilesmith.ops.matmul import dense


@dataclass(frozen=True, slots=True)
class Layer:
    """A node, its computed operands, and the axis of its weights along which each place has its
    own scale; the weights are the second operand. Without weights both operands are computed.
    """

    node: Node
    operands: tuple[str, ...]
    weights: str = ""
    axis: int = 0

    @property
    def name(self) -> str:
        return self.node.origin or self.node.name


def layers_of(graph: Graph) -> tuple[Layer, ...]:
    found = (_layer(graph, n) for n in graph.nodes)
    return tuple(x for x in found if x is not None)


def _layer(graph: Graph, node: Node) -> Layer | None:
    convolves = node.function in CONVOLUTIONS
    if (not convolves and node.function not in PRODUCTS) or len(node.inputs) != 2:
        return None
    values = [graph.values[x] for x in node.inputs]
    x, w = node.inputs
    if any(v.dtype is not FLOAT32 or not v.size for v in values) or graph.is_constant(x):
        return None
    if graph.values[node.outputs[0]].dtype is not FLOAT32:
        return None
    if not graph.is_constant(w):
        return None if convolves or len(values[1].shape) < 2 else Layer(node, node.inputs)
    if convolves:
        first = channel_axis(node, len(values[0].shape)) == 1
        return Layer(node, (x,), w, 0 if first else len(values[1].shape) - 1)
    if len(values[1].shape) != 2 or node.setting("transpose_a"):
        return None
    turned = node.function is dense or node.setting("transpose_b", False)
    return Layer(node, (x,), w, 0 if turned else 1)


def channel_axis(node: Node, rank: int) -> int:
    """Of the operand and the result of a convolution."""
    layout = node.setting("layout")
    return rank - 1 if layout is not None and layout.endswith("C") else 1


class Movements:
    """Values that hold the same numbers share a scale; each such set is named by one of them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._parent: dict[str, str] = {}
        for node in graph.nodes:
            if node.function in MOVES:
                for x in node.inputs:
                    self._parent[self.name(x)] = self.name(node.outputs[0])

    def name(self, value: str) -> str:
        while value in self._parent:
            above = self._parent[value]
            if above in self._parent:
                self._parent[value] = self._parent[above]
            value = above
        return value

    def members(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for x in self.graph.values:
            found.setdefault(self.name(x), []).append(x)
        return {name: tuple(values) for name, values in found.items()}


def sources_of(graph: Graph, value: str) -> tuple[str, ...]:
    """The values whose numbers a value holds: what the movements in front of it read."""
    found: dict[str, None] = {}
    stack, seen = [value], set[str]()
    while stack:
        x = stack.pop()
        if x in seen:
            continue
        seen.add(x)
        maker = graph.producer.get(x)
        if maker is not None and maker.function in MOVES:
            stack += maker.inputs
        else:
            found[x] = None
    return tuple(found)


def scales_of(
    layers: tuple[Layer, ...], moves: Movements, ranges: Mapping[str, Range]
) -> dict[str, Scale]:
    """For each set of values that a layer reads. Where both operands are computed there is no zero
    point, so that the sum of the products of integers is all. Sets without a scale, because numbers
    were not finite or all were 0, are left out.
    """
    symmetric = {moves.name(x) for one in layers if not one.weights for x in one.operands}
    by_set: dict[str, list[Range]] = {}
    for x, r in ranges.items():
        by_set.setdefault(moves.name(x), []).append(r)
    return {
        name: joined(own).scale(name in symmetric)
        for name, own in by_set.items()
        if all(r.is_finite for r in own) and not joined(own).is_zero
    }
