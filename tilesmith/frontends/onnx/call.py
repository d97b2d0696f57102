"""Call: one ONNX node while it is being imported, as its importer sees it.

An importer is a function from a Call to the node's results:

    def relu(call: Call) -> Value:
        return call.add(ops.relu, call.value(0))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np

from tilesmith.frontends.onnx.model import OnnxNode
from tilesmith.frontends.shared.building import Building
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Array, Value

T = TypeVar("T")
Importer = Callable[["Call"], Any]  # a Value, or a sequence of them (None: that output is absent)


class NeedsContents(Exception):
    """The import depends on what a value holds, which is known at run time only."""

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value


class RunOnHost(Exception):
    """This node has no kernel; the reason is shown to the user. `function` computes it with NumPy,
    arrays in and arrays out; without one the onnx package's reference operator does.
    """

    def __init__(
        self, why: str, function: Callable[[Sequence[Array | None]], Sequence[Any]] | None = None
    ) -> None:
        super().__init__(why)
        self.function = function


@dataclass(frozen=True, slots=True)
class OnHost:
    """The importer of an operator that has no kernel whatever its inputs are. That the onnx package
    has the operator is then known when a model is loaded.
    """

    why: str

    def __call__(self, call: Call) -> NoReturn:
        raise RunOnHost(self.why)


class Call(Building):
    """The node, its inputs as values of the graph, and the ways to add to the graph."""

    def __init__(self, node: OnnxNode, inputs: Sequence[Value | None], builder: GraphBuilder):
        label = next((x for x in node.outputs if x), "")
        super().__init__(str(node), label, builder)
        self.node, self._inputs = node, tuple(inputs)

    # inputs
    @property
    def version(self) -> int:
        """The model's opset, as the meaning of some operators changed."""
        return self.node.version

    @property
    def values(self) -> tuple[Value, ...]:
        """All inputs, where none may be left out."""
        return tuple(self.value(k) for k in range(len(self._inputs)))

    @property
    def num_outputs(self) -> int:
        return len(self.node.outputs)

    def wants(self, k: int) -> bool:
        """Whether anything reads output k."""
        return k < len(self.node.outputs) and bool(self.node.outputs[k])

    def has(self, k: int) -> bool:
        return k < len(self._inputs) and self._inputs[k] is not None

    def value(self, k: int) -> Value:
        v = self._inputs[k] if k < len(self._inputs) else None
        if v is None:
            self.refuse(f"input {k} is missing")
        return v

    def optional(self, k: int) -> Value | None:
        return self._inputs[k] if k < len(self._inputs) else None

    def array(self, k: int) -> Array:
        """What input k holds. Where that is known at run time only, the import stops here and goes
        on when it is known.
        """
        a = self.builder.array(self.value(k))
        if a is None:
            raise NeedsContents(self.node.inputs[k])
        return a

    def optional_array(self, k: int) -> Array | None:
        return self.array(k) if self.has(k) else None

    def known(self, k: int) -> Array | None:
        """What input k holds if it is a constant; None at run time, without stopping."""
        return self.builder.array(self.value(k)) if self.has(k) else None

    def ints(self, k: int) -> list[int]:
        """Input k, a vector or scalar of whole numbers, by its contents."""
        a = self.array(k)
        if a.ndim > 1 or a.dtype.kind not in "iu":
            self.refuse(f"input {k} is {a.dtype}{list(a.shape)}; it must be a vector of integers")
        return [int(x) for x in np.atleast_1d(a)]

    # attributes
    def attribute(self, name: str, default: T) -> T:
        """An attribute, of the default's type; tuples for lists."""
        v = self.node.attributes.get(name, default)
        if default is not None and v is not None and not _alike(v, default):
            self.refuse(f"attribute {name!r} is {v!r}, of another type than {default!r}")
        return v  # type: ignore[no-any-return]

    def has_attribute(self, name: str) -> bool:
        return name in self.node.attributes

    def required(self, name: str) -> Any:
        if name not in self.node.attributes:
            self.refuse(f"attribute {name!r} is missing")
        return self.node.attributes[name]


def _alike(v: Any, default: Any) -> bool:
    if isinstance(default, tuple):
        return isinstance(v, tuple)
    if isinstance(default, float):
        return isinstance(v, float | int)
    return isinstance(v, type(default))
