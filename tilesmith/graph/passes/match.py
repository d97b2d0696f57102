"""Match: the nodes and numbers that a pattern has matched so far, from a node towards its inputs.
Numbers are constants of one element or settings; factors of a product match in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from math import isclose, prod
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.graph.edit import Editor
from tilesmith.graph.graph import Node, Operator, Value
from tilesmith.ops.elementwise import add, divide, multiply, negative, power, reciprocal, sqrt

Term = Value | float
_MAX_POWER = 3  # whole powers that are seen as products


@dataclass(frozen=True, slots=True)
class Root:
    """The node that is being rewritten, as it would be in the new graph."""

    function: Operator
    inputs: tuple[Value, ...]
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Factors:
    number: float
    values: tuple[Value, ...]


@dataclass(slots=True)
class Match:
    e: Editor
    root: Root
    nodes: list[Node] = field(default_factory=list)  # of the new graph
    values: list[Value] = field(default_factory=list)  # their results
    leaves: list[Value] = field(default_factory=list)  # factors that are not taken apart

    def holds(self) -> bool:
        """Whether nobody else reads what lies in between."""
        return all(self.e.is_inside(v, self.nodes) for v in self.values)

    def first(self, *tries: Callable[[Match], Value | None]) -> Value | None:
        """The first way that fits. Each starts from what is seen so far, and what it sees counts
        only if it fits.
        """
        for one in tries:
            seen = Match(self.e, self.root, [*self.nodes], [*self.values], [*self.leaves])
            if (out := one(seen)) is not None:
                self.nodes, self.values, self.leaves = seen.nodes, seen.values, seen.leaves
                return out
        return None

    def made(self, v: Term, *functions: Operator) -> Node | None:
        """The node that makes a value, if it applies one of these functions."""
        if not isinstance(v, Value):
            return None
        node = self.e.maker(v)
        if node is None or node.function not in functions or len(node.outputs) != 1:
            return None
        if node.name not in {n.name for n in self.nodes}:
            self.nodes.append(node)
            self.values.append(v)
        return node

    def inputs(self, node: Node) -> tuple[Value, ...]:
        return tuple(self.e.builder.value(x) for x in node.inputs)

    def of(self, v: Term, *functions: Operator) -> Value | None:
        """x where v is f(x)."""
        node = self.made(v, *functions)
        return None if node is None or len(node.inputs) != 1 else self.inputs(node)[0]

    def terms(self, v: Term, function: Operator) -> tuple[Term, Term] | None:
        """(a, b) where v is function(a, b); constants of one element are numbers."""
        node = self.made(v, function)
        return None if node is None else self._terms(self.inputs(node), dict(node.settings))

    def root_terms(self) -> tuple[Term, Term] | None:
        return self._terms(self.root.inputs, self.root.settings)

    def _terms(
        self, inputs: tuple[Value, ...], settings: dict[str, Any]
    ) -> tuple[Term, Term] | None:
        given: list[Term] = [self.number_or_value(v) for v in inputs]
        if len(given) == 1 and isinstance(settings.get("B"), int | float):
            given.append(float(settings["B"]))
        return (given[0], given[1]) if len(given) == 2 else None

    def number_or_value(self, v: Value) -> Term:
        a = self.e.array(v)
        if a is None or prod(a.shape) != 1 or not v.dtype.is_float:
            return v
        return float(a.reshape(()).astype(np.float64))

    def plus(self, v: Term) -> tuple[float, Value] | None:
        """(number, x) where v is number + x."""
        match self.terms(v, add):
            case (float(n), Value() as x) | (Value() as x, float(n)):
                return n, x
        return None

    def factors(self, v: Term) -> Factors:
        """What v is the product of."""
        return self._product([v])

    def root_factors(self) -> Factors | None:
        """What the root is the product of."""
        terms = self.root_terms()
        if terms is None or self.root.function not in (multiply, divide):
            return None
        if self.root.function is divide:
            if not isinstance(terms[1], float) or terms[1] == 0:
                return None
            terms = (terms[0], 1 / terms[1])
        return self._product(list(terms))

    def _product(self, stack: list[Term]) -> Factors:
        number, values = 1.0, list[Value]()
        while stack:
            v = stack.pop()
            if isinstance(v, float):
                number *= v
            elif (inner := self._inner_factors(v)) is not None:
                stack += inner
            else:
                values.append(v)
                self.leaves.append(v)
        return Factors(number, tuple(values))

    def _inner_factors(self, v: Value) -> list[Term] | None:
        """The factors of a value that only this product reads."""
        node = self.e.maker(v)
        if node is None or v in self.leaves or not self.e.is_inside(v, self.nodes):
            return None
        inputs = self.inputs(node)
        terms = self._terms(inputs, dict(node.settings))
        found: list[Term] | None = None
        match node.function, terms:
            case f, (a, b) if f is multiply:
                found = [a, b]
            case f, (a, float(b)) if f is divide and b != 0:
                found = [a, 1 / b]
            case f, (a, float(n)) if f is power and n in range(1, _MAX_POWER + 1):
                found = [a] * int(n)
            case f, None if f is negative:
                found = [-1.0, inputs[0]]
        if found is not None:
            self.nodes.append(node)
            self.values.append(v)
        return found

    def is_near(self, a: float, b: float) -> bool:
        """Whether a constant of the model is this number, as far as its type can hold it."""
        half = any(v.dtype.is_float and v.dtype.bits < 32 for v in self.root.inputs)
        return isclose(a, b, rel_tol=4e-3 if half else 1e-5)

    def squared(self, v: Term) -> Value | None:
        """x where v is x * x."""
        node = self.made(v, multiply, power)
        if node is None:
            return None
        inputs = self.inputs(node)
        if node.function is multiply:
            return inputs[0] if len(inputs) == 2 and inputs[0] == inputs[1] else None
        match self._terms(inputs, dict(node.settings)):
            case (Value() as x, 2.0):
                return x
        return None

    def root_of(self, v: Term) -> Value | None:
        """x where v is the square root of x."""
        return self._power_of(v, 0.5) or self.of(v, sqrt)

    def inverse_root_of(self, v: Term) -> Value | None:
        """x where v is 1 / sqrt(x)."""
        if (x := self._power_of(v, -0.5)) is not None:
            return x
        if (inner := self.of(v, reciprocal)) is not None:
            return self.root_of(inner)
        match self.terms(v, divide):
            case (1.0, Value() as inner):
                return self.root_of(inner)
        return None

    def _power_of(self, v: Term, exponent: float) -> Value | None:
        match self.terms(v, power):
            case (Value() as x, float(n)) if n == exponent:
                return x
        return None

    def reduced(self, v: Term, function: Operator) -> tuple[Value, tuple[int, ...]] | None:
        """(x, axes) where v is a reduction of x that keeps its dimensions."""
        node = self.made(v, function)
        if node is None or not node.setting("keepdims", False):
            return None
        x, axes = self.inputs(node)[0], node.setting("axes")
        rank = len(x.shape)
        wanted = range(rank) if axes is None else (axes,) if isinstance(axes, int) else axes
        return (x, tuple(sorted(a % rank for a in wanted))) if rank else None
