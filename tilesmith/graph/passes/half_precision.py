"""Half precision: float32 weights and activations become float16 or bfloat16, and are cast at the
borders, so that a caller sees the dtypes of the model.

What is stored has 16 bits. float32 are the sums inside of an operator (`ops/precision.py`), and the
values between element-wise operators that may leave the range of float16: the squares of a norm,
numbers such as a mask of -1e9 or an epsilon of 1e-12, and what is behind them in the same kernel.
A finite number that float16 cannot hold becomes its largest one, never an infinity. A product,
convolution or norm with weights that float16 cannot hold stays in float32 as a whole, and so does
one of activations beyond it: those that calibration found, or else rows of a table of such numbers,
and what comes of such weights. A warning and the model's summary name them. Numbers far below 0
that are added are a mask, which is cut to the least number of float16.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from math import isnan, nan
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import BFLOAT16, FLOAT16, FLOAT32, DType
from tilesmith.base.errors import TilesmithError
from tilesmith.expr.dsl import Tensor
from tilesmith.expr.functions import absolute, maximum, minimum
from tilesmith.expr.values import Value as Element
from tilesmith.expr.values import cast as cast_element
from tilesmith.expr.values import where
from tilesmith.graph.edit import Editor
from tilesmith.graph.graph import Array, Graph, Node, Value
from tilesmith.graph.kinds import Kind, is_movement, work_of
from tilesmith.graph.layer_notes import LayerNote, PrecisionReport
from tilesmith.ops.elementwise import (
    add,
    cast,
    divide,
    each,
    exp,
    expm1,
    multiply,
    power,
    reciprocal,
    relu,
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

# By dtype, the largest number, and the smallest one with all its bits.
_RANGES = {
    FLOAT16: (float(np.finfo(np.float16).max), float(np.finfo(np.float16).tiny)),
    BFLOAT16: (float(2.0**127 * (2 - 2.0**-7)), float(2.0**-126)),
}
# Operators of numbers in the range of float16 whose results are often beyond it.
_SUMS = frozenset({
    reduce_sum, reduce_mean, reduce_prod, reduce_l1, reduce_l2, reduce_log_sum, reduce_log_sum_exp,
    reduce_sum_square,
})  # fmt: skip
_GROWS = _SUMS | {multiply, divide, power, reciprocal, sqrt, rsqrt, exp, expm1}
_KEEPS = (add, relu)  # large numbers stay large
_PRODUCTS = (matmul, batch_matmul, dense)
_WEIGHTED = (Kind.HEAVY, Kind.REDUCTION)


@dataclass(frozen=True)
class HalfPrecision:
    """The pass. Products and convolutions of the nodes of the model that `wide` names, as
    "Conv /stem/Conv", stay in float32. `beyond` are values that may hold larger numbers than
    the dtype: they and whatever reads or makes them stay in float32. None is for those that the
    constants of the model alone tell. `errors` has what layers alone lose, by their names, for the
    notes in the result.
    """

    dtype: DType = FLOAT16
    wide: frozenset[str] = frozenset()
    beyond: frozenset[str] | None = None
    errors: tuple[tuple[str, float], ...] = ()

    def __call__(self, graph: Graph) -> Graph:
        return _Narrowing(graph, self).graph()


half_precision = HalfPrecision()


def largest(dtype: DType) -> float:
    """The largest number of float16 or bfloat16."""
    return _RANGES[dtype][0]


class _Narrowing:
    """Every float32 value of the old graph has up to two in the new one: itself, for whoever
    computes in float32, and its float16.
    """

    def __init__(self, graph: Graph, asked: HalfPrecision) -> None:
        self.old, self.e, self.asked = graph, Editor(graph), asked
        self.half: dict[str, Value] = {}  # by the value's name in the old graph
        self.too_large: dict[str, list[str]] = {}  # nodes by what is beyond float16
        self.beyond = self._by_constants() if asked.beyond is None else asked.beyond
        self.notes: list[LayerNote] = []

    def graph(self) -> Graph:
        e = self.e
        for node in self.old.nodes:
            e.node = node
            for old, new in zip(node.outputs, self._computed(node), strict=True):
                wide = new.dtype is FLOAT32 and (old in self.beyond or self._stays_wide(node, old))
                e.set(old, new if wide else self._narrow(new))
            e.done.add(node.name)
        e.node = None
        for what, nodes in self.too_large.items():
            warnings.warn(
                f"{self.old.name}: {', '.join(nodes)} stay in float32, because they have {what} "
                f"beyond {largest(self.asked.dtype):.6g}, the largest number of {self.asked.dtype}",
                stacklevel=2,
            )
        outputs = {}
        for name, value in self.old.outputs:
            new, wanted = e.new[value], self.old.values[value].dtype
            outputs[name] = new if new.dtype is wanted else e.add(cast, new, dtype=wanted.name)
        done = e.builder.finish(outputs)
        return replace(done, precision=PrecisionReport(self._shared()))

    def _computed(self, node: Node) -> tuple[Value, ...]:
        e = self.e
        if self._is_wide(node) or self._overflows(node):
            return e.kept(node, tuple(self._as_wide(e.new[x]) for x in node.inputs))
        self._note(node, self.asked.dtype)
        inputs = tuple(map(self._as_half, node.inputs))
        settings = dict(node.settings)
        if self._is_scaled(node):
            return (e.add(node.function, *inputs, **{**settings, "out_dtype": "float32"}),)
        try:
            return e.kept(node, inputs)
        except TilesmithError:
            self._note(node, FLOAT32, f"it does not take {self.asked.dtype}")
            return e.kept(node, tuple(map(self._as_wide, inputs)))

    def _overflows(self, node: Node) -> bool:
        """Whether a node sums products of numbers that float16 cannot hold, or was asked to stay in
        float32.
        """
        beyond = not self.beyond.isdisjoint((*node.inputs, *node.outputs))
        large = self._has_large_weights(node)
        is_heavy = work_of(self.old, node).kind is Kind.HEAVY
        what = "weights" if large else "activations" if beyond and is_heavy else ""
        if what:
            self.too_large.setdefault(what, []).append(node.origin or node.name)
            self._note(node, FLOAT32, f"{what} beyond {largest(self.asked.dtype):.6g}")
        elif is_heavy and node.origin in self.asked.wide:
            self._note(node, FLOAT32)
            return True
        return large or beyond

    def _has_large_weights(self, node: Node) -> bool:
        """Whether float16 cannot hold the constants of a product, a convolution or a norm."""
        if node.function in _SUMS or work_of(self.old, node).kind not in _WEIGHTED:
            return False
        arrays = [self.old.constants[x] for x in node.inputs if x in self.old.constants]
        return any(a.dtype == np.float32 and not self._is_held(a) for a in arrays if a.size > 1)

    def _by_constants(self) -> frozenset[str]:
        """Values with larger numbers than the dtype has, as far as constants tell: what is read
        from or added to such constants, and what layers with such weights compute. Masks are none:
        their large numbers are below 0.
        """
        floats = {x: a for x, a in self.old.constants.items() if a.dtype == np.float32}
        large = {x: a for x, a in floats.items() if a.size > 1 and not self._is_held(a)}
        found = {x for x, a in large.items() if not self._is_held(np.maximum(a, 0))}
        for node in self.old.nodes:
            reads = not found.isdisjoint(node.inputs)
            keeps = reads and (node.function in _KEEPS or is_movement(self.old, node))
            if keeps or self._has_large_weights(node):
                found |= {x for x in node.outputs if self.old.values[x].dtype is FLOAT32}
        return frozenset(found)

    def _note(self, node: Node, dtype: DType, why: str = "") -> None:
        """What the summary says of a layer: the last note counts."""
        name = node.origin or node.name
        if work_of(self.old, node).kind is Kind.HEAVY or why:
            if self.notes and self.notes[-1].name == name:
                self.notes.pop()
            error = 0.0 if dtype is FLOAT32 else dict(self.asked.errors).get(name, nan)
            self.notes.append(LayerNote(name, dtype.name, error, why=why))

    def _shared(self) -> tuple[LayerNote, ...]:
        """The notes, with the share of each of the sum of the squares of the known errors."""
        whole = sum(n.error**2 for n in self.notes if not isnan(n.error))
        if not self.asked.errors or not whole:
            return tuple(self.notes)
        return tuple(replace(n, share=n.error**2 / whole) for n in self.notes)

    def _is_wide(self, node: Node) -> bool:
        """Whether a node computes in float32. Products and movements never do."""
        if node.function is cast or not self._is_pointwise(node):
            return False
        if node.function in _GROWS or not all(map(self._is_held, _numbers(node.settings))):
            return True
        for x in node.inputs:
            new, array = self.e.new[x], self.old.constants.get(x)
            if new.dtype is FLOAT32 and (array is None or not self._is_held(array)):
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
                self.half[x] = self.e.constant(self._rounded(array), x)
            else:
                self.half[x] = self._narrow(self.e.new[x])
        return self.half[x]

    def _as_wide(self, v: Value) -> Value:
        return self.e.add(cast, v, dtype="float32") if v.dtype is self.asked.dtype else v

    def _narrow(self, v: Value) -> Value:
        if v.dtype is not FLOAT32:
            return v
        if self.asked.dtype is FLOAT16:
            return self.e.add(to_half, v)
        return self.e.add(cast, v, dtype=self.asked.dtype.name)

    def _is_held(self, v: float | Array) -> bool:
        """Whether float16 has the numbers: no finite one is too large, and none of a single number
        is too small. Among many, as weights are, small ones do not matter.
        """
        most, least = _RANGES[self.asked.dtype]
        if isinstance(v, np.ndarray) and v.size > 1 and -most <= v.min() and v.max() <= most:
            return True  # without a copy of the weights
        size = np.abs(np.asarray(v, np.float64))
        finite = size[np.isfinite(size)]
        if size.size == 1 and 0 < size < least:
            return False
        return bool((finite <= most).all())

    def _rounded(self, a: Array) -> Array:
        """Finite numbers stay finite: a mask of -1e9 must not become an infinity."""
        most, _ = _RANGES[self.asked.dtype]
        limited = np.where(np.isfinite(a), np.clip(a, -most, most), a)
        return np.asarray(limited.astype(self.asked.dtype.numpy))


def to_half(X: Tensor, name: str = "to_half") -> Tensor:
    """float16, in which finite numbers stay finite."""
    most, _ = _RANGES[FLOAT16]

    def f(x: Element) -> Element:
        limited = maximum(minimum(x, most), -most)
        return cast_element(where(absolute(x) == float("inf"), x, limited), "float16")

    return each(X, f, name)


def _numbers(v: Any) -> Iterable[float]:
    """The floats in a node's settings."""
    if isinstance(v, float):
        yield v
    elif isinstance(v, tuple):
        for x in v:
            yield from _numbers(x)
