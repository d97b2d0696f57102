"""The Function of a group: its operators applied one after the other to placeholders with canonical
names, so that equal groups of a network are equal tasks.
"""

from __future__ import annotations

from tilesmith.expr.dsl import placeholder
from tilesmith.expr.values import Tensor
from tilesmith.graph.graph import Graph
from tilesmith.graph.partition import Group
from tilesmith.ir.function import Function
from tilesmith.ir.lower import function


def group_function(graph: Graph, group: Group) -> Function:
    """Parameters: the group's inputs, then its outputs. Constants of the graph are constants of
    the Function, so that a kernel may ask for them in a layout of its own.
    """
    tensors: dict[str, Tensor] = {}
    constants = []
    for k, x in enumerate(group.inputs):
        v = graph.values[x]
        held = graph.is_constant(x)
        tensors[x] = placeholder(v.shape, v.dtype, name=f"{'w' if held else 'x'}{k}")
        if held:
            constants.append(tensors[x])
    inputs = list(tensors.values())
    for node in group.nodes:
        results = node.define(*(tensors[x] for x in node.inputs))
        tensors.update(zip(node.outputs, results, strict=True))
    outputs = [tensors[x] for x in group.outputs]
    for k, t in enumerate(outputs):
        t.name = f"y{k}"
    return function([*inputs, *outputs], name=_identifier(group.name), constants=constants)


def _identifier(name: str) -> str:
    kept = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return kept if kept and not kept[0].isdigit() else f"g{kept}"
