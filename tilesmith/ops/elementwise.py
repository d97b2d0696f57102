"""Element-wise operators; operands are broadcast.

Functions of several steps compute in float32 if their operand is of half precision.
"""

from __future__ import annotations

import math

from tilesmith.base.dtype import BOOL, DType
from tilesmith.base.errors import ExpressionError
from tilesmith.expr import functions, transcendental, values
from tilesmith.expr.dsl import Tensor, compute
from tilesmith.expr.values import Number, Value
from tilesmith.ops.arguments import axis_of, need_equal, need_tensor
from tilesmith.ops.broadcast import broadcast_shape, read_broadcast
from tilesmith.ops.pointwise import Term, each, joined, smooth


# operators of two tensors, or of a tensor and a number
def add(A: Term, B: Term, name: str = "add") -> Tensor:
    """A + B, element by element."""
    return joined("add", A, B, lambda a, b: values.binary("add", a, b), name)


def subtract(A: Term, B: Term, name: str = "subtract") -> Tensor:
    """A - B, element by element."""
    return joined("subtract", A, B, lambda a, b: values.binary("sub", a, b), name)


def multiply(A: Term, B: Term, name: str = "multiply") -> Tensor:
    """A * B, element by element."""
    return joined("multiply", A, B, lambda a, b: values.binary("mul", a, b), name)


def divide(A: Term, B: Term, name: str = "divide") -> Tensor:
    """A / B; of two integers it is a float32."""
    return joined("divide", A, B, lambda a, b: values.binary("div", a, b), name)


def maximum(A: Term, B: Term, name: str = "maximum") -> Tensor:
    """The larger of two elements; NaN if one of them is NaN."""
    return joined("maximum", A, B, functions.maximum, name)


def minimum(A: Term, B: Term, name: str = "minimum") -> Tensor:
    """The smaller of two elements; NaN if one of them is NaN."""
    return joined("minimum", A, B, functions.minimum, name)


def power(A: Term, B: Term, name: str = "power") -> Tensor:
    """A to the power of B, element by element."""
    return joined("power", A, B, values.power, name)


def bias_add(X: Tensor, bias: Tensor, axis: int = 1, name: str = "bias_add") -> Tensor:
    """X plus a vector along one axis; 1 is the channel of NCHW and the column of a matrix."""
    need_tensor("bias_add", "X", X)
    need_tensor("bias_add", "bias", bias, "C")
    d = axis_of("bias_add", axis, X.ndim)
    need_equal("bias_add", "the extent of bias", bias.shape_ints[0], X.shape_ints[d],
               f"axis {axis} of X is")  # fmt: skip
    out: Tensor = compute(X.shape_ints, lambda *i: X[i] + bias[i[d]], name=name)
    return out


# operators of one tensor
def cast(X: Tensor, dtype: str | DType, name: str = "cast") -> Tensor:
    """Each element converted to another dtype."""
    return each("cast", X, lambda x: values.cast(x, dtype), name)


def negative(X: Tensor, name: str = "negative") -> Tensor:
    """-X."""
    return each("negative", X, lambda x: -x, name)


def absolute(X: Tensor, name: str = "absolute") -> Tensor:
    """The absolute value of each element."""
    return each("absolute", X, functions.absolute, name)


def exp(X: Tensor, name: str = "exp") -> Tensor:
    """e to the power of each element."""
    return each("exp", X, functions.exp, name)


def log(X: Tensor, name: str = "log") -> Tensor:
    """The natural logarithm of each element."""
    return each("log", X, functions.log, name)


def log2(X: Tensor, name: str = "log2") -> Tensor:
    """The logarithm of each element to base 2."""
    return each("log2", X, functions.log2, name)


def log10(X: Tensor, name: str = "log10") -> Tensor:
    """The logarithm of each element to base 10."""
    return each("log10", X, functions.log10, name)


def sqrt(X: Tensor, name: str = "sqrt") -> Tensor:
    """The square root of each element."""
    return each("sqrt", X, functions.sqrt, name)


def rsqrt(X: Tensor, name: str = "rsqrt") -> Tensor:
    """1 / sqrt(x)."""
    return each("rsqrt", X, functions.rsqrt, name)


def reciprocal(X: Tensor, name: str = "reciprocal") -> Tensor:
    """1 / X."""
    return each("reciprocal", X, lambda x: 1 / x, name)


