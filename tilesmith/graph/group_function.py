"""The Function of a group: its operators applied one after the other to placeholders with canonical
names, so that equal groups of a network are equal tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tilesmith.base.dtype import DType
from tilesmith.expr.dsl import Tensor, placeholder
from tilesmith.expr.ints import of, var
from tilesmith.graph.graph import Graph, Operator, Settings, defined
from tilesmith.graph.partition import Group
from tilesmith.ir.function import Function
from tilesmith.ir.lower import function
from tilesmith.ops.transform import transpose

# An operator, its settings, and the numbers of the values that it reads and of its results.
NumberedNode = tuple[Operator, Settings, tuple[int, ...], tuple[int, ...]]
Input = tuple[tuple[Any, ...], DType, bool]  # its shape, and whether it is a constant


def group_function(graph: Graph, group: Group) -> Function:
    """Parameters: the group's inputs, then its outputs. Constants of the graph are constants of
    the Function, so that a kernel may ask for them in a layout of its own.
    """
    values = [graph.values[x] for x in group.inputs]
    held = [graph.is_constant(x) for x in group.inputs]
    nodes, outputs = numbered(group)
    return _stated(
        identifier(group.name),
        tuple((v.shape, v.dtype, c) for v, c in zip(values, held, strict=True)),
        nodes,
        outputs,
    )


def numbered(
    group: Group, settings: Mapping[str, Settings] | None = None, further: int = 0
) -> tuple[tuple[NumberedNode, ...], tuple[int, ...]]:
    """The nodes of a group, and its outputs, with numbers for values: first the inputs, behind
    which there are so many `further` ones. `settings` replaces those of nodes, by their names.
    """
    numbers = {x: k for k, x in enumerate(group.inputs)}
    for node in group.nodes:
        for x in node.outputs:
            numbers[x] = len(numbers) + further
    nodes = []
    for n in group.nodes:
        how = n.settings if settings is None else settings[n.name]
        reads, makes = (tuple(numbers[x] for x in xs) for xs in (n.inputs, n.outputs))
        nodes.append((n.function, how, reads, makes))
    return tuple(nodes), tuple(numbers[x] for x in group.outputs)


@lru_cache(maxsize=1024)  # a network repeats its groups
def _stated(
    name: str,
    inputs: tuple[Input, ...],
    nodes: tuple[NumberedNode, ...],
    outputs: tuple[int, ...],
) -> Function:
    return stated(name, inputs, nodes, outputs)


def stated(
    name: str,
    inputs: Sequence[Input],
    nodes: Sequence[NumberedNode],
    outputs: Sequence[int],
) -> Function:
    """The Function of numbered nodes. Extents and numbers in settings may be open sizes."""
    tensors: dict[int, Tensor] = {}
    constants = []
    for k, (shape, dtype, held) in enumerate(inputs):
        tensors[k] = placeholder(shape, dtype, name=f"{'w' if held else 'x'}{k}")
        if held:
            constants.append(tensors[k])
    params = list(tensors.values())
    for operator, settings, reads, makes in nodes:
        given = tuple(tensors[x] for x in reads)
        if operator is transpose and given[0].stage is not None:
            results: tuple[Tensor, ...] = (stored_as(given[0], dict(settings)["axes"]),)
        else:
            results = defined(operator, settings, *given)
        tensors.update(zip(makes, results, strict=True))
    computed = [tensors[x] for x in outputs]
    for k, t in enumerate(computed):
        t.name = f"y{k}"
    return function([*params, *computed], name=name, constants=constants)


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


def identifier(name: str) -> str:
    kept = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return kept if kept and not kept[0].isdigit() else f"g{kept}"
