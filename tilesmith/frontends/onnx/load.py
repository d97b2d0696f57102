"""Loading: a model file in, a Graph out, or an open model where sizes are not known yet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilesmith.base.errors import GraphError
from tilesmith.base.suggest import did_you_mean
from tilesmith.frontends.onnx.call import Importer
from tilesmith.frontends.onnx.check import checked, opsets_of, require_runnable
from tilesmith.frontends.onnx.convert import convert_graph
from tilesmith.frontends.onnx.file import ModelFile
from tilesmith.frontends.onnx.functions import functions_of
from tilesmith.frontends.onnx.model import OnnxGraph
from tilesmith.frontends.onnx.program import OnnxProgram
from tilesmith.frontends.onnx.signature import checked_operators
from tilesmith.graph.program import OpenGraph, Signature, closed

# PyTorch's exporters give every model one of these names, so the name of the file says more.
_NO_NAMES = {"", "main_graph", "torch_jit", "torch-jit-export"}


def load(
    path: str | Path | bytes | Any,
    dims: Mapping[str, int] | None = None,
    operators: Mapping[str, Importer] | None = None,
) -> OpenGraph:
    """A model from a file, from the bytes of one, or from an onnx.ModelProto. `dims` gives numbers
    to open dimensions by their names; one without a name is called after its input and its place,
    as "x.0". Weights are not copied: the file is mapped. The graph has the name that the model has,
    or else that of the file. `operators` are the user's own; see signature.py.
    """
    own = {} if operators is None else checked_operators(operators)
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else "the model"
    try:
        file = ModelFile(path)
        opsets = opsets_of(file.proto)
        graph = checked(convert_graph(file.proto.graph, opsets, file))
        graph = replace(graph, functions=functions_of(file.proto, file), operators=own)
        if isinstance(path, str | os.PathLike) and file.proto.graph.name in _NO_NAMES:
            graph = replace(graph, name=Path(name).stem)
        require_runnable(graph)
        return closed(OnnxProgram(_with_dims(graph, dims)))
    except GraphError as error:
        raise GraphError(f"{name}: {error}") from error.__cause__
    except RecursionError:
        raise GraphError(f"{name}: its graphs are nested too deep") from None
    except MemoryError:
        raise GraphError(f"{name}: there is not enough memory for it") from None


def _with_dims(graph: OnnxGraph, dims: Mapping[str, int] | None) -> OnnxGraph:
    given = _checked_dims({} if dims is None else dims)
    names = {d for s in graph.inputs for d in s.dims or () if isinstance(d, str)}
    if unknown := sorted(set(given) - names):
        has = f"its open dimensions are {', '.join(sorted(names))}" if names else "none is open"
        near = did_you_mean(unknown[0], names)
        raise GraphError(f"dims names {unknown[0]!r}, which is no open dimension{near}; {has}")

    def put(s: Signature) -> Signature:
        if s.dims is None:
            return s
        new = tuple(given.get(d, d) if isinstance(d, str) else d for d in s.dims)
        return replace(s, dims=new)

    return replace(graph, inputs=tuple(map(put, graph.inputs)))


def _checked_dims(dims: Any) -> dict[str, int]:
    if not isinstance(dims, Mapping) or not all(isinstance(n, str) for n in dims):
        raise GraphError(f'dims is {dims!r}; it must give sizes by name, as {{"batch": 1}}')
    out = {}
    for name, size in dims.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise GraphError(
                f"dims gives {name!r} the size {size!r}; it must be a whole number from 1 on"
            )
        out[name] = int(size)
    return out
