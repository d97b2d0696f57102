"""A graph in float32 and the scales of its layers in, a quantised graph out, as exporters state
one: integers between quantize and dequantize nodes around the layers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

import numpy as np

from tilesmith.graph.edit import Editor
from tilesmith.graph.graph import Graph, Node, Value
from tilesmith.graph.passes.integer_sources import MOVES
from tilesmith.graph.quantization.layers import Layer, Movements
from tilesmith.graph.quantization.scales import Scale, weight_scale
from tilesmith.ops.elementwise import add
from tilesmith.ops.quantize import dequantize, quantize

# Products of each element of a value behind which a copy of it in float32 costs nothing: the 5
# bytes more that are written and read take the time of some hundred products.
_PRODUCTS_PER_COPY = 1024


def quantized(
    graph: Graph,
    layers: Sequence[Layer],
    scales: Mapping[str, Scale],
    moves: Movements,
) -> Graph:
    """`scales` are by sets of values that only move; those of all operands must be there."""
    return Insertion(graph, layers, scales, moves).graph()


class Insertion:
    """Every value of the old graph has up to two in the new one: itself, and what its integers
    stand for. With an editor, the new graph is that editor's.
    """

    def __init__(
        self, graph: Graph, layers: Sequence[Layer], scales: Mapping[str, Scale], moves: Movements,
        editor: Editor | None = None,
    ) -> None:  # fmt: skip
        self.old, self.scales, self.moves = graph, scales, moves
        self.e = Editor(graph, unfolded=(dequantize,)) if editor is None else editor
        self.layers = {one.node.name: one for one in layers}
        self.narrow: dict[tuple[str, int], Value] = {}  # by the value's name in the old graph
        self.shared = _without_copies(graph, layers, moves)

    def graph(self) -> Graph:
        e = self.e
        for node in self.old.nodes:
            e.node = node
            layer = self.layers.get(node.name)
            inputs = tuple(self._input(node, layer, x) for x in node.inputs)
            for old, new in zip(node.outputs, e.kept(node, inputs), strict=True):
                e.set(old, new)
            e.done.add(node.name)
        e.node = None
        return e.builder.finish({name: e.new[value] for name, value in self.old.outputs})

    def has_scales(self, layer: Layer) -> bool:
        return all(self.moves.name(x) in self.scales for x in layer.operands)

    def input(self, layer: Layer, x: str) -> Value:
        """What the integers of an input of a layer stand for."""
        return self._stood(x) if x in layer.operands else self._weights(layer)

    def _input(self, node: Node, layer: Layer | None, x: str) -> Value:
        if layer is not None:
            return self.input(layer, x)
        is_read = node.function is add and self.moves.name(x) in self.shared
        return self._stood(x) if is_read and not self.old.is_constant(x) else self.e.new[x]

    def _stood(self, x: str) -> Value:
        """What the integers of a value stand for; behind movements, these of integers."""
        if (x, -1) in self.narrow:
            return self.narrow[x, -1]
        e, maker = self.e, self.old.producer.get(x)
        if maker is not None and maker.function in MOVES:
            inputs = tuple(map(self._stood, maker.inputs))
            (made,) = e.kept(maker, inputs)
        else:
            one = self.scales[self.moves.name(x)]
            terms = e.constant(one.scale), e.constant(np.asarray(one.zero, one.dtype))
            q = e.add(quantize, e.new[x], *terms, instead_of=maker, dtype=one.dtype)
            made = e.add(dequantize, q, *terms)
        self.narrow[x, -1] = made
        return made

    def _weights(self, layer: Layer) -> Value:
        key = layer.weights, layer.axis
        if key not in self.narrow:
            e, w = self.e, self.old.constants[layer.weights]
            one = weight_scale(w, layer.axis)
            integers = e.constant(one.integers(w).astype(np.int8), layer.weights)
            scale = e.constant(one.scale.reshape(-1), f"{layer.weights}.scale")
            self.narrow[key] = e.add(dequantize, integers, scale, axis=layer.axis)
        return self.narrow[key]


def _without_copies(graph: Graph, layers: Sequence[Layer], moves: Movements) -> Collection[str]:
    """The sets of values that additions read as integers, too, because to store them in float32
    beside would take longer than the layers that read them hide.
    """
    products: dict[str, float] = {}
    for layer in layers:
        for x in layer.operands:
            own = products.setdefault(moves.name(x), 0.0)
            products[moves.name(x)] = own + products_of(graph, layer) / graph.values[x].size
    return {name for name, count in products.items() if count < _PRODUCTS_PER_COPY}


def products_of(graph: Graph, layer: Layer) -> float:
    """How many products a layer sums."""
    results = graph.values[layer.node.outputs[0]].size
    if not layer.weights:
        shape = graph.values[layer.operands[0]].shape
        return results * shape[-2 if layer.node.setting("transpose_a") else -1]
    w = graph.values[layer.weights].shape
    return results * prod(w) / w[layer.axis]
