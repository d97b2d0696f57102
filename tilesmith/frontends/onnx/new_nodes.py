"""Creates ONNX nodes: the few operators that passes which rewrite nodes put in."""

from __future__ import annotations

from typing import Any

from tilesmith.frontends.onnx.model import OnnxNode
from tilesmith.graph.graph import Array


def label_of(node: OnnxNode) -> str:
    """A unique prefix for the names of new values: an output of the node, which no other has."""
    return next((x for x in node.outputs if x), node.name)


def constant(name: str, a: Array) -> OnnxNode:
    return OnnxNode(name, "Constant", "", 13, (), (name,), {"value": a})


def identity(name: str, given: str, made: str) -> OnnxNode:
    return OnnxNode(name, "Identity", "", 13, (given,), (made,))


def old(op: str, given: str, made: str, version: int, **attributes: Any) -> OnnxNode:
    """A node of an older opset version, whose operator takes its settings as attributes."""
    return OnnxNode(made, op, "", version, (given,), (made,), attributes)


def concat(name: str, given: tuple[str, ...], made: str, axis: int) -> OnnxNode:
    return OnnxNode(name, "Concat", "", 13, given, (made,), {"axis": axis})


def sliced(given: str, made: str, axis: int, first: int, end: int) -> OnnxNode:
    return old("Slice", given, made, 9, starts=(first,), ends=(end,), axes=(axis,))
