"""Normalisations: softmax, layer, batch and 2-norms.

Each statistic is a stage of its own, in float32 if the tensor is of half precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.functions import exp, log, rsqrt, sqrt
from tilesmith.expr.ints import ONE, product
from tilesmith.expr.reductions import amax
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Axis, Value, cast
from tilesmith.ops.arguments import axis_of, need_equal, need_tensor, operator, show_shape, widen


def need_float(X: Tensor) -> None:
    if not X.dtype.is_float:
        raise ExpressionError(f"X is {X.dtype}; it must be a float: cast it first")


def need_channels(X: Tensor) -> None:
    need_float(X)
    if X.ndim < 2:
        raise ExpressionError(f"X has shape {show_shape(X.shape)}; it must be (N, C, ...)")


def need_vector(what: str, x: Tensor, X: Tensor, axis: int) -> None:
    need_tensor(what, x, "C")
    need_equal(f"the extent of {what}", x.shape_ints[0], X.shape_ints[axis],
               f"axis {axis} of X {show_shape(X.shape)} is")  # fmt: skip


class Rows:
    """A tensor seen as rows along some of its axes: what is summed, and what is kept."""

    def __init__(self, X: Tensor, axes: Sequence[int]) -> None:
        self.tensor, self.axes = X, tuple(axes)
        self.kept = [d for d in range(X.ndim) if d not in self.axes]
        self.shape = [X.shape_ints[d] for d in self.kept]
        self.count = product([ONE, *(X.shape_ints[d] for d in self.axes)])

    def fold(
        self, join: Callable[[Value, list[Axis]], Value],
        value: Callable[[tuple[Value, ...], tuple[Value, ...]], Value], name: str,
    ) -> Tensor:  # fmt: skip
        """One result per row: `value` at (place in the tensor, row), joined over the row."""
        over = [reduce_axis(self.tensor.shape_ints[d], name="k") for d in self.axes]

        def body(*row: Value) -> Value:
            at: list[Value] = [*over, *row]
            for d, v in [*zip(self.axes, over, strict=True), *zip(self.kept, row, strict=True)]:
                at[d] = v
            return join(value(tuple(at), row), over)

        return compute(self.shape, body, name=name)

    def moments(self, name: str, mean: str = "mean") -> tuple[Tensor, Tensor]:
        """The mean of each row, and the sum of the squared differences from it."""
        X = self.tensor
        total = self.fold(sum_over, lambda at, row: widen(X[at]), f"{name}_sum")
        middle = compute(self.shape, lambda *i: total[i] / self.count, name=f"{name}_{mean}")

        def squared(at: tuple[Value, ...], row: tuple[Value, ...]) -> Value:
            d = widen(X[at]) - middle[row]
            return d * d

        return middle, self.fold(sum_over, squared, f"{name}_squares")

    def row(self, index: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(index[d] for d in self.kept)


@operator
def softmax(X: Tensor, axis: int = -1, name: str = "softmax") -> Tensor:
    """exp(x) over the sum of exp along an axis, in four stages: maximum, exp, sum, quotient."""
    need_float(X)
    rows = Rows(X, [axis_of(axis, X.ndim)])
    top = rows.fold(amax, lambda at, row: X[at], f"{name}_max")
    e = compute(
        X.shape_ints, lambda *i: exp(widen(X[i]) - widen(top[rows.row(i)])), name=f"{name}_exp"
    )
    total = rows.fold(sum_over, lambda at, row: e[at], f"{name}_sum")
    # 1 / total is computed once per row; each element then takes a cheap multiplication.
    return compute(
        X.shape_ints, lambda *i: cast(e[i] * (1 / total[rows.row(i)]), X.dtype), name=name
    )


@operator
def log_softmax(X: Tensor, axis: int = -1, name: str = "log_softmax") -> Tensor:
    """The logarithm of softmax, without its overflow."""
    need_float(X)
    rows = Rows(X, [axis_of(axis, X.ndim)])
    top = rows.fold(amax, lambda at, row: X[at], f"{name}_max")
    total = rows.fold(sum_over, lambda at, row: exp(widen(X[at]) - widen(top[row])), f"{name}_sum")
    logs = compute(total.shape_ints, lambda *i: log(total[i]), name=f"{name}_log")

    def body(*i: Value) -> Value:
        row = rows.row(i)
        return cast(widen(X[i]) - widen(top[row]) - logs[row], X.dtype)

    return compute(X.shape_ints, body, name=name)


@operator
def layer_norm(
    X: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None,
    axis: int | Sequence[int] = -1, epsilon: float = 1e-5, name: str = "layer_norm",
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta; both have the shape of the axes."""
    return layer_norm_with_statistics(X, gamma, beta, axis, epsilon, name)[0]


