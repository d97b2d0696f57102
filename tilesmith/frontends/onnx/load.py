"""Loading: a model file in, a Graph out, or an open model where sizes are not known yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from tilesmith.base.errors import GraphError
from tilesmith.frontends.onnx.convert import convert_graph
from tilesmith.frontends.onnx.functions import functions_of
from tilesmith.frontends.onnx.model import OnnxGraph
from tilesmith.frontends.onnx.program import OnnxProgram
from tilesmith.graph.program import Signature
from tilesmith.graph.source import OpenGraph, closed


def load(path: str | Path | Any, dims: Mapping[str, int] | None = None) -> OpenGraph:
    """A model from a file or from an onnx.ModelProto. `dims` gives numbers to open
    dimensions by their names.
    """
    proto = path if isinstance(path, onnx.ModelProto) else onnx.load(path)
    opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}
    graph = replace(convert_graph(proto.graph, opsets), functions=functions_of(proto))
    return closed(OnnxProgram(_with_dims(graph, dims or {})))


def _with_dims(graph: OnnxGraph, dims: Mapping[str, int]) -> OnnxGraph:
    names = {d for s in graph.inputs for d in s.dims or () if isinstance(d, str)}
    if unknown := sorted(set(dims) - names):
        has = f"its open dimensions are {', '.join(sorted(names))}" if names else "none is open"
        raise GraphError(f"the model has no open dimension {unknown[0]!r}; {has}")

    def put(s: Signature) -> Signature:
        if s.dims is None:
            return s
        new = tuple(dims.get(d, d) if isinstance(d, str) else d for d in s.dims)
        return replace(s, dims=new)

    return replace(graph, inputs=tuple(map(put, graph.inputs)))
