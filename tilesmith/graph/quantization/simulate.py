"""Graphs that tell what is lost by other types: one computes each of its layers in the type that an
input says, so that any choice of types is measured with one compiled model; the other computes all
layers in both types and gives what each alone loses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilesmith.base.dtype import FLOAT32
from tilesmith.graph.edit import Editor
from tilesmith.graph.graph import Graph, Node, Value
from tilesmith.graph.quantization.insert import Insertion
from tilesmith.graph.quantization.layers import Layer, Movements
from tilesmith.graph.quantization.scales import Scale
from tilesmith.ops.elementwise import cast, subtract, where
from tilesmith.ops.logic import equal
from tilesmith.ops.quantize import dequantize
from tilesmith.ops.reduce import reduce_sum_square
from tilesmith.ops.transform import concatenate, reshape
from tilesmith.ops.views import slice_


def switchable(
    graph: Graph, layers: Sequence[Layer], kinds: Sequence[str], scales: Mapping[str, Scale],
    moves: Movements,
) -> tuple[Graph, str]:  # fmt: skip
    """The graph, and the name of the input: for each layer 0 for float32, or 1 and more for one of
    `kinds`. A layer that has no scales is computed in float32 instead of int8.
    """
    e = Editor(graph, unfolded=(dequantize,))
    choice = e.builder.input("types", (len(layers),), "int32")
    whole = Insertion(graph, layers, scales, moves, e)
    places = {one.node.name: k for k, one in enumerate(layers)}
    for node in graph.nodes:
        e.node = node
        inputs = tuple(e.new[x] for x in node.inputs)
        made = e.kept(node, inputs)
        if node.name in places:
            k = places[node.name]
            own = e.add(slice_, choice, starts=(k,), stops=(k + 1,))
            result = made[0]
            for number, kind in enumerate(kinds, 1):
                narrow = _narrow(e, whole, layers[k], node, inputs, kind)
                if narrow is not None:
                    result = e.add(where, e.add(equal, own, B=number), narrow, result)
            made = (result,)
        for old, new in zip(node.outputs, made, strict=True):
            e.set(old, new)
        e.done.add(node.name)
    e.node = None
    done = e.builder.finish({name: e.new[value] for name, value in graph.outputs})
    return done, choice.name


def losses_in(graph: Graph, layers: Sequence[Layer], kind: str) -> Graph:
    """The graph with two results, one number for each layer: `errors`, the sum of the squares of
    what it alone loses by a type of 16 bits, and `results`, that of its results.
    """
    e = Editor(graph)
    places = {one.node.name for one in layers}
    found: dict[str, tuple[Value, Value]] = {}
    for node in graph.nodes:
        e.node = node
        inputs = tuple(e.new[x] for x in node.inputs)
        made = e.kept(node, inputs)
        if node.name in places:
            apart = e.add(subtract, _in_halves(e, node, inputs, kind), made[0])
            found[node.name] = _squares(e, apart), _squares(e, made[0])
        for old, new in zip(node.outputs, made, strict=True):
            e.set(old, new)
        e.done.add(node.name)
    e.node = None
    errors, results = zip(*(found[one.node.name] for one in layers), strict=True)
    sums = {"errors": e.add(concatenate, *errors), "results": e.add(concatenate, *results)}
    return e.builder.finish(sums)


def _squares(e: Editor, x: Value) -> Value:
    total = e.add(reduce_sum_square, x, axes=tuple(range(len(x.shape))))
    return e.add(reshape, total, shape=(1,))


def _in_halves(e: Editor, node: Node, inputs: tuple[Value, ...], kind: str) -> Value:
    """The result of a layer of operands of 16 bits, as float32."""
    halves = (e.add(cast, x, dtype=kind) if x.dtype is FLOAT32 else x for x in inputs)
    return e.add(cast, e.kept(node, tuple(halves))[0], dtype="float32")


def _narrow(
    e: Editor, whole: Insertion, layer: Layer, node: Node, inputs: tuple[Value, ...], kind: str
) -> Value | None:
    """The result of a layer in another type, as float32."""
    if kind != "int8":
        return _in_halves(e, node, inputs, kind)
    if not whole.has_scales(layer):
        return None
    return e.kept(node, tuple(whole.input(layer, x) for x in node.inputs))[0]