@operator
def layer_norm_with_statistics(
    X: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None,
    axis: int | Sequence[int] = -1, epsilon: float = 1e-5, name: str = "layer_norm",
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """layer_norm, and of each row the mean and 1 / sqrt(variance + epsilon)."""
    need_float(X)
    wanted = axis if isinstance(axis, Sequence) else (axis,)
    axes = sorted(axis_of(a, X.ndim) for a in wanted)
    if not axes or len(set(axes)) != len(axes):
        raise ExpressionError(f"axis {axis!r} must name each axis once, and at least one")
    rows = Rows(X, axes)
    span = tuple(X.shape_ints[d] for d in axes)
    for what, t in (("gamma", gamma), ("beta", beta)):
        if t is not None and t.shape_ints != span:
            raise ExpressionError(
                f"{what} has shape {show_shape(t.shape)}; it must be that of the "
                f"normalised axes, {show_shape(span)}"
            )
    mean, squares = rows.moments(name)
    scale = compute(
        rows.shape, lambda *i: rsqrt(squares[i] / rows.count + epsilon), name=f"{name}_scale"
    )

    def body(*i: Value) -> Value:
        row, at = rows.row(i), tuple(i[d] for d in axes)
        y = (widen(X[i]) - mean[row]) * scale[row]
        y = y if gamma is None else y * widen(gamma[at])
        return cast(y if beta is None else y + widen(beta[at]), X.dtype)

    out = compute(X.shape_ints, body, name=name)
    return out, mean, scale


@operator
def scale_shift(
    X: Tensor, scale: Tensor, shift: Tensor, axis: int = 1, name: str = "scale_shift"
) -> Tensor:
    """x * scale + shift along an axis: batch normalisation with folded statistics."""
    d = axis_of(axis, X.ndim)
    for what, t in (("scale", scale), ("shift", shift)):
        need_vector(what, t, X, d)

    def body(*i: Value) -> Value:
        return cast(widen(X[i]) * widen(scale[i[d]]) + widen(shift[i[d]]), X.dtype)

    return compute(X.shape_ints, body, name=name)


@operator
def batch_norm(
    X: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor,
    axis: int = 1, epsilon: float = 1e-5, name: str = "batch_norm",
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(var + epsilon) * gamma + beta along an axis, with given statistics.

    The statistics are folded into one scale and one shift per channel.
    """
    need_float(X)
    d = axis_of(axis, X.ndim)
    for what, t in (("gamma", gamma), ("beta", beta), ("mean", mean), ("var", var)):
        need_vector(what, t, X, d)
    scale = compute(
        gamma.shape_ints, lambda c: widen(gamma[c]) * rsqrt(widen(var[c]) + epsilon),
        name=f"{name}_scale",
    )  # fmt: skip
    shift = compute(
        beta.shape_ints, lambda c: widen(beta[c]) - widen(mean[c]) * scale[c], name=f"{name}_shift"
    )
    return scale_shift(X, scale, shift, axis=d, name=name)


@operator
def norm(X: Tensor, name: str = "norm") -> Tensor:
    """The 2-norm of a vector or matrix, of rank 0; of matrices (B, M, N), one for each."""
    need_float(X)
    if not 1 <= X.ndim <= 3:
        raise ExpressionError(
            f"X has shape {show_shape(X.shape)}; it must be (N), (M, N) or (B, M, N)"
        )
    rows = Rows(X, range(1 if X.ndim == 3 else 0, X.ndim))
    squares = rows.fold(sum_over, lambda at, row: widen(X[at]) * widen(X[at]), f"{name}_squares")
    return compute(rows.shape, lambda *b: cast(sqrt(squares[b]), X.dtype), name=name)