def floor(X: Tensor, name: str = "floor") -> Tensor:
    """Each element rounded down."""
    return each("floor", X, functions.floor, name)


def ceil(X: Tensor, name: str = "ceil") -> Tensor:
    """Each element rounded up."""
    return each("ceil", X, functions.ceil, name)


def rint(X: Tensor, name: str = "rint") -> Tensor:
    """The nearest whole number, of two the even one."""
    return each("rint", X, functions.round_, name)


def trunc(X: Tensor, name: str = "trunc") -> Tensor:
    """Towards 0."""
    return each("trunc", X, functions.trunc, name)


def expm1(X: Tensor, name: str = "expm1") -> Tensor:
    """exp(x) - 1, exact near 0."""
    return smooth("expm1", X, functions.expm1, name)


def log1p(X: Tensor, name: str = "log1p") -> Tensor:
    """log(1 + x), exact near 0."""
    return smooth("log1p", X, transcendental.log1p, name)


def sign(X: Tensor, name: str = "sign") -> Tensor:
    """1, 0 or -1; NaN of NaN."""
    return each("sign", X, functions.sign, name)


def erf(X: Tensor, name: str = "erf") -> Tensor:
    """The error function of each element."""
    return each("erf", X, functions.erf, name)


def tanh(X: Tensor, name: str = "tanh") -> Tensor:
    """The hyperbolic tangent of each element."""
    return each("tanh", X, functions.tanh, name)


def sigmoid(X: Tensor, name: str = "sigmoid") -> Tensor:
    """The logistic function of each element, 1 / (1 + exp(-x))."""
    return each("sigmoid", X, functions.sigmoid, name)


def relu(X: Tensor, name: str = "relu") -> Tensor:
    """max(X, 0)."""
    return each("relu", X, lambda x: functions.maximum(x, 0), name)


def leaky_relu(X: Tensor, alpha: float = 0.01, name: str = "leaky_relu") -> Tensor:
    """x, or alpha * x below 0."""
    return each("leaky_relu", X, lambda x: values.where(x > 0, x, x * alpha), name)


def silu(X: Tensor, name: str = "silu") -> Tensor:
    """x * sigmoid(x), also known as swish."""
    return smooth("silu", X, lambda x: x * functions.sigmoid(x), name)


def gelu(X: Tensor, approximate: str = "none", name: str = "gelu") -> Tensor:
    """x * Phi(x): exactly (erf), or with approximate="tanh" by Hendrycks and Gimpel's formula."""
    if approximate not in ("none", "tanh"):
        raise ExpressionError(f"gelu: approximate is {approximate!r}; it must be 'none' or 'tanh'")

    def by_tanh(x: Value) -> Value:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1.0 + functions.tanh(inner))

    def by_erf(x: Value) -> Value:
        return 0.5 * x * (1.0 + functions.erf(x * math.sqrt(0.5)))

    return smooth("gelu", X, by_tanh if approximate == "tanh" else by_erf, name)


def clip(X: Tensor, low: Number | None, high: Number | None, name: str = "clip") -> Tensor:
    """x limited to [low, high]; None is no limit."""
    need_tensor("clip", "X", X)
    if low is None and high is None:
        raise ExpressionError("clip: low and high are both None; give at least one bound")
    if low is not None and high is not None and low > high:
        raise ExpressionError(f"clip: low {low} is above high {high}; it must not be")

    def f(x: Value) -> Value:
        y = x if low is None else functions.maximum(x, low)
        return y if high is None else functions.minimum(y, high)

    return each("clip", X, f, name)


def where(cond: Tensor, A: Term, B: Term, name: str = "where") -> Tensor:
    """A where cond holds, else B; all three are broadcast."""
    need_tensor("where", "cond", cond)
    if cond.dtype is not BOOL:
        raise ExpressionError(f"where: cond is {cond.dtype}; it must be bool: compare it first")
    tensors = [x for x in (cond, A, B) if isinstance(x, Tensor)]
    shape = broadcast_shape("where", *(x.shape_ints for x in tensors))

    def body(*index: Value) -> Value:
        a, b = (
            read_broadcast(x, index, joint=shape) if isinstance(x, Tensor) else x for x in (A, B)
        )
        return values.where(read_broadcast(cond, index, joint=shape), a, b)

    out: Tensor = compute(shape, body, name=name)
    return out
