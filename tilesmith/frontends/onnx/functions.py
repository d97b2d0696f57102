"""Expands nodes whose operator is a function: ONNX defines many operators by a body of other nodes,
some depending on the types of the inputs, and a model may define functions of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import onnx
from onnx import defs, helper

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import GraphError
from tilesmith.frontends.onnx.convert import Reader, convert_nodes
from tilesmith.frontends.onnx.file import ModelFile
from tilesmith.frontends.onnx.model import (
    FunctionKey,
    OnnxGraph,
    OnnxNode,
    label_of,
    message_of,
    renamed,
)
from tilesmith.graph.graph import Value

Nodes = tuple[OnnxNode, ...]
TypeOf = Callable[[str], Value]


@dataclass(frozen=True, slots=True)
class Function:
    """`read` gives the tensors of its nodes."""

    proto: onnx.FunctionProto
    read: Reader


_OF_ONNX = ModelFile(onnx.ModelProto())  # reads tensors from the messages themselves


def functions_of(model: onnx.ModelProto, read: Reader) -> dict[FunctionKey, Function]:
    """The functions that a model brings. One that calls itself has no end and is refused."""
    found = {(_domain(f.domain), f.name, f.overload): Function(f, read) for f in model.functions}
    done: set[FunctionKey] = set()
    for first in found:
        stack = [(first, False)]
        path: list[FunctionKey] = []
        while stack:
            key, is_left = stack.pop()
            if is_left:
                done.add(path.pop())
            elif key in path:
                raise GraphError(f"the function {key[1]!r} of domain {key[0]!r} calls itself")
            elif key not in done:
                path.append(key)
                stack.append((key, True))
                calls = {_key(n) for n in _all_nodes(found[key].proto.node)}
                stack += [(k, False) for k in calls if k in found]
    return found


def nodes_of_function(function: Function) -> Nodes:
    """Its nodes as they are written, with attributes of the caller left out."""
    opsets = {_domain(o.domain): o.version for o in function.proto.opset_import}
    return convert_nodes(function.proto.node, opsets, function.proto.name, function.read)


def key_of(node: OnnxNode) -> FunctionKey:
    return node.domain, node.op, getattr(node.proto, "overload", "")


def expanded(node: OnnxNode, graph: OnnxGraph, type_of: TypeOf) -> Nodes | None:
    """The nodes that stand for a node of a function; None if there is no function of its name."""
    if node.proto is None:
        return None
    function: Function | None = graph.functions.get(key_of(node))
    defaults: Mapping[str, onnx.AttributeProto] = {}
    if function is None:
        schema = schema_of(node)
        proto = None if schema is None else _defined(schema, node, type_of)
        if proto is None:
            return None
        function = Function(proto, _OF_ONNX)
        defaults = {k: a.default_value for k, a in schema.attributes.items()}
    return _body(function, node, defaults)


def is_function(node: OnnxNode, graph: OnnxGraph) -> bool:
    """Whether there may be a function of its name; ONNX decides some by the types of inputs."""
    schema = schema_of(node)
    return key_of(node) in graph.functions or (
        schema is not None and (schema.has_function or schema.has_context_dependent_function)
    )


def schema_of(node: OnnxNode) -> Any:
    """What ONNX says of the operator; None if it has none of that name in that opset."""
    return _schema(node.op, node.version, node.domain)


@lru_cache(maxsize=1024)
def _schema(op: str, version: int, domain: str) -> Any:
    try:
        return defs.get_schema(op, version, domain)
    except defs.SchemaError:
        return None


def _defined(schema: Any, node: OnnxNode, type_of: TypeOf) -> onnx.FunctionProto | None:
    """The function by which ONNX defines an operator, by the opset of the model if it has several.
    A function says itself for which opset its nodes are written.
    """
    function = onnx.FunctionProto()
    if schema.has_function:
        version = _nearest(schema.function_opset_versions, node.version)
        data = schema.get_function_with_opset_version(version)
    elif schema.has_context_dependent_function:
        version = _nearest(schema.context_dependent_function_opset_versions, node.version)
        types = [_type(type_of(x)) if x else onnx.TypeProto() for x in node.inputs]
        try:
            data = schema.get_context_dependent_function_with_opset_version(
                version,
                message_of(node).SerializeToString(),
                [t.SerializeToString() for t in types],
            )
        except Exception:  # of the package, where these types have no function
            return None
    else:
        return None
    function.ParseFromString(data)
    if not any(_domain(o.domain) == "" for o in function.opset_import):
        # Operators of other domains may leave out the version of those that they are made of.
        function.opset_import.append(helper.make_opsetid("", defs.onnx_opset_version()))
    return function if function.node else None


def _nearest(versions: Sequence[int], wanted: int) -> int:
    return max((v for v in versions if v <= wanted), default=min(versions))


def _type(value: Value) -> onnx.TypeProto:
    code = helper.np_dtype_to_tensor_dtype(value.dtype.numpy)
    return helper.make_tensor_type_proto(code, value.shape)


def _body(called: Function, node: OnnxNode, defaults: Mapping[str, onnx.AttributeProto]) -> Nodes:
    function = called.proto
    if len(node.inputs) > len(function.input) or len(node.outputs) > len(function.output):
        raise GraphError(
            f"{node} has {len(node.inputs)} inputs and {len(node.outputs)} outputs; its function "
            f"takes {len(function.input)} and gives {len(function.output)}"
        )
    given = {k: a for k, a in defaults.items() if a.name}
    given |= {a.name: a for a in function.attribute_proto}
    given |= {a.name: a for a in node.proto.attribute}
    opsets = {_domain(o.domain): o.version for o in function.opset_import}
    nodes = [_resolved(n, given) for n in function.node]
    inner = convert_nodes(nodes, opsets, function.name, called.read)

    names = dict.fromkeys(function.input, "")
    names.update(zip(function.input, node.inputs, strict=False))
    passed = set(names)  # outputs that are inputs are copied
    for formal, actual in zip(function.output, node.outputs, strict=False):
        if formal not in passed and actual:
            names[formal] = actual
    label = label_of(node)

    def new(name: str) -> str:
        return names.get(name, f"{label}/{name}")

    copies = tuple(
        OnnxNode(f"{node.name}/{actual}", "Identity", "", 13, (new(formal),), (actual,))
        for formal, actual in zip(function.output, node.outputs, strict=False)
        if formal in passed and actual
    )
    return (*(renamed(n, new, f"{node.name}/") for n in inner), *copies)


def _resolved(node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """The node with the attributes of its caller in the place of references to them. A reference
    to what the caller leaves out is left out as well.
    """
    out = onnx.NodeProto()
    out.CopyFrom(node)
    del out.attribute[:]
    for a in node.attribute:
        if a.ref_attr_name:
            if a.ref_attr_name in given:
                kept = out.attribute.add()
                kept.CopyFrom(given[a.ref_attr_name])
                kept.name = a.name
            continue
        kept = out.attribute.add()
        kept.CopyFrom(a)
        for graph in (*([kept.g] if a.HasField("g") else []), *kept.graphs):
            nodes = [_resolved(n, given) for n in graph.node]
            del graph.node[:]
            graph.node.extend(nodes)
    return out


def _all_nodes(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Those in bodies too."""
    found = []
    queue = [*nodes]
    while queue:
        node = queue.pop()
        found.append(node)
        for a in node.attribute:
            for graph in (a.g, *a.graphs):
                queue += graph.node
    return found


def _key(node: onnx.NodeProto) -> FunctionKey:
    return _domain(node.domain), node.op_type, node.overload


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name
