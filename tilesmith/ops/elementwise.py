"""Element-wise operators; operands are broadcast.

Functions of several steps compute in float32 if their operand is of half precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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
@operator
def add(A: Term, B: Term, name: str = "add") -> Tensor:
    """A + B, element by element."""
    return joined(A, B, lambda a, b: values.binary("add", a, b), name)


@operator
def subtract(A: Term, B: Term, name: str = "subtract") -> Tensor:
    """A - B, element by element."""
    return joined(A, B, lambda a, b: values.binary("sub", a, b), name)


@operator
def multiply(A: Term, B: Term, name: str = "multiply") -> Tensor:
    """A * B, element by element."""
    return joined(A, B, lambda a, b: values.binary("mul", a, b), name)


@operator
def divide(A: Term, B: Term, name: str = "divide") -> Tensor:
    """A / B; of two integers it is a float32."""
    return joined(A, B, lambda a, b: values.binary("div", a, b), name)


@operator
def maximum(A: Term, B: Term, name: str = "maximum") -> Tensor:
    """The larger of two elements; NaN if one of them is NaN."""
    return joined(A, B, functions.maximum, name)


@operator
def minimum(A: Term, B: Term, name: str = "minimum") -> Tensor:
    """The smaller of two elements; NaN if one of them is NaN."""
    return joined(A, B, functions.minimum, name)


@operator
def power(A: Term, B: Term, name: str = "power") -> Tensor:
    """A to the power of B, element by element."""
    return joined(A, B, values.power, name)


@operator
def bias_add(X: Tensor, bias: Tensor, axis: int = 1, name: str = "bias_add") -> Tensor:
    """X plus a vector along one axis; 1 is the channel of NCHW and the column of a matrix."""
    need_tensor("bias", bias, "C")
    d = axis_of(axis, X.ndim)
    need_equal("the extent of bias", bias.shape_ints[0], X.shape_ints[d],
               f"axis {axis} of X is")  # fmt: skip
    return compute(X.shape_ints, lambda *i: X[i] + bias[i[d]], name=name)


# operators of one tensor
@operator
def cast(X: Tensor, dtype: str | DType, name: str = "cast") -> Tensor:
    """Each element converted to another dtype."""
    return each(X, lambda x: values.cast(x, dtype), name)


@operator
def negative(X: Tensor, name: str = "negative") -> Tensor:
    """-X."""
    return each(X, lambda x: -x, name)


@operator
def absolute(X: Tensor, name: str = "absolute") -> Tensor:
    """The absolute value of each element."""
    return each(X, functions.absolute, name)


@operator
def exp(X: Tensor, name: str = "exp") -> Tensor:
    """e to the power of each element."""
    return each(X, functions.exp, name)


@operator
def log(X: Tensor, name: str = "log") -> Tensor:
    """The natural logarithm of each element."""
    return each(X, functions.log, name)


@operator
def log2(X: Tensor, name: str = "log2") -> Tensor:
    """The logarithm of each element to base 2."""
    return each(X, functions.log2, name)


@operator
def log10(X: Tensor, name: str = "log10") -> Tensor:
    """The logarithm of each element to base 10."""
    return each(X, functions.log10, name)


@operator
def sqrt(X: Tensor, name: str = "sqrt") -> Tensor:
    """The square root of each element."""
    return each(X, functions.sqrt, name)


@operator
def rsqrt(X: Tensor, name: str = "rsqrt") -> Tensor:
    """1 / sqrt(x)."""
    return each(X, functions.rsqrt, name)


@operator
def reciprocal(X: Tensor, name: str = "reciprocal") -> Tensor:
    """1 / X."""
    return each(X, lambda x: 1 / x, name)


@operator
def floor(X: Tensor, name: str = "floor") -> Tensor:
    """Each element rounded down."""
    return each(X, functions.floor, name)


@operator
def ceil(X: Tensor, name: str = "ceil") -> Tensor:
    """Each element rounded up."""
    return each(X, functions.ceil, name)


@operator
def rint(X: Tensor, name: str = "rint") -> Tensor:
    """The nearest whole number, of two the even one."""
    return each(X, functions.round_, name)


@operator
def trunc(X: Tensor, name: str = "trunc") -> Tensor:
    """Towards 0."""
    return each(X, functions.trunc, name)


@operator
def expm1(X: Tensor, name: str = "expm1") -> Tensor:
    """exp(x) - 1, exact near 0."""
    return smooth(X, functions.expm1, name)


@operator
def log1p(X: Tensor, name: str = "log1p") -> Tensor:
    """log(1 + x), exact near 0."""
    return smooth(X, transcendental.log1p, name)


@operator
def sign(X: Tensor, name: str = "sign") -> Tensor:
    """1, 0 or -1; NaN of NaN."""
    return each(X, functions.sign, name)


@operator
def erf(X: Tensor, name: str = "erf") -> Tensor:
    """The error function of each element."""
    return each(X, functions.erf, name)


@operator
def tanh(X: Tensor, name: str = "tanh") -> Tensor:
    """The hyperbolic tangent of each element."""
    return each(X, functions.tanh, name)


@operator
def sigmoid(X: Tensor, name: str = "sigmoid") -> Tensor:
    """The logistic function of each element, 1 / (1 + exp(-x))."""
    return each(X, functions.sigmoid, name)


@operator
def relu(X: Tensor, name: str = "relu") -> Tensor:
    """max(X, 0)."""
    return each(X, lambda x: functions.maximum(x, 0), name)


@operator
def leaky_relu(X: Tensor, alpha: float = 0.01, name: str = "leaky_relu") -> Tensor:
    """x, or alpha * x below 0."""
    return each(X, lambda x: values.where(x > 0, x, x * alpha), name)


@operator
def silu(X: Tensor, name: str = "silu") -> Tensor:
    """x * sigmoid(x), also known as swish."""
    return smooth(X, lambda x: x * functions.sigmoid(x), name)


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
