"""Trigonometric and hyperbolic functions of each element, and its sign."""

from __future__ import annotations

from tilesmith.expr import functions, transcendental
from tilesmith.expr.dsl import Tensor
from tilesmith.ops.pointwise import each


def sin(X: Tensor, name: str = "sin") -> Tensor:
    """The sine of each element."""
    return each("sin", X, functions.sin, name)


def cos(X: Tensor, name: str = "cos") -> Tensor:
    """The cosine of each element."""
    return each("cos", X, functions.cos, name)


def tan(X: Tensor, name: str = "tan") -> Tensor:
    """The tangent of each element."""
    return each("tan", X, transcendental.tan, name)


def asin(X: Tensor, name: str = "asin") -> Tensor:
    """The inverse of the sine, of each element."""
    return each("asin", X, transcendental.asin, name)


def acos(X: Tensor, name: str = "acos") -> Tensor:
    """The inverse of the cosine, of each element."""
    return each("acos", X, transcendental.acos, name)


def atan(X: Tensor, name: str = "atan") -> Tensor:
    """The inverse of the tangent, of each element."""
    return each("atan", X, functions.atan, name)


def sinh(X: Tensor, name: str = "sinh") -> Tensor:
    """The hyperbolic sine of each element."""
    return each("sinh", X, transcendental.sinh, name)


def cosh(X: Tensor, name: str = "cosh") -> Tensor:
    """The hyperbolic cosine of each element."""
    return each("cosh", X, transcendental.cosh, name)


def asinh(X: Tensor, name: str = "asinh") -> Tensor:
    """The inverse of the hyperbolic sine, of each element."""
    return each("asinh", X, transcendental.asinh, name)


def acosh(X: Tensor, name: str = "acosh") -> Tensor:
    """The inverse of the hyperbolic cosine, of each element."""
    return each("acosh", X, transcendental.acosh, name)


def atanh(X: Tensor, name: str = "atanh") -> Tensor:
    """The inverse of the hyperbolic tangent, of each element."""
    return each("atanh", X, transcendental.atanh, name)
