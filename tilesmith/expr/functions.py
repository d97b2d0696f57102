"""Functions of values and numbers."""

from __future__ import annotations

import math

from tilesmith.expr.values import Operand, Value, as_value, binary, bitwise, unary, where


def maximum(a: Operand, b: Operand) -> Value:
    """The larger; NaN if one of them is NaN."""
    return binary("max", a, b)


def minimum(a: Operand, b: Operand) -> Value:
    """The smaller; NaN if one of them is NaN."""
    return binary("min", a, b)


def exp(x: Operand) -> Value:
    """e to the power of x."""
    return unary("exp", x)


def log(x: Operand) -> Value:
    """The natural logarithm of x."""
    return unary("log", x)


def log2(x: Operand) -> Value:
    """The logarithm of x to base 2, exact for powers of 2."""
    return unary("log2", x)


def log10(x: Operand) -> Value:
    """The logarithm of x to base 10, exact for powers of 10."""
    return unary("log10", x)


def sqrt(x: Operand) -> Value:
    """The square root of x."""
    return unary("sqrt", x)


def rsqrt(x: Operand) -> Value:
    """1 / sqrt(x)."""
    return unary("rsqrt", x)


def tanh(x: Operand) -> Value:
    """The hyperbolic tangent of x."""
    return unary("tanh", x)


def sigmoid(x: Operand) -> Value:
    """The logistic function, 1 / (1 + exp(-x))."""
    return unary("sigmoid", x)


def erf(x: Operand) -> Value:
    """The error function of x."""
    return unary("erf", x)


def sin(x: Operand) -> Value:
    """The sine of x, in radians."""
    return unary("sin", x)


def cos(x: Operand) -> Value:
    """The cosine of x, in radians."""
    return unary("cos", x)


def atan(x: Operand) -> Value:
    """The angle in radians whose tangent is x."""
    return unary("atan", x)


def expm1(x: Operand) -> Value:
    """exp(x) - 1, accurate near 0."""
    return unary("expm1", x)


def absolute(x: Operand) -> Value:
    """The absolute value of x."""
    return unary("abs", x)


def floor(x: Operand) -> Value:
    """The largest whole number that is at most x."""
    return unary("floor", x)


def ceil(x: Operand) -> Value:
    """The smallest whole number that is at least x."""
    return unary("ceil", x)


def round_(x: Operand) -> Value:
    """The nearest whole number, ties to even."""
    return unary("round", x)


def trunc(x: Operand) -> Value:
    """The nearest whole number towards zero."""
    return unary("trunc", x)


def trunc_divide(a: Operand, b: Operand) -> Value:
    """a / b rounded towards zero, as C divides integers; `//` rounds down. An integer by 0 is 0."""
    return binary("truncdiv", a, b)


def fmod(a: Operand, b: Operand) -> Value:
    """The remainder of trunc_divide, with the sign of a; `%` has the sign of b. It is exact. An
    integer modulo 0 is 0.
    """
    return binary("fmod", a, b)


def sign(x: Operand) -> Value:
    """1, 0 or -1; NaN for NaN."""
    v = as_value(x)
    if v.dtype.kind == "u":
        return minimum(v, 1)
    return where(v > 0, 1, where(v < 0, -1, where(v == 0, 0, v)))


def bitwise_and(a: Operand, b: Operand) -> Value:
    """The bitwise and of two integers, or the logical and of two conditions."""
    return bitwise("bitand", a, b)


def bitwise_or(a: Operand, b: Operand) -> Value:
    """The bitwise or of two integers, or the logical or of two conditions."""
    return bitwise("bitor", a, b)


def bitwise_xor(a: Operand, b: Operand) -> Value:
    """The bitwise exclusive or of two integers, or of two conditions."""
    return bitwise("bitxor", a, b)


def bitwise_not(x: Operand) -> Value:
    """An integer with every bit inverted, or the negation of a condition."""
    return unary("bitnot", x)


def left_shift(a: Operand, b: Operand) -> Value:
    """a << b. A shift by the width or more gives 0."""
    return bitwise("shl", a, b)


def right_shift(a: Operand, b: Operand) -> Value:
    """a >> b: signed integers keep their sign. A shift by the width or more gives 0, or -1."""
    return bitwise("shr", a, b)


def isnan(x: Operand) -> Value:
    """Whether x is not a number."""
    v = as_value(x)
    return binary("ne", v, v)


def isinf(x: Operand) -> Value:
    """Whether x is infinite, positive or negative."""
    v = as_value(x)
    return absolute(v) == math.inf if v.dtype.is_float else binary("ne", v, v)
