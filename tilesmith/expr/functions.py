"""Functions of values and numbers. Those that are an operation of the IR are lines of a table: the
name, that of the operation, and what it computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from tilesmith.expr.values import Operand, Value, as_value, binary, bitwise, unary, where


class OfOne(Protocol):
    def __call__(self, x: Operand) -> Value: ...


class OfTwo(Protocol):
    def __call__(self, a: Operand, b: Operand) -> Value: ...


def _of_one(name: str, op: str, doc: str) -> OfOne:
    def made(x: Operand) -> Value:
        return unary(op, x)

    made.__name__ = made.__qualname__ = name
    made.__doc__ = doc
    return made


def _of_two(
    name: str, op: str, doc: str, apply: Callable[[str, Operand, Operand], Value] = binary
) -> OfTwo:
    def made(a: Operand, b: Operand) -> Value:
        return apply(op, a, b)

    made.__name__ = made.__qualname__ = name
    made.__doc__ = doc
    return made


exp = _of_one("exp", "exp", "e to the power of x.")
log = _of_one("log", "log", "The natural logarithm of x.")
log2 = _of_one("log2", "log2", "The logarithm of x to base 2, exact for powers of 2.")
log10 = _of_one("log10", "log10", "The logarithm of x to base 10, exact for powers of 10.")
sqrt = _of_one("sqrt", "sqrt", "The square root of x.")
rsqrt = _of_one("rsqrt", "rsqrt", "1 / sqrt(x).")
tanh = _of_one("tanh", "tanh", "The hyperbolic tangent of x.")
sigmoid = _of_one("sigmoid", "sigmoid", "The logistic function, 1 / (1 + exp(-x)).")
erf = _of_one("erf", "erf", "The error function of x.")
sin = _of_one("sin", "sin", "The sine of x, in radians.")
cos = _of_one("cos", "cos", "The cosine of x, in radians.")
atan = _of_one("atan", "atan", "The angle in radians whose tangent is x.")
expm1 = _of_one("expm1", "expm1", "exp(x) - 1, accurate near 0.")
absolute = _of_one("absolute", "abs", "The absolute value of x.")
floor = _of_one("floor", "floor", "The largest whole number that is at most x.")
ceil = _of_one("ceil", "ceil", "The smallest whole number that is at least x.")
round_ = _of_one("round_", "round", "The nearest whole number, ties to even.")
trunc = _of_one("trunc", "trunc", "The nearest whole number towards zero.")
bitwise_not = _of_one(
    "bitwise_not", "bitnot", "An integer with every bit inverted, or the negation of a condition."
)

maximum = _of_two("maximum", "max", "The larger; NaN if one of them is NaN.")
minimum = _of_two("minimum", "min", "The smaller; NaN if one of them is NaN.")
trunc_divide = _of_two(
    "trunc_divide", "truncdiv", "a / b rounded towards zero, as C divides integers; `//` rounds "
    "down. An integer by 0 is 0.",
)  # fmt: skip
fmod = _of_two(
    "fmod", "fmod", "The remainder of trunc_divide, with the sign of a; `%` has the sign of b. It "
    "is exact. An integer modulo 0 is 0.",
)  # fmt: skip
bitwise_and = _of_two(
    "bitwise_and", "bitand", "The bitwise and of two integers, or the logical and of two "
    "conditions.", bitwise,
)  # fmt: skip
bitwise_or = _of_two(
    "bitwise_or", "bitor", "The bitwise or of two integers, or the logical or of two conditions.",
    bitwise,
)  # fmt: skip
bitwise_xor = _of_two(
    "bitwise_xor", "bitxor", "The bitwise exclusive or of two integers, or of two conditions.",
    bitwise,
)  # fmt: skip
left_shift = _of_two("left_shift", "shl", "a << b. A shift by the width or more gives 0.", bitwise)
right_shift = _of_two(
    "right_shift", "shr", "a >> b: signed integers keep their sign. A shift by the width or more "
    "gives 0, or -1.", bitwise,
)  # fmt: skip


def sign(x: Operand) -> Value:
    """1, 0 or -1; NaN for NaN."""
    v = as_value(x)
    if v.dtype.kind == "u":
        return minimum(v, 1)
    return where(v > 0, 1, where(v < 0, -1, where(v == 0, 0, v)))


def isnan(x: Operand) -> Value:
    """Whether x is not a number."""
    v = as_value(x)
    return binary("ne", v, v)


def isinf(x: Operand) -> Value:
    """Whether x is infinite, positive or negative."""
    v = as_value(x)
    return absolute(v) == math.inf if v.dtype.is_float else binary("ne", v, v)
