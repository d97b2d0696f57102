"""Normalisations: softmax, layer, batch and 2-norms.

Each statistic is a stage of its own, in float32 if the tensor is of half precision.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute
from tilesmith.expr.functions import exp, log, rsqrt, sqrt
from tilesmith.expr.reductions import amax
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Value, cast
from tilesmith.ops.arguments import axis_of, need_tensor, show_shape
from tilesmith.ops.precision import widen
from tilesmith.ops.rows import Rows, need_float, need_vector


def softmax(X: Tensor, axis: int = -1, name: str = "softmax") -> Tensor:
    """exp(x) over the sum of exp along an axis, in four stages: maximum, exp, sum, quotient."""
    need_float("softmax", X)
    rows = Rows(X, [axis_of("softmax", axis, X.ndim)])
    top = rows.fold(amax, lambda at, row: X[at], f"{name}_max")
    e: Tensor = compute(
        X.shape_ints, lambda *i: exp(widen(X[i]) - widen(top[rows.row(i)])), name=f"{name}_exp"
    )
    total = rows.fold(sum_over, lambda at, row: e[at], f"{name}_sum")
    # 1 / total is computed once per row; each element then takes a cheap multiplication.
    out: Tensor = compute(
        X.shape_ints, lambda *i: cast(e[i] * (1 / total[rows.row(i)]), X.dtype), name=name
    )
    return out


def log_softmax(X: Tensor, axis: int = -1, name: str = "log_softmax") -> Tensor:
    """The logarithm of softmax, without its overflow."""
    need_float("log_softmax", X)
    rows = Rows(X, [axis_of("log_softmax", axis, X.ndim)])
    top = rows.fold(amax, lambda at, row: X[at], f"{name}_max")
    total = rows.fold(sum_over, lambda at, row: exp(widen(X[at]) - widen(top[row])), f"{name}_sum")

    def body(*i: Value) -> Value:
        row = rows.row(i)
        return cast(widen(X[i]) - widen(top[row]) - log(total[row]), X.dtype)

    out: Tensor = compute(X.shape_ints, body, name=name)
    return out


def layer_norm(
    X: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None,
    axis: int | Sequence[int] = -1, epsilon: float = 1e-5, name: str = "layer_norm",
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta; both have the shape of the axes."""
    return layer_norm_with_statistics(X, gamma, beta, axis, epsilon, name)[0]


def layer_norm_with_statistics(
    X: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None,
    axis: int | Sequence[int] = -1, epsilon: float = 1e-5, name: str = "layer_norm",
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """layer_norm, and of each row the mean and 1 / sqrt(variance + epsilon)."""
    op = "layer_norm"
    need_float(op, X)
    wanted = axis if isinstance(axis, Sequence) else (axis,)
    axes = sorted(axis_of(op, a, X.ndim) for a in wanted)
    if not axes or len(set(axes)) != len(axes):
        raise ExpressionError(f"{op}: axis {axis!r} must name each axis once, and at least one")
    rows = Rows(X, axes)
    span = tuple(X.shape_ints[d] for d in axes)
    for what, t in (("gamma", gamma), ("beta", beta)):
        if t is not None and t.shape_ints != span:
            raise ExpressionError(
                f"{op}: {what} has shape {show_shape(t.shape)}; it must be that of the "
                f"normalised axes, {show_shape(span)}"
            )
    total = rows.fold(sum_over, lambda at, row: widen(X[at]), f"{name}_sum")
    mean: Tensor = compute(rows.shape, lambda *i: total[i] / rows.count, name=f"{name}_mean")

    def squared(at: tuple[Value, ...], row: tuple[Value, ...]) -> Value:
        d = widen(X[at]) - mean[row]
        return d * d

    squares = rows.fold(sum_over, squared, f"{name}_squares")
    scale: Tensor = compute(
        rows.shape, lambda *i: rsqrt(squares[i] / rows.count + epsilon), name=f"{name}_scale"
    )

    def body(*i: Value) -> Value:
        row, at = rows.row(i), tuple(i[d] for d in axes)
        y = (widen(X[i]) - mean[row]) * scale[row]
        y = y if gamma is None else y * widen(gamma[at])
        return cast(y if beta is None else y + widen(beta[at]), X.dtype)

    out: Tensor = compute(X.shape_ints, body, name=name)
    return out, mean, scale


def scale_shift(
    X: Tensor, scale: Tensor, shift: Tensor, axis: int = 1, name: str = "scale_shift"
) -> Tensor:
    """x * scale + shift along an axis: batch normalisation with folded statistics."""
    op = "scale_shift"
    need_tensor(op, "X", X)
    d = axis_of(op, axis, X.ndim)
    for what, t in (("scale", scale), ("shift", shift)):
        need_vector(op, what, t, X, d)

    def body(*i: Value) -> Value:
        return cast(widen(X[i]) * widen(scale[i[d]]) + widen(shift[i[d]]), X.dtype)

    out: Tensor = compute(X.shape_ints, body, name=name)
    return out


def batch_norm(
    X: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor,
    axis: int = 1, epsilon: float = 1e-5, name: str = "batch_norm",
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(var + epsilon) * gamma + beta along an axis, with given statistics.

    The statistics are folded into one scale and one shift per channel.
    """
    op = "batch_norm"
    need_float(op, X)
    d = axis_of(op, axis, X.ndim)
    for what, t in (("gamma", gamma), ("beta", beta), ("mean", mean), ("var", var)):
        need_vector(op, what, t, X, d)
    scale: Tensor = compute(
        gamma.shape_ints, lambda c: widen(gamma[c]) * rsqrt(widen(var[c]) + epsilon),
        name=f"{name}_scale",
    )  # fmt: skip
    shift: Tensor = compute(
        beta.shape_ints, lambda c: widen(beta[c]) - widen(mean[c]) * scale[c],
        name=f"{name}_shift",
    )  # fmt: skip
    return scale_shift(X, scale, shift, axis=d, name=name)


def norm(X: Tensor, name: str = "norm") -> Tensor:
    """The 2-norm of a vector or matrix, of rank 0; of matrices (B, M, N), one for each."""
    need_float("norm", X)
    if not 1 <= X.ndim <= 3:
        raise ExpressionError(
            f"norm: X has shape {show_shape(X.shape)}; it must be (N), (M, N) or (B, M, N)"
        )
    rows = Rows(X, range(1 if X.ndim == 3 else 0, X.ndim))
    squares = rows.fold(sum_over, lambda at, row: widen(X[at]) * widen(X[at]), f"{name}_squares")
    out: Tensor = compute(rows.shape, lambda *b: cast(sqrt(squares[b]), X.dtype), name=name)
    return out
