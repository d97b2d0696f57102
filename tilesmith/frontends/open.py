"""ts.load_onnx: a model in, a Graph out. The onnx package is loaded when it is first needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilesmith.base.errors import GraphError
from tilesmith.graph.source import OpenGraph


def load_onnx(model: Any, dims: Mapping[str, int] | None = None) -> OpenGraph:
    """A model from a file's path or from an onnx.ModelProto.

    `dims` gives numbers to open dimensions by their names, as {"batch": 1}. The result is a Graph;
    where sizes stay open, or depend on what the model computes, it is a Program, whose parts become
    graphs at the first call with new shapes.
    """
    try:
        from tilesmith.frontends.onnx.load import load
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise GraphError(
            "ONNX models need the onnx package; install it: pip install 'tilesmith[onnx]'"
        ) from None
    return load(model, dims)
