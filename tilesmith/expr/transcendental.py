"""Functions composed of others. Errors are a few units in the last place, also near 0 and near the
ends of the range. float16 and bfloat16 are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilesmith.base.dtype import FLOAT32, FLOAT64
from tilesmith.expr.functions import absolute, atan, cos, exp, expm1, log, sin, sqrt
from tilesmith.expr.values import Operand, Value, as_value, cast, where

_LARGE = 2.0**60  # its square fits float32, and adding 1 to it is below float64's precision


def _precisely(f: Callable[[Value], Value], x: Operand) -> Value:
    """f computed in float32 at least."""
    v = as_value(x)
    if not v.dtype.is_float:
        return f(cast(v, FLOAT32))
    return f(v) if v.dtype.bits > 16 else cast(f(cast(v, FLOAT32)), v.dtype)


def _odd(f: Callable[[Value], Value]) -> Callable[[Value], Value]:
    """An odd function, f(-x) = -f(x), from f of nonnegative values. Near 0, f(x) is x."""

    def both_signs(v: Value) -> Value:
        a = absolute(v)
        y = f(a)
        small = 2.0**-28 if v.dtype is FLOAT64 else 2.0**-13
        return where(a < small, v, where(v < 0.0, -y, y))

    return both_signs


def tan(x: Operand) -> Value:
    """The tangent of x, in radians."""
    return _precisely(lambda v: sin(v) / cos(v), x)


def asin(x: Operand) -> Value:
    """The angle in radians whose sine is x."""
    return _precisely(lambda v: atan(v / sqrt((1.0 - v) * (1.0 + v))), x)


def acos(x: Operand) -> Value:
    """The angle in radians whose cosine is x."""
    return _precisely(lambda v: 2.0 * atan(sqrt((1.0 - v) / (1.0 + v))), x)


def sinh(x: Operand) -> Value:
    """The hyperbolic sine of x."""
    return _precisely(_odd(_sinh), x)


def _sinh(a: Value) -> Value:
    """(h^2 - 1) (1 + 1/h^2) / 2 with h = e^(a/2), which is finite as long as the result is."""
    u = expm1(a * 0.5)
    h = u + 1.0
    return (u * 0.5) * (u + 2.0) * (1.0 + 1.0 / (h * h))


def cosh(x: Operand) -> Value:
    """The hyperbolic cosine of x."""
    return _precisely(_cosh, x)


def _cosh(v: Value) -> Value:
    h = exp(absolute(v) * 0.5)
    return (h * 0.5) * h + (0.5 / h) / h


def log1p(x: Operand) -> Value:
    """log(1 + x)."""
    return _precisely(_log1p, x)


def _log1p(v: Value) -> Value:
    """The logarithm of the rounded 1 + v, and a factor that corrects the rounding."""
    u = 1.0 + v
    return where((u == 1.0) | (v == math.inf), v, log(u) * (v / (u - 1.0)))


def asinh(x: Operand) -> Value:
    """The number whose hyperbolic sine is x."""
    return _precisely(_odd(_asinh), x)


def _asinh(a: Value) -> Value:
    return _log1p_of_sum(a, a * a / (1.0 + sqrt(a * a + 1.0)))


def _log1p_of_sum(a: Value, b: Value) -> Value:
    """log(1 + a + b), where b is about a if a is large."""
    large = a > _LARGE
    return _log1p(where(large, a, a + b)) + where(large, as_value(math.log(2.0), a.dtype), 0.0)


def acosh(x: Operand) -> Value:
    """The number, at least 0, whose hyperbolic cosine is x; NaN below 1."""
    return _precisely(_acosh, x)


def _acosh(v: Value) -> Value:
    t = v - 1.0
    return where(v < 1.0, math.nan, _log1p_of_sum(t, sqrt(t * (t + 2.0))))


def atanh(x: Operand) -> Value:
    """The number whose hyperbolic tangent is x."""
    return _precisely(_odd(lambda a: 0.5 * _log1p(2.0 * a / (1.0 - a))), x)
