"""Half precision: float32 weights and activations become float16, and are cast at the borders, so
that a caller sees the dtypes of the model.

What is stored is float16. float32 are the sums inside of an operator (`ops/precision.py`), and the
values between element-wise operators that may leave the range of float16: the squares of a norm,
numbers such as a mask of -1e9 or an epsilon of 1e-12, and what is behind them in the same kernel.
A finite number that float16 cannot hold becomes its largest one, never an infinity.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tilesmith.base.dtype import FLOAT16, FLOAT32
from tilesmith.base.errors import GraphError, TilesmithError
from tilesmith.base.target import Target
from tilesmith.expr.dsl import Tensor
from tilesmith.expr.functions import absolute, maximum, minimum
from tilesmith.expr.values import Value as Element
from tilesmith.expr.values import cast as cast_element
from tilesmith.expr.values import where
from tilesmith.graph.edit import Editor
from tilesmith.graph.graph import Array, Graph, Node, Value
from tilesmith.graph.kinds import Kind, work_of
from tilesmith.ops.elementwise import (
    cast,
    divide,
    each,
    exp,
    expm1,
    multiply,
    power,
    reciprocal,
    rsqrt,
    sqrt,
)
from tilesmith.ops.matmul import batch_matmul, dense, matmul
from tilesmith.ops.reduce import (
    reduce_l1,
    reduce_l2,
    reduce_log_sum,
    reduce_log_sum_exp,
    reduce_mean,
    reduce_prod,
    reduce_sum,
    reduce_sum_square,
)

PRECISIONS = ("float32", "float16")
_LARGEST = float(np.finfo(np.float16).max)
_SMALLEST = float(np.finfo(np.float16).tiny)
# Operators of numbers in the range of float16 whose results are often beyond it.
_SUMS = frozenset({
    reduce_sum, reduce_mean, reduce_prod, reduce_l1, reduce_l2, reduce_log_sum, reduce_log_sum_exp,
    reduce_sum_square,
})  # fmt: skip
_GROWS = _SUMS | {multiply, divide, power, reciprocal, sqrt, rsqrt, exp, expm1}
_PRODUCTS = (matmul, batch_matmul, dense)


def require_precision(precision: Any, target: Target, who: str) -> None:
    """An error for an unknown precision, and for one that a machine cannot compute with."""
    if precision not in PRECISIONS:
        known = " or ".join(map(repr, PRECISIONS))
        raise GraphError(f"{who}(precision={precision!r}) is unknown; give {known}")
    if precision == "float16" and target.kind == "cpu" and not target.features & {"fp16", "f16c"}:
        raise GraphError(
            f'{who}(precision="float16"): {target.name} has no instructions for '
            'half precision (fp16 or f16c); leave precision="float32"'
        )


def half_precision(graph: Graph) -> Graph:
    return _Narrowing(graph).graph()


class _Narrowing:
    """Every float32 value of the old graph has up to two in the new one: itself, for whoever
    computes in float32, and its float16.
    """

    def __init__(self, graph: Graph) -> None:
        self.old, self.e = graph, Editor(graph)
        self.half: dict[str, Value] = {}  # by the value's name in the old graph

    def graph(self) -> Graph:
        e = self.e
        for node in self.old.nodes:
            e.node = node
            for old, new in zip(node.outputs, self._computed(node), strict=True):
                wide = new.dtype is FLOAT32 and self._stays_wide(node, old)
                e.set(old, new if wide else self._narrow(new))
            e.done.add(node.name)
        e.node = None
        outputs = {}
        for name, value in self.old.outputs:
            new, wanted = e.new[value], self.old.values[value].dtype
            outputs[name] = new if new.dtype is wanted else e.add(cast, new, dtype=wanted.name)
        return e.builder.finish(outputs)

    def _computed(self, node: Node) -> tuple[Value, ...]:
        e = self.e
        if self._is_wide(node):
            return e.kept(node, tuple(self._as_wide(e.new[x]) for x in node.inputs))
        inputs = tuple(map(self._as_half, node.inputs))
        settings = dict(node.settings)
        if self._is_scaled(node):
            return (e.add(node.function, *inputs, **{**settings, "out_dtype": "float32"}),)
        try:
            return e.kept(node, inputs)
        except TilesmithError:  # it does not take half precision
            return e.kept(node, tuple(map(self._as_wide, inputs)))

    def _is_wide(self, node: Node) -> bool:
        """Whether a node computes in float32. Products and movements never do."""
        if node.function is cast or not self._is_pointwise(node):
            return False
        if node.function in _GROWS or not all(map(_is_held, _numbers(node.settings))):
            return True
        for x in node.inputs:
            new, array = self.e.new[x], self.old.constants.get(x)
            if new.dtype is FLOAT32 and (array is None or not _is_held(array)):
                return True
        return False

    def _is_pointwise(self, node: Node) -> bool:
        return node.function in _SUMS or work_of(self.old, node).kind is Kind.ELEMENTWISE

    def _stays_wide(self, node: Node, value: str) -> bool:
        """Whether a value goes on in float32: it is read by one node, in the same kernel, that
        computes in it, or is a result of the model.
        """
        readers = self.old.consumers.get(value, ())
        if value in self.old.returned:
            return not readers
        return (
            len(readers) == 1 and readers[0].function is not cast and self._is_pointwise(readers[0])
        )

    def _is_scaled(self, node: Node) -> bool:
        """Whether a product is only multiplied: the scores of attention are too large before."""
        readers = self.old.consumers.get(node.outputs[0], ())
        return (
            node.function in _PRODUCTS and node.setting("out_dtype") is None
            and self.old.values[node.outputs[0]].dtype is FLOAT32
            and len(readers) == 1 and readers[0].function in (multiply, divide)
        )  # fmt: skip

    def _as_half(self, x: str) -> Value:
        if x not in self.half:
            array = self.old.constants.get(x)
            if array is not None and array.dtype == np.float32:
                self.half[x] = self.e.constant(_rounded(array), x)
            else:
                self.half[x] = self._narrow(self.e.new[x])
        return self.half[x]

    def _as_wide(self, v: Value) -> Value:
        return self.e.add(cast, v, dtype="float32") if v.dtype is FLOAT16 else v

    def _narrow(self, v: Value) -> Value:
        return self.e.add(to_half, v) if v.dtype is FLOAT32 else v


def to_half(X: Tensor, name: str = "to_half") -> Tensor:
    """float16, in which finite numbers stay finite."""

    def f(x: Element) -> Element:
        limited = maximum(minimum(x, _LARGEST), -_LARGEST)
        return cast_element(where(absolute(x) == float("inf"), x, limited), "float16")

    return each(X, f, name)


def _numbers(v: Any) -> Iterable[float]:
    """The floats in a node's settings."""
    if isinstance(v, float):
        yield v
    elif isinstance(v, tuple):
        for x in v:
            yield from _numbers(x)


def _is_held(v: float | Array) -> bool:
    """Whether float16 has the numbers: no finite one is too large, and none of a single number is
    too small. Among many, as weights are, small ones do not matter.
    """
    size = np.abs(np.asarray(v, np.float64))
    finite = size[np.isfinite(size)]
    if size.size == 1 and 0 < size < _SMALLEST:
        return False
    return bool((finite <= _LARGEST).all())


def _rounded(a: Array) -> Array:
    """Finite numbers stay finite: a mask of -1e9 must not become an infinity."""
    limited = np.where(np.isfinite(a), np.clip(a, -_LARGEST, _LARGEST), a)
    return np.asarray(limited.astype(np.float16))
