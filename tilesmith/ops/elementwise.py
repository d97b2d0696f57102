"""Element-wise operators; operands are broadcast. Those of one formula are lines of two tables.

Functions of several steps compute in float32 if their operand is of half precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from tilesmith.base.dtype import BOOL, DType
from tilesmith.base.errors import ExpressionError
from tilesmith.expr import functions, transcendental, values
from tilesmith.expr.dsl import Tensor, compute
from tilesmith.expr.values import Number, Value
from tilesmith.ops.arguments import (
    axis_of,
    broadcast_shape,
    need_equal,
    need_tensor,
    operator,
    read_broadcast,
    stated,
    widen,
)

Term = Tensor | Number


def each(X: Tensor, f: Callable[[Value], Value], name: str) -> Tensor:
    return compute(X.shape_ints, lambda *i: f(X[i]), name=name)


def smooth(X: Tensor, f: Callable[[Value], Value], name: str) -> Tensor:
    """f in float32 at least, brought back to the dtype of X."""

    def g(x: Value) -> Value:
        y = f(widen(x))
        return values.cast(y, x.dtype) if x.dtype.is_float else y

    return each(X, g, name)


def joined(A: Term, B: Term, f: Callable[[Any, Any], Value], name: str) -> Tensor:
    """f of two operands, of which one may be a number, over their joint shape."""
    tensors = [x for x in (A, B) if isinstance(x, Tensor)]
    for what, x in (("A", A), ("B", B)):
        if not isinstance(x, Tensor | int | float) or not tensors:
            raise ExpressionError(
                f"{what} is of type {type(x).__name__}; one operand must be a tensor, "
                "the other a tensor or a number"
            )
    shape = broadcast_shape(*(x.shape_ints for x in tensors))

    def body(*index: Value) -> Value:
        a, b = (
            read_broadcast(x, index, joint=shape) if isinstance(x, Tensor) else x for x in (A, B)
        )
        return f(a, b)

    return compute(shape, body, name=name)


# operators of two tensors, or of a tensor and a number
class OfTwo(Protocol):
    def __call__(self, A: Term, B: Term, name: str = ...) -> Tensor: ...


def _of_two(name: str, f: str | Callable[[Any, Any], Value], doc: str) -> OfTwo:
    """f of two elements, or the operation of the IR that it names."""
    label, of = name, (lambda a, b: values.binary(f, a, b)) if isinstance(f, str) else f

    def made(A: Term, B: Term, name: str = label) -> Tensor:
        return joined(A, B, of, name)

    return stated(made, label, doc)


add = _of_two("add", "add", "A + B, element by element.")
subtract = _of_two("subtract", "sub", "A - B, element by element.")
multiply = _of_two("multiply", "mul", "A * B, element by element.")
divide = _of_two("divide", "div", "A / B; of two integers it is a float32.")
maximum = _of_two("maximum", "max", "The larger of two elements; NaN if one of them is NaN.")
minimum = _of_two("minimum", "min", "The smaller of two elements; NaN if one of them is NaN.")
power = _of_two("power", values.power, "A to the power of B, element by element.")


@operator
def bias_add(X: Tensor, bias: Tensor, axis: int = 1, name: str = "bias_add") -> Tensor:
    """X plus a vector along one axis; 1 is the channel of NCHW and the column of a matrix."""
    need_tensor("bias", bias, "C")
    d = axis_of(axis, X.ndim)
    need_equal("the extent of bias", bias.shape_ints[0], X.shape_ints[d], f"axis {axis} of X is")
    return compute(X.shape_ints, lambda *i: X[i] + bias[i[d]], name=name)


# operators of one tensor
@operator
def cast(X: Tensor, dtype: str | DType, name: str = "cast") -> Tensor:
    """Each element converted to another dtype."""
    return each(X, lambda x: values.cast(x, dtype), name)


class OfOne(Protocol):
    def __call__(self, X: Tensor, name: str = ...) -> Tensor: ...


def _of_one(name: str, f: Callable[[Value], Value], doc: str, precise: bool = False) -> OfOne:
    """f of each element; if it must be `precise`, in float32 at least."""
    label, over = name, smooth if precise else each

    def made(X: Tensor, name: str = label) -> Tensor:
        return over(X, f, name)

    return stated(made, label, doc)


negative = _of_one("negative", lambda x: -x, "-X.")
absolute = _of_one("absolute", functions.absolute, "The absolute value of each element.")
sign = _of_one("sign", functions.sign, "1, 0 or -1; NaN of NaN.")
reciprocal = _of_one("reciprocal", lambda x: 1 / x, "1 / X.")
sqrt = _of_one("sqrt", functions.sqrt, "The square root of each element.")
rsqrt = _of_one("rsqrt", functions.rsqrt, "1 / sqrt(x).")
floor = _of_one("floor", functions.floor, "Each element rounded down.")
ceil = _of_one("ceil", functions.ceil, "Each element rounded up.")
rint = _of_one("rint", functions.round_, "The nearest whole number, of two the even one.")
trunc = _of_one("trunc", functions.trunc, "Towards 0.")
exp = _of_one("exp", functions.exp, "e to the power of each element.")
expm1 = _of_one("expm1", functions.expm1, "exp(x) - 1, exact near 0.", precise=True)
log = _of_one("log", functions.log, "The natural logarithm of each element.")
log1p = _of_one("log1p", transcendental.log1p, "log(1 + x), exact near 0.", precise=True)
log2 = _of_one("log2", functions.log2, "The logarithm of each element to base 2.")
log10 = _of_one("log10", functions.log10, "The logarithm of each element to base 10.")
erf = _of_one("erf", functions.erf, "The error function of each element.")

sin = _of_one("sin", functions.sin, "The sine of each element.")
cos = _of_one("cos", functions.cos, "The cosine of each element.")
tan = _of_one("tan", transcendental.tan, "The tangent of each element.")
asin = _of_one("asin", transcendental.asin, "The inverse of the sine, of each element.")
acos = _of_one("acos", transcendental.acos, "The inverse of the cosine, of each element.")
atan = _of_one("atan", functions.atan, "The inverse of the tangent, of each element.")
sinh = _of_one("sinh", transcendental.sinh, "The hyperbolic sine of each element.")
cosh = _of_one("cosh", transcendental.cosh, "The hyperbolic cosine of each element.")
tanh = _of_one("tanh", functions.tanh, "The hyperbolic tangent of each element.")
asinh = _of_one("asinh", transcendental.asinh, "The inverse of the hyperbolic sine.")
acosh = _of_one("acosh", transcendental.acosh, "The inverse of the hyperbolic cosine.")
atanh = _of_one("atanh", transcendental.atanh, "The inverse of the hyperbolic tangent.")

relu = _of_one("relu", lambda x: functions.maximum(x, 0), "max(X, 0).")
sigmoid = _of_one("sigmoid", functions.sigmoid, "The logistic function, 1 / (1 + exp(-x)).")
silu = _of_one(
    "silu", lambda x: x * functions.sigmoid(x), "x * sigmoid(x), also known as swish.", precise=True
)


@operator
def leaky_relu(X: Tensor, alpha: float = 0.01, name: str = "leaky_relu") -> Tensor:
    """x, or alpha * x below 0."""
    return each(X, lambda x: values.where(x > 0, x, x * alpha), name)


@operator
def gelu(X: Tensor, approximate: str = "none", name: str = "gelu") -> Tensor:
    """x * Phi(x): exactly (erf), or with approximate="tanh" by Hendrycks and Gimpel's formula."""
    if approximate not in ("none", "tanh"):
        raise ExpressionError(f"approximate is {approximate!r}; it must be 'none' or 'tanh'")

    def by_tanh(x: Value) -> Value:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1.0 + functions.tanh(inner))

    def by_erf(x: Value) -> Value:
        return 0.5 * x * (1.0 + functions.erf(x * math.sqrt(0.5)))

    return smooth(X, by_tanh if approximate == "tanh" else by_erf, name)


@operator
def clip(X: Tensor, low: Number | None, high: Number | None, name: str = "clip") -> Tensor:
    """x limited to [low, high]; None is no limit."""
    if low is None and high is None:
        raise ExpressionError("low and high are both None; give at least one bound")
    if low is not None and high is not None and low > high:
        raise ExpressionError(f"low {low} is above high {high}; it must not be")

    def f(x: Value) -> Value:
        y = x if low is None else functions.maximum(x, low)
        return y if high is None else functions.minimum(y, high)

    return each(X, f, name)


@operator
def where(cond: Tensor, A: Term, B: Term, name: str = "where") -> Tensor:
    """A where cond holds, else B; all three are broadcast."""
    if cond.dtype is not BOOL:
        raise ExpressionError(f"cond is {cond.dtype}; it must be bool: compare it first")
    tensors = [x for x in (cond, A, B) if isinstance(x, Tensor)]
    shape = broadcast_shape(*(x.shape_ints for x in tensors))

    def body(*index: Value) -> Value:
        a, b = (
            read_broadcast(x, index, joint=shape) if isinstance(x, Tensor) else x for x in (A, B)
        )
        return values.where(read_broadcast(cond, index, joint=shape), a, b)

    return compute(shape, body, name=name)
