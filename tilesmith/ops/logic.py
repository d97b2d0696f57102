"""Comparisons and conditions: tensors in, a bool tensor of their joint shape out."""

from __future__ import annotations

from math import inf

from tilesmith.base.dtype import BOOL
from tilesmith.base.errors import ExpressionError
from tilesmith.expr import values
from tilesmith.expr.dsl import Tensor
from tilesmith.expr.values import Value
from tilesmith.ops.arguments import operator
from tilesmith.ops.elementwise import Term, each, joined


@operator
def equal(A: Term, B: Term, name: str = "equal") -> Tensor:
    """A == B, as bool."""
    return joined(A, B, lambda a, b: values.binary("eq", a, b), name)


@operator
def less(A: Term, B: Term, name: str = "less") -> Tensor:
    """A < B, as bool."""
    return joined(A, B, lambda a, b: values.binary("lt", a, b), name)


@operator
def less_equal(A: Term, B: Term, name: str = "less_equal") -> Tensor:
    """A <= B, as bool."""
    return joined(A, B, lambda a, b: values.binary("le", a, b), name)


@operator
def greater(A: Term, B: Term, name: str = "greater") -> Tensor:
    """A > B, as bool."""
    return joined(A, B, lambda a, b: values.binary("gt", a, b), name)


@operator
def greater_equal(A: Term, B: Term, name: str = "greater_equal") -> Tensor:
    """A >= B, as bool."""
    return joined(A, B, lambda a, b: values.binary("ge", a, b), name)


def _need_conditions(*terms: Term) -> None:
    for x in terms:
        found = x.dtype.name if isinstance(x, Tensor) else type(x).__name__
        if found != BOOL.name:
            raise ExpressionError(f"an operand is {found}; it must be bool: compare it first")


@operator
def logical_and(A: Term, B: Term, name: str = "logical_and") -> Tensor:
    """Whether both are true."""
    _need_conditions(A, B)
    return joined(A, B, lambda a, b: values.binary("and", a, b), name)


@operator
def logical_or(A: Term, B: Term, name: str = "logical_or") -> Tensor:
    """Whether one of two is true, or both."""
    _need_conditions(A, B)
    return joined(A, B, lambda a, b: values.binary("or", a, b), name)


@operator
def logical_xor(A: Term, B: Term, name: str = "logical_xor") -> Tensor:
    """Whether exactly one of two is true."""
    _need_conditions(A, B)
    return joined(A, B, lambda a, b: values.binary("ne", a, b), name)


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
