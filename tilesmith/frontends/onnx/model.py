"""The parts of an ONNX model as plain Python objects, so that importers need not know the onnx
package: nodes with their attributes as numbers, strings, arrays and graphs; what a node reads, new
nodes, and nodes under other names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.graph.graph import Array
from tilesmith.graph.program import Signature

FunctionKey = tuple[str, str, str]  # domain, name, overload


@dataclass(frozen=True, eq=False, repr=False)
class OnnxNode:
    """`attributes` hold int, float, str, bytes, arrays, OnnxGraph, or tuples of these."""

    name: str
    op: str
    domain: str  # "" for ONNX's own operators
    version: int  # the opset that the model imports for this domain
    inputs: tuple[str, ...]  # "" where an optional one is left out
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    proto: Any = None  # the NodeProto, for operators that run on the host

    def __str__(self) -> str:
        return f"{self.op} {self.name!r}"


@dataclass(frozen=True, eq=False, repr=False)
class OnnxGraph:
    name: str
    inputs: tuple[Signature, ...]
    outputs: tuple[str, ...]
    nodes: tuple[OnnxNode, ...]
    initializers: Mapping[str, Array]
    # The model's own, which become nodes where they are called; see functions.py.
    functions: Mapping[FunctionKey, Any] = field(default_factory=dict)
    # Importers that the user gives, by domain and name.
    operators: Mapping[tuple[str, str], Any] = field(default_factory=dict)


def reads_of(node: OnnxNode) -> tuple[str, ...]:
    """What a node reads, the bodies of control flow included."""
    names = dict.fromkeys(x for x in node.inputs if x)
    for v in node.attributes.values():
        if isinstance(v, OnnxGraph):
            names.update(dict.fromkeys(free_names(v)))
    return tuple(names)


def free_names(graph: OnnxGraph) -> tuple[str, ...]:
    """The values of enclosing graphs that a body reads. A name is made once, so what the body
    makes anywhere is its own.
    """
    own = {s.name for s in graph.inputs} | set(graph.initializers)
    own.update(x for node in graph.nodes for x in node.outputs)
    free = dict.fromkeys(x for node in graph.nodes for x in reads_of(node) if x not in own)
    free.update(dict.fromkeys(x for x in graph.outputs if x not in own))
    return tuple(free)


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
