"""The parts of an ONNX model as plain Python objects, so that importers need not know the onnx
package: nodes with their attributes as numbers, strings, arrays and graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
