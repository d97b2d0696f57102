"""Activations beyond those in elementwise.py: a tensor and numbers in, a tensor of its shape out.

Functions with several steps are carried out in float32 when their operand is of half precision.
"""

from __future__ import annotations

from tilesmith.base.errors import ExpressionError
from tilesmith.expr import functions, values
from tilesmith.expr.dsl import Tensor, compute
from tilesmith.expr.transcendental import log1p
from tilesmith.expr.values import Value
from tilesmith.ops.arguments import broadcast_shape, operator, read_broadcast, show_shape
from tilesmith.ops.elementwise import each, smooth


@operator
def elu(X: Tensor, alpha: float = 1.0, name: str = "elu") -> Tensor:
    """x, or alpha * (exp(x) - 1) below 0."""
    return smooth(X, lambda x: values.where(x < 0, alpha * functions.expm1(x), x), name)


@operator
def selu(
    X: Tensor, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323,
    name: str = "selu",
) -> Tensor:  # fmt: skip
    """gamma * x, or gamma * alpha * (exp(x) - 1) up to 0. The defaults keep mean and variance."""
    return smooth(
        X, lambda x: values.where(x > 0, gamma * x, gamma * alpha * functions.expm1(x)), name
    )


@operator
def celu(X: Tensor, alpha: float = 1.0, name: str = "celu") -> Tensor:
    """x, or alpha * (exp(x / alpha) - 1) below 0."""
    if alpha == 0:
        raise ExpressionError("alpha is 0, by which x is divided; it must be another number")

    def f(x: Value) -> Value:
        return functions.maximum(x, 0.0) + functions.minimum(
            alpha * functions.expm1(x / alpha), 0.0
        )

    return smooth(X, f, name)


def _within_1(x: Value) -> Value:
    return functions.maximum(functions.minimum(x, 1.0), 0.0)


@operator
def hard_sigmoid(
    X: Tensor, alpha: float = 0.2, beta: float = 0.5, name: str = "hard_sigmoid"
) -> Tensor:
    """alpha * x + beta, held within [0, 1]."""
    return smooth(X, lambda x: _within_1(alpha * x + beta), name)


@operator
def hard_swish(X: Tensor, name: str = "hard_swish") -> Tensor:
    """x * (x / 6 + 1 / 2 held within [0, 1])."""
    return smooth(X, lambda x: x * _within_1(x * (1 / 6) + 0.5), name)


@operator
def swish(X: Tensor, alpha: float = 1.0, name: str = "swish") -> Tensor:
    """x * sigmoid(alpha * x); with alpha = 1 it is silu."""
    return smooth(X, lambda x: x * functions.sigmoid(alpha * x), name)


@operator
def softplus(X: Tensor, name: str = "softplus") -> Tensor:
    """log(1 + exp(x)), without its overflow."""
    return smooth(
        X, lambda x: functions.maximum(x, 0.0) + log1p(functions.exp(-functions.absolute(x))), name
    )


@operator
def mish(X: Tensor, name: str = "mish") -> Tensor:
    """x * tanh(softplus(x))."""

    def f(x: Value) -> Value:
        # tanh(log(1 + n)) is (n * n + 2 * n) / (n * n + 2 * n + 2); beyond 20 it is 1.
        n = functions.exp(functions.minimum(x, 20.0))
        m = n * (n + 2)
        return x * (m / (m + 2))

    return smooth(X, f, name)


@operator
def softsign(X: Tensor, name: str = "softsign") -> Tensor:
    """x / (1 + |x|)."""
    return smooth(X, lambda x: x / (1 + functions.absolute(x)), name)


@operator
def thresholded_relu(X: Tensor, alpha: float = 1.0, name: str = "thresholded_relu") -> Tensor:
    """x above alpha, else 0."""
    return each(X, lambda x: values.where(x > alpha, x, 0), name)


@operator
def shrink(X: Tensor, lambd: float = 0.5, bias: float = 0.0, name: str = "shrink") -> Tensor:
    """x - bias above lambd, x + bias below -lambd, else 0."""

    def f(x: Value) -> Value:
        wide = x if x.dtype.is_float else values.cast(x, "float32")
        y = values.where(wide < -lambd, wide + bias, values.where(wide > lambd, wide - bias, 0))
        return values.cast(y, x.dtype)

    return each(X, f, name)


@operator
def prelu(X: Tensor, slope: Tensor, name: str = "prelu") -> Tensor:
    """x, or slope * x below 0; slope is broadcast to the shape of X."""
    if broadcast_shape(X.shape_ints, slope.shape_ints) != X.shape_ints:
        raise ExpressionError(
            f"slope has shape {show_shape(slope.shape)}, which is not broadcast to that of "
            f"X, {show_shape(X.shape)}"
        )

    def body(*i: Value) -> Value:
        x = X[i]
        return values.where(x < 0, x * read_broadcast(slope, i, joint=X.shape_ints), x)

    return compute(X.shape_ints, body, name=name)
