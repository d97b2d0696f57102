"""From the onnx package's protobuf messages to OnnxGraph and OnnxNode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import helper

from tilesmith.base.dtype import DType
from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.base.errors import ExpressionError, GraphError
from tilesmith.frontends.onnx.model import OnnxGraph, OnnxNode
from tilesmith.graph.graph import Array
from tilesmith.graph.program import Signature


class Reader(Protocol):
    """Gives what a message says: from the message itself, from the mapped file, or from a file
    beside it.
    """

    def array(self, tensor: onnx.TensorProto) -> Array: ...

    def whole(self, node: onnx.NodeProto) -> onnx.NodeProto: ...


def dtype_of(code: int, what: str) -> DType:
    """The dtype of an ONNX element type."""
    try:
        numpy_type = np.dtype(helper.tensor_dtype_to_np_dtype(code))
        return dtype_named(numpy_type)
    except (KeyError, TypeError, ExpressionError):
        names = {v: k for k, v in onnx.TensorProto.DataType.items()}
        raise GraphError(
            f"{what} is of type {names.get(code, code)}, for which there are no kernels"
        ) from None


def signature(info: onnx.ValueInfoProto) -> Signature:
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        raise GraphError(
            f"{info.name!r} is a {kind or 'value without a type'}; it must be a tensor"
        )
    tensor = info.type.tensor_type
    dims: tuple[int | str, ...] | None = None
    if tensor.HasField("shape"):
        dims = tuple(_dim(d, f"{text(info.name)}.{k}") for k, d in enumerate(tensor.shape.dim))
    return Signature(text(info.name), dtype_of(tensor.elem_type, f"{info.name!r}"), dims)


def _dim(d: onnx.TensorShapeProto.Dimension, name: str) -> int | str:
    """A size, or the name of an open dimension: the model's own, or else `name`. Exporters write
    negative sizes for open ones too.
    """
    if d.HasField("dim_value") and d.dim_value >= 0:
        return int(d.dim_value)
    return text(d.dim_param) or name


def convert_graph(
    graph: onnx.GraphProto, opsets: Mapping[str, int], read: Reader, *, is_body: bool = False
) -> OnnxGraph:
    initializers: dict[str, Array] = {}
    for t in graph.initializer:
        name = text(t.name)
        if name in initializers or not name:
            raise GraphError(
                f"two initializers are called {name!r}" if name else "an initializer has no name"
            )
        initializers[name] = read.array(t)
    for sparse in graph.sparse_initializer:
        raise GraphError(f"{sparse.values.name!r} is a sparse initializer, which is not supported")
    inputs = tuple(
        _body_signature(i) if is_body else signature(i)
        for i in graph.input
        if text(i.name) not in initializers
    )
    nodes = convert_nodes(graph.node, opsets, text(graph.name), read)
    outputs = tuple(text(o.name) for o in graph.output)
    return OnnxGraph(text(graph.name) or "model", inputs, outputs, nodes, initializers)


def _body_signature(info: onnx.ValueInfoProto) -> Signature:
    """Of a body: types may be left out, and are known from its caller."""
    if info.type.WhichOneof("value") is None:
        return Signature(text(info.name), dtype_named("float32"), None)
    return signature(info)


def convert_nodes(
    nodes: Sequence[onnx.NodeProto], opsets: Mapping[str, int], graph: str, read: Reader
) -> tuple[OnnxNode, ...]:
    return tuple(_node(n, opsets, read, f"{graph}/{k}") for k, n in enumerate(nodes))


def _node(node: onnx.NodeProto, opsets: Mapping[str, int], read: Reader, position: str) -> OnnxNode:
    domain = "" if node.domain == "ai.onnx" else text(node.domain)
    if domain not in opsets:
        raise GraphError(
            f"{text(node.op_type)} {text(node.name) or position!r} is of the domain "
            f"{domain or 'ai.onnx'!r}, whose version the model does not state"
        )
    attributes = {
        a.name: _attribute(a, opsets, read) for a in node.attribute if not a.ref_attr_name
    }
    return OnnxNode(
        text(node.name) or position, text(node.op_type), domain, opsets[domain],
        tuple(map(text, node.input)), tuple(map(text, node.output)), attributes, read.whole(node),
    )  # fmt: skip


def _attribute(a: onnx.AttributeProto, opsets: Mapping[str, int], read: Reader) -> Any:
    kinds = onnx.AttributeProto
    match a.type:
        case kinds.INT:
            return int(a.i)
        case kinds.FLOAT:
            return float(a.f)
        case kinds.STRING:
            return text(a.s)
        case kinds.TENSOR:
            return read.array(a.t)
        case kinds.GRAPH:
            return convert_graph(a.g, opsets, read, is_body=True)
        case kinds.INTS:
            return tuple(map(int, a.ints))
        case kinds.FLOATS:
            return tuple(map(float, a.floats))
        case kinds.STRINGS:
            return tuple(map(text, a.strings))
        case kinds.TENSORS:
            return tuple(map(read.array, a.tensors))
        case kinds.GRAPHS:
            return tuple(convert_graph(g, opsets, read, is_body=True) for g in a.graphs)
        case _:
            raise GraphError(f"the attribute {a.name!r} is of a type that is not supported")


def text(data: str | bytes) -> str:
    """A string of the model. Protobuf gives bytes where it is not valid UTF-8."""
    return data if isinstance(data, str) else data.decode("utf-8", errors="replace")
