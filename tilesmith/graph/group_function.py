"""The Function of a group: its operators applied one after the other to placeholders with canonical
names, so that equal groups of a network are equal tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilesmith.expr.dsl import Tensor, placeholder
from tilesmith.expr.ints import of, var
from tilesmith.graph.graph import Graph
from tilesmith.graph.partition import Group
from tilesmith.ir.function import Function
from tilesmith.ir.lower import function
from tilesmith.ops.transform import transpose


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
        given = tuple(tensors[x] for x in node.inputs)
        if node.function is transpose and given[0].stage is not None:
            results: tuple[Tensor, ...] = (stored_as(given[0], node.setting("axes")),)
        else:
            results = node.define(*given)
        tensors.update(zip(node.outputs, results, strict=True))
    outputs = [tensors[x] for x in group.outputs]
    for k, t in enumerate(outputs):
        t.name = f"y{k}"
    return function([*inputs, *outputs], name=_identifier(group.name), constants=constants)


def with_strides(func: Function, strides: Sequence[tuple[int, ...] | None]) -> Function:
    """The function with parameters that do not lie contiguously, each by its strides."""
    if all(s is None for s in strides):
        return func
    params = []
    for b, own in zip(func.params, strides, strict=True):
        if own is not None:
            place = sum((var(f"d{d}") * n for d, n in enumerate(own)), of(0))
            b = replace(b, layout=(place,))
        params.append(b)
    return replace(func, params=tuple(params))


def stored_as(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """transpose(x, axes), without a copy: x itself is computed in that order."""
    stage = x.stage
    assert stage is not None
    if len(stage.tensors) > 1 or stage.updates or stage.running:
        return transpose(x, axes)
    turned = replace(stage, axes=tuple(stage.axes[a] for a in axes), tensors=[])
    out = Tensor(x.name, tuple(x.shape_ints[a] for a in axes), x.dtype, turned)
    turned.tensors.append(out)
    return out


def _identifier(name: str) -> str:
    kept = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return kept if kept and not kept[0].isdigit() else f"g{kept}"
