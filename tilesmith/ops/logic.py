"""Comparisons and conditions: tensors in, a bool tensor of their joint shape out."""

from __future__ import annotations

from math import inf

from tilesmith.base.dtype import BOOL
from tilesmith.base.errors import ExpressionError
from tilesmith.expr import values
from tilesmith.expr.dsl import Tensor
from tilesmith.expr.values import Value
from tilesmith.ops.arguments import operator, stated
from tilesmith.ops.elementwise import OfTwo, Term, each, joined


def _comparison(name: str, op: str, doc: str) -> OfTwo:
    label = name

    def made(A: Term, B: Term, name: str = label) -> Tensor:
        return joined(A, B, lambda a, b: values.binary(op, a, b), name)

    return stated(made, label, doc)


equal = _comparison("equal", "eq", "A == B, as bool.")
less = _comparison("less", "lt", "A < B, as bool.")
less_equal = _comparison("less_equal", "le", "A <= B, as bool.")
greater = _comparison("greater", "gt", "A > B, as bool.")
greater_equal = _comparison("greater_equal", "ge", "A >= B, as bool.")


def _need_conditions(*terms: Term) -> None:
    for x in terms:
        found = x.dtype.name if isinstance(x, Tensor) else type(x).__name__
        if found != BOOL.name:
            raise ExpressionError(f"an operand is {found}; it must be bool: compare it first")


def _of_conditions(name: str, op: str, doc: str) -> OfTwo:
    label = name

    def made(A: Term, B: Term, name: str = label) -> Tensor:
        _need_conditions(A, B)
        return joined(A, B, lambda a, b: values.binary(op, a, b), name)

    return stated(made, label, doc)


logical_and = _of_conditions("logical_and", "and", "Whether both are true.")
logical_or = _of_conditions("logical_or", "or", "Whether one of two is true, or both.")
logical_xor = _of_conditions("logical_xor", "ne", "Whether exactly one of two is true.")


@operator
def logical_not(X: Tensor, name: str = "logical_not") -> Tensor:
    """Whether each element is false."""
    _need_conditions(X)
    return each(X, lambda x: ~x, name)


@operator
def isnan(X: Tensor, name: str = "isnan") -> Tensor:
    """Whether each element is not a number."""
    return each(X, lambda x: values.binary("ne", x, x), name)


@operator
def isinf(X: Tensor, negative: bool = True, positive: bool = True, name: str = "isinf") -> Tensor:
    """Whether x is infinite; `negative` and `positive` say which infinities count."""

    def f(x: Value) -> Value:
        below = x == -inf if negative and x.dtype.is_float else values.as_value(False)
        above = x == inf if positive and x.dtype.is_float else values.as_value(False)
        return below | above

    return each(X, f, name)
