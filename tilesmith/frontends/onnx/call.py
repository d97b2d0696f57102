"""Call: one ONNX node while it is being imported. Its importer is a function with the Call in front
of the parameters, which are the operator's schema:

    def top_k(call: Call, x: Value, k: list[int], *, axis: int = -1) -> Value:
        return call.add(ops.top_k, x, k=k[0], axis=call.axis(axis, len(x.shape)))

How a node is bound to those parameters is in signature.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DTYPES, DType, dtype
from tilesmith.frontends.onnx.model import OnnxNode
from tilesmith.frontends.shared.building import Building
from tilesmith.frontends.shared.wishes import Wish
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.checks import Bound, Check
from tilesmith.graph.graph import Array, Value

Importer = Callable[..., Any]  # a Value, or a sequence of them (None: that output is absent)

# TensorProto.DataType of the ONNX format; those that have no kernels are named for messages.
_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    8: "string", 9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
    14: "complex64", 15: "complex128", 16: "bfloat16", 17: "float8e4m3fn", 18: "float8e4m3fnuz",
    19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4e2m1",
}  # fmt: skip


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

    def __call__(self, call: Call, *inputs: Value | None, **attributes: Any) -> NoReturn:
        raise RunOnHost(self.why)


class Call(Building):
    """The node, its inputs as values of the graph, and the ways to add to the graph."""

    def __init__(self, node: OnnxNode, inputs: Sequence[Value | None], builder: GraphBuilder):
        label = next((x for x in node.outputs if x), "")
        super().__init__(str(node), label, builder)
        self.node, self.inputs = node, tuple(inputs)
        self.wishes: list[Wish] = []

    @property
    def version(self) -> int:
        """The model's opset, as the meaning of some operators changed."""
        return self.node.version

    @property
    def num_outputs(self) -> int:
        return len(self.node.outputs)

    def wants(self, k: int) -> bool:
        """Whether anything reads output k."""
        return k < len(self.node.outputs) and bool(self.node.outputs[k])

    def array(self, v: Value) -> Array:
        """What an input holds. Where that is known at run time only, the import stops here and goes
        on when it is known.
        """
        a = self.contents(v)
        if a is None:
            raise NeedsContents(self.node.inputs[self._place(v)])
        return a

    def ints(self, v: Value) -> list[int]:
        """An input, a vector or scalar of whole numbers, by its contents."""
        a = self.array(v)
        if a.ndim > 1 or a.dtype.kind not in "iu":
            self.refuse(f"input {self._place(v)} is {a.dtype}{list(a.shape)}; it must be a vector "
                        "of integers")  # fmt: skip
        return [int(x) for x in np.atleast_1d(a)]

    def floats(self, v: Value) -> list[float]:
        """An input, a vector of numbers, by its contents."""
        a = self.array(v)
        if a.ndim != 1 or a.dtype.kind not in "iuf":
            self.refuse(f"input {self._place(v)} is {a.dtype}{list(a.shape)}; it must be a vector "
                        "of numbers")  # fmt: skip
        return [float(x) for x in a]

    def _place(self, v: Value) -> int:
        return next(k for k, x in enumerate(self.inputs) if x is v)

    def need_range(self, ids: Value, *extents: int) -> None:
        """Indices name elements of a dimension, from either end; with several extents, each those
        at one place of the last dimension of ids. Of what the model is given, but not of what it
        computes, that is checked in every call.
        """
        low: Bound = tuple(-n for n in extents)
        high: Bound = extents
        if len(extents) == 1:
            low, high = -extents[0], extents[0]
        known = self.contents(ids)
        if known is not None:
            Check(ids.name, self.origin, low, high).verify(known)
        else:
            given = self.builder.source(ids, is_row=len(extents) > 1)
            self.wishes.append(Wish(given, self.origin, low, high))

    def choice(self, name: str, value: str, choices: Sequence[str]) -> str:
        """An attribute that must be one of a few words."""
        if value not in choices:
            words = f"{', '.join(choices[:-1])} or {choices[-1]}"
            self.refuse(f"attribute {name!r} is {value!r}; it must be {words}")
        return value

    def element_type(self, code: int, what: str) -> DType:
        """The dtype of an element type that an attribute names."""
        name = _TYPES.get(code, f"the element type {code}")
        if name not in DTYPES:
            self.refuse(f"{what} is {name}, for which there are no kernels")
        return dtype(name)
