"""Renames the values of a body or a function when it is put into the graph that uses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilesmith.frontends.onnx.model import OnnxGraph, OnnxNode

Rename = Callable[[str], str]


def renamed(node: OnnxNode, new: Rename, label: str) -> OnnxNode:
    """The node with `new` names of values, those in its bodies included, and `label` in front of
    its own name.
    """
    attributes = {k: _attribute(v, new, label) for k, v in node.attributes.items()}
    return replace(
        node,
        name=f"{label}{node.name}",
        inputs=tuple(new(x) if x else "" for x in node.inputs),
        outputs=tuple(new(x) if x else "" for x in node.outputs),
        attributes=attributes,
    )


def _attribute(v: Any, new: Rename, label: str) -> Any:
    if isinstance(v, OnnxGraph):
        return renamed_graph(v, new, label)
    if isinstance(v, tuple) and any(isinstance(x, OnnxGraph) for x in v):
        return tuple(_attribute(x, new, label) for x in v)
    return v


def renamed_graph(graph: OnnxGraph, new: Rename, label: str) -> OnnxGraph:
    return replace(
        graph,
        inputs=tuple(replace(s, name=new(s.name)) for s in graph.inputs),
        outputs=tuple(new(x) if x else "" for x in graph.outputs),
        nodes=tuple(renamed(n, new, label) for n in graph.nodes),
        initializers={new(x): a for x, a in graph.initializers.items()},
    )


def message_of(node: OnnxNode) -> Any:
    """The node's message, with the names of values that the node has now."""
    message = type(node.proto)()
    message.CopyFrom(node.proto)
    for names, kept in ((message.input, node.inputs), (message.output, node.outputs)):
        del names[:]
        names.extend(kept)
    return message
