"""The meaning of each operation, on NumPy scalars and arrays: the definition that interpreter and
oracle share.

Integers wrap around. `//` and `%` round towards minus infinity, truncdiv and fmod (C's / and %)
towards zero. An integer divided by 0 is 0, and so is the remainder, whether the operands are axes
or data. It is not an error, so that a `where` may guard it, and every part of the system gives the
same. max and min return NaN if one side is NaN.

A shift to the right keeps the sign of a signed integer. A shift by the width or more, or by a
negative number, gives 0, or -1 for a negative number that is shifted to the right.

float16 and bfloat16 arithmetic may be computed in float32 and rounded when the value is stored.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from tilesmith.base.dtype import DType
from tilesmith.expr.from_numpy import BINARY_UFUNCS, BITWISE_UFUNCS, UNARY_UFUNCS
from tilesmith.expr.nodes import FLOAT_FUNCTIONS

_ERF_STEP, _ERF_END, _ERF_TERMS = 1 / 64, 6.0, 9


@cache
def _erf_tables() -> Any:
    """Taylor coefficients of erf around the multiples of `_ERF_STEP`: the derivatives of erf are a
    Gaussian times Hermite polynomials.
    """
    at = np.arange(round(_ERF_END / _ERF_STEP) + 1) * _ERF_STEP
    rows = [np.array([math.erf(x) for x in at])]
    slope = 2 / math.sqrt(math.pi) * np.exp(-at * at)
    before, hermite = np.zeros_like(at), np.ones_like(at)
    for n in range(_ERF_TERMS - 1):
        rows.append(slope * hermite * (-1) ** n / math.factorial(n + 1))
        before, hermite = hermite, 2 * at * hermite - 2 * n * before
    return np.array(rows)


def _erf(x: Any) -> Any:
    """To about one unit in the last place of float64; math.erf takes one number at a time."""
    size = np.minimum(np.abs(x), _ERF_END)
    k = np.rint(np.nan_to_num(size) / _ERF_STEP).astype(np.intp)
    rest, tables = size - k * _ERF_STEP, _erf_tables()
    y = tables[-1][k]
    for row in tables[-2::-1]:
        y = y * rest + row[k]
    return np.copysign(y, x)


# The functions of NumPy that mean an operation; of several names for one, the first.
_UFUNCS: dict[str, Callable[..., Any]] = {
    op: getattr(np, name)
    for names in (UNARY_UFUNCS, BINARY_UFUNCS, BITWISE_UFUNCS)
    for name, op in reversed(names.items())
}
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "lt": operator.lt,
    "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip
_OF_WIDE: dict[str, Callable[[Any], Any]] = {
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "erf": lambda x: _erf(x) if x.size else x,
}


def unary(op: str, x: Any, dtype: DType) -> Any:
    if op not in FLOAT_FUNCTIONS:
        return _UFUNCS[op](x)
    function = _OF_WIDE.get(op) or _UFUNCS[op]
    return function(np.asarray(x, dtype=np.float64)).astype(dtype.numpy)[()]


def binary(op: str, a: Any, b: Any, dtype: DType) -> Any:
    match op:
        case "floordiv" if dtype.is_float:
            return np.floor(np.divide(a, b))
        case "mod":
            if dtype.is_float:
                return np.subtract(a, np.multiply(np.floor(np.divide(a, b)), b))
            return np.where(np.equal(b, 0), dtype.numpy.type(0), np.mod(a, b))[()]
        case "truncdiv":
            return _truncdiv(a, b)
        case "fmod":
            if dtype.is_float:  # exact, and therefore the same in any wider type
                return np.fmod(np.asarray(a, np.float64), b).astype(dtype.numpy)[()]
            return np.where(np.equal(b, 0), b, a - _truncdiv(a, b) * b)[()]
        case "pow":
            return _power(np.asarray(a, np.float64), b).astype(dtype.numpy)[()]
        case "shl" | "shr":
            return _shift(op, a, b, dtype)
    return _UFUNCS[op](a, b)


def of_scalars(op: str, dtype: DType) -> Callable[[Any, Any], Any]:
    """`binary` for operands that are NumPy scalars of `dtype`: Python's operator where it means the
    same, which is ten times as fast on them.
    """
    return _OPERATORS.get(op) or partial(binary, op, dtype=dtype)


def _power(a: Any, b: Any) -> Any:
    """C's pow. NumPy takes the root for a single exponent of 1/2, whose ends are others."""
    ends = np.equal(b, 0.5) & (np.equal(a, 0) | np.equal(a, -np.inf))
    return np.where(ends, np.abs(a), np.power(a, b))


def _truncdiv(a: Any, b: Any) -> Any:
    down = np.floor_divide(a, b)
    rest = np.subtract(a, np.multiply(down, b))
    up = np.not_equal(rest, 0) & (np.less(a, 0) != np.less(b, 0)) & np.not_equal(b, 0)
    return np.add(down, up.astype(down.dtype))


def _shift(op: str, a: Any, b: Any, dtype: DType) -> Any:
    """Shifts by any count; NumPy's own shifts beyond the width are undefined, as in C."""
    inside = np.greater_equal(b, 0) & np.less(b, dtype.bits)
    count = np.where(inside, b, 0).astype(dtype.numpy)
    if op == "shl":
        return np.where(inside, np.left_shift(a, count), 0).astype(dtype.numpy)[()]
    rest = np.where(np.less(a, 0), -1, 0)
    return np.where(inside, np.right_shift(a, count), rest.astype(dtype.numpy))[()]


def cast(x: Any, to: DType) -> Any:
    """Floats are truncated to integers; values out of range saturate, and NaN becomes 0. Integers
    wrap. bfloat16 is rounded by way of float32, everything else in one rounding.
    """
    a = np.asarray(x)
    if not to.is_int or a.dtype.kind in "biu":
        return a.astype(to.numpy)[()]
    whole = np.trunc(a.astype(np.float64))
    low, high = int(to.lowest()), int(to.highest())
    fits = (whole >= low) & (whole < float(high + 1))
    inside = np.where(fits, whole, 0).astype(to.numpy)
    # In the dtype from the start: as Python numbers, the limits of uint64 would become floats.
    end = np.where(whole < 0, *(to.numpy.type(n) for n in (low, high)))
    return np.where(fits | np.isnan(whole), inside, end)[()]


def constant(value: Any, dtype: DType) -> Any:
    return np.asarray(value).astype(dtype.numpy)[()]
