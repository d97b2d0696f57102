"""Functions of single values: values or numbers in, values out."""

from __future__ import annotations

from tilesmith.expr.values import Operand, Value, as_value, binary, unary


def maximum(a: Operand, b: Operand) -> Value:
    """The larger; NaN if one of them is NaN."""
    return binary("max", a, b)


def minimum(a: Operand, b: Operand) -> Value:
    """The smaller; NaN if one of them is NaN."""
    return binary("min", a, b)


def exp(x: Operand) -> Value:
    return unary("exp", x)


def log(x: Operand) -> Value:
    return unary("log", x)


def sqrt(x: Operand) -> Value:
    return unary("sqrt", x)


def rsqrt(x: Operand) -> Value:
    """1 / sqrt(x)."""
    return unary("rsqrt", x)


def tanh(x: Operand) -> Value:
    return unary("tanh", x)


def sigmoid(x: Operand) -> Value:
    return unary("sigmoid", x)


def erf(x: Operand) -> Value:
    return unary("erf", x)


def sin(x: Operand) -> Value:
    return unary("sin", x)


def cos(x: Operand) -> Value:
    return unary("cos", x)


def absolute(x: Operand) -> Value:
    return unary("abs", x)


def floor(x: Operand) -> Value:
    return unary("floor", x)


def ceil(x: Operand) -> Value:
    return unary("ceil", x)


def round_(x: Operand) -> Value:
    """To the nearest whole number, halves to the even one."""
    return unary("round", x)


def isnan(x: Operand) -> Value:
    v = as_value(x)
    return binary("ne", v, v)
