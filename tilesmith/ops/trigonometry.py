"""Trigonometric and hyperbolic functions of each element, and its sign."""

from __future__ import annotations

from tilesmith.expr import functions, transcendental
from tilesmith.expr.dsl import Tensor
from tilesmith.ops.arguments import operator
from tilesmith.ops.elementwise import each


@operator
def sin(X: Tensor, name: str = "sin") -> Tensor:
    """The sine of each element."""
    return each(X, functions.sin, name)


@operator
def cos(X: Tensor, name: str = "cos") -> Tensor:
    """The cosine of each element."""
    return each(X, functions.cos, name)


@operator
def tan(X: Tensor, name: str = "tan") -> Tensor:
    """The tangent of each element."""
    return each(X, transcendental.tan, name)


@operator
def asin(X: Tensor, name: str = "asin") -> Tensor:
    """The inverse of the sine, of each element."""
    return each(X, transcendental.asin, name)


@operator
def acos(X: Tensor, name: str = "acos") -> Tensor:
    """The inverse of the cosine, of each element."""
    return each(X, transcendental.acos, name)


@operator
def atan(X: Tensor, name: str = "atan") -> Tensor:
    """The inverse of the tangent, of each element."""
    return each(X, functions.atan, name)


@operator
def sinh(X: Tensor, name: str = "sinh") -> Tensor:
    """The hyperbolic sine of each element."""
    return each(X, transcendental.sinh, name)


@operator
def cosh(X: Tensor, name: str = "cosh") -> Tensor:
    """The hyperbolic cosine of each element."""
    return each(X, transcendental.cosh, name)


@operator
def asinh(X: Tensor, name: str = "asinh") -> Tensor:
    """The inverse of the hyperbolic sine, of each element."""
    return each(X, transcendental.asinh, name)


@operator
def acosh(X: Tensor, name: str = "acosh") -> Tensor:
    """The inverse of the hyperbolic cosine, of each element."""
    return each(X, transcendental.acosh, name)


@operator
def atanh(X: Tensor, name: str = "atanh") -> Tensor:
    """The inverse of the hyperbolic tangent, of each element."""
    return each(X, transcendental.atanh, name)
