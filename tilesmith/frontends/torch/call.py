"""Call: one ATen node while it is being imported, as its importer sees it.

An importer is a function with the arguments of the operator's schema behind the Call. Tensors come
as values of the graph, element types as DTypes:

    def leaky_relu(call: Call, x: Value, negative_slope: float = 0.01) -> Value:
        return call.add(ops.leaky_relu, x, alpha=negative_slope)

No importer needs PyTorch itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import BOOL, FLOAT32, INT64, DType, promote
from tilesmith.frontends.shared.building import Building
from tilesmith.frontends.shared.wishes import Wish
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Value

Importer = Callable[..., Any]  # a Value, or a tuple of them (None: that result is not computed)
Number = int | float | bool
Term = Value | Number


class NotCovered(Exception):
    """PyTorch has to run this node; the reason is shown to the user."""


@dataclass(frozen=True, slots=True)
class Type:
    """What PyTorch says of a tensor. Without strides it is contiguous."""

    shape: tuple[int, ...]
    dtype: DType
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """A value, and where in its memory PyTorch has its elements."""

    value: Value
    strides: tuple[int, ...]
    offset: int


class Call(Building):
    """`results` are the types of what the operator returns, `wanted` those that something reads.
    `bases` has for a reshaped value the one that it was made from. `memories` tells of the first
    operand, and then of what it is a view of.
    """

    def __init__(
        self, origin: str, label: str, builder: GraphBuilder, results: Sequence[Type | None],
        wanted: frozenset[int], bases: dict[str, Value], memories: Callable[[], list[Memory]],
    ) -> None:  # fmt: skip
        super().__init__(origin, label, builder)
        self._results, self._wanted, self.bases = tuple(results), wanted, bases
        self.memories = memories
        self.wishes: list[Wish] = []

    def type(self, k: int = 0) -> Type:
        found = self._results[k] if k < len(self._results) else None
        if found is None:
            self.leave("the type of its result is not known")
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type().shape

    @property
    def dtype(self) -> DType:
        return self.type().dtype

    def dim(self, x: Value, dim: int) -> int:
        """A dimension counted from 0. PyTorch, for which a scalar has one too, runs those."""
        if not x.shape:
            self.leave("its operand is a scalar")
        return dim % len(x.shape)

    def need_range(self, ids: Value, low: int, high: int) -> None:
        """Indices must lie in a range, which PyTorch makes sure of when it runs."""
        known = self.contents(ids)
        if known is None:
            self.wishes.append(Wish(self.builder.source(ids), self.origin, low, high))
        elif known.size and not low <= known.min() <= known.max() < high:
            self.leave(f"an index is not between {low} and {high - 1}")

    def need_same(self, *values: Value | None) -> None:
        """Operands must be of one dtype; PyTorch, which says so in its own words, runs others."""
        kinds = dict.fromkeys(str(v.dtype) for v in values if v is not None)
        if len(kinds) > 1:
            self.leave(f"its operands are {' and '.join(kinds)}")

    def wants(self, k: int) -> bool:
        return k in self._wanted

    def leave(self, why: str) -> NoReturn:
        raise NotCovered(why)

    def number(self, x: Term) -> Number | None:
        """A number of the code, or a constant of rank 0."""
        if not isinstance(x, Value):
            return x
        a = self.contents(x)
        if a is None or a.shape:
            return None
        held: Number = a.item() if a.dtype.kind in "biu" else float(a)
        return held

    def term(self, x: Term, dtype: DType) -> Term:
        """An operand of an element-wise operator that computes in `dtype`."""
        n = self.number(x)
        if n is None:
            assert isinstance(x, Value)
            return self.cast(x, dtype)
        return float(n) if dtype.is_float else (bool(n) if dtype is BOOL else int(n))

    def value(self, x: Term, dtype: DType) -> Value:
        """The same, where it must be a value."""
        if isinstance(x, Value):
            return self.cast(x, dtype)
        return self.constant(np.asarray(x).astype(dtype.numpy))

    def pair(self, function: Any, a: Term, b: Term, dtype: DType) -> Value:
        """An element-wise operator of two operands."""
        right = self.term(b, dtype)
        if not isinstance(right, Value):
            return self.add(function, self.value(a, dtype), B=right)
        return self.add(function, self.value(a, dtype), right)


def named(name: str, importer: Importer, *overloads: str) -> dict[str, Importer]:
    """One importer for several overloads of an operator."""
    return {f"aten.{name}.{o}": importer for o in overloads}


def both(name: str, importer: Importer) -> dict[str, Importer]:
    """With a tensor and with a number on the right."""
    return named(name, importer, "Tensor", "Scalar")


def common_dtype(*terms: Term) -> DType:
    """The dtype in which PyTorch compares or joins operands: tensors of rank 0 count less than
    others, and numbers less than these, but for a higher kind of number.
    """
    tensors = [x for x in terms if isinstance(x, Value)]
    levels = (
        [x.dtype for x in tensors if x.shape],
        [x.dtype for x in tensors if not x.shape],
        [_dtype_of(x) for x in terms if not isinstance(x, Value)],
    )
    found: DType | None = None
    for level in levels:
        if not level:
            continue
        joint = level[0]
        for d in level[1:]:
            joint = promote(joint, d)
        if found is None or _rank(joint) > _rank(found):
            found = joint
    assert found is not None
    return found


def _dtype_of(x: Number) -> DType:
    if isinstance(x, bool):
        return BOOL
    return INT64 if isinstance(x, int) else FLOAT32


def _rank(d: DType) -> int:
    return {"b": 0, "i": 1, "u": 1, "f": 2}[d.kind]
