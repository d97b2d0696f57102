"""Normalisations whose statistics are taken over parts of the channels, over single axes or over
the batch. A tensor in, the normalised tensor out; sums in float32 where it is of half precision.
"""

from __future__ import annotations

from math import inf

from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.functions import absolute, rsqrt, sqrt
from tilesmith.expr.ints import of, product
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Value, cast, power, where
from tilesmith.ops.arguments import axis_of, fixed, operator, show_shape, widen
from tilesmith.ops.norm import Rows, need_channels, need_float, need_vector, scale_shift


@operator
def group_norm(
    X: Tensor, gamma: Tensor, beta: Tensor, groups: int, epsilon: float = 1e-5,
    name: str = "group_norm",
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta for X (N, C, ...), with the statistics
    of each image and group of channels; gamma and beta are per channel.
    """
    need_channels(X)
    need_vector("gamma", gamma, X, 1)
    need_vector("beta", beta, X, 1)
    channels = fixed("the number of channels", X.shape_ints[1])
    if groups < 1 or channels % groups:
        raise ExpressionError(f"{channels} channels do not form {groups} groups of the same size")
    each = channels // groups
    span = [of(each), *X.shape_ints[2:]]
    count = product(span)

    def over(value: str) -> Tensor:
        k = [reduce_axis(e, name="k") for e in span]

        def body(n: Value, g: Value) -> Value:
            x = widen(X[(n, g * each + k[0], *k[1:])])
            if value == "sum":
                return sum_over(x, k)
            d = x - mean[n, g]
            return sum_over(d * d, k)

        return compute((X.shape_ints[0], groups), body, name=f"{name}_{value}")

    total = over("sum")
    mean = compute(total.shape_ints, lambda n, g: total[n, g] / count, name=f"{name}_mean")
    squares = over("squares")
    scale = compute(
        total.shape_ints, lambda n, g: rsqrt(squares[n, g] / count + epsilon), name=f"{name}_scale"
    )

    def normal(*i: Value) -> Value:
        n, g = i[0], i[1] // each
        y = (widen(X[i]) - mean[n, g]) * scale[n, g]
        return cast(y * widen(gamma[i[1]]) + widen(beta[i[1]]), X.dtype)

    return compute(X.shape_ints, normal, name=name)


@operator
def instance_norm(
    X: Tensor, gamma: Tensor, beta: Tensor, epsilon: float = 1e-5, name: str = "instance_norm"
) -> Tensor:
    """group_norm where each channel is its own group."""
    need_channels(X)
    channels = fixed("the number of channels", X.shape_ints[1])
    return group_norm(X, gamma, beta, channels, epsilon, name)


@operator
def rms_norm(
    X: Tensor, gamma: Tensor | None = None, axis: int = -1, epsilon: float = 1e-5,
    name: str = "rms_norm",
) -> Tensor:  # fmt: skip
    """x / sqrt(mean of squares + epsilon) * gamma, over the axes from `axis` on; gamma has their
    shape.
    """
    need_float(X)
    first = axis_of(axis, X.ndim)
    rows = Rows(X, range(first, X.ndim))
    span = X.shape_ints[first:]
    if gamma is not None and gamma.shape_ints != span:
        raise ExpressionError(
            f"gamma has shape {show_shape(gamma.shape)}; it must be that of the normalised "
            f"axes, {show_shape(span)}"
        )
    squares = rows.fold(sum_over, lambda at, row: widen(X[at]) * widen(X[at]), f"{name}_squares")
    scale = compute(
        rows.shape, lambda *i: rsqrt(squares[i] / rows.count + epsilon), name=f"{name}_scale"
    )

    def body(*i: Value) -> Value:
        y = widen(X[i]) * scale[rows.row(i)]
        return cast(y if gamma is None else y * widen(gamma[i[first:]]), X.dtype)

    return compute(X.shape_ints, body, name=name)


@operator
def lp_normalize(X: Tensor, axis: int = -1, p: int = 2, name: str = "lp_normalize") -> Tensor:
    """x over the p-norm along an axis, p being 1 or 2; 0 where that norm is 0."""
    need_float(X)
    if p not in (1, 2):
        raise ExpressionError(f"p is {p!r}; it must be 1 or 2")
    rows = Rows(X, [axis_of(axis, X.ndim)])

    squares = p == 2 and rows.count.const != 1  # of one element, it might overflow

    def size(at: tuple[Value, ...], row: tuple[Value, ...]) -> Value:
        x = widen(X[at])
        return x * x if squares else absolute(x)

    total = rows.fold(sum_over, size, f"{name}_sum")

    def length(*row: Value) -> Value:
        norm = sqrt(total[row]) if squares else total[row]
        return where(norm == 0, inf, norm)

    norm = compute(rows.shape, length, name=f"{name}_norm")
    return compute(
        X.shape_ints, lambda *i: cast(widen(X[i]) / norm[rows.row(i)], X.dtype), name=name
    )


@operator
def local_response_norm(
    X: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0,
    name: str = "local_response_norm",
) -> Tensor:  # fmt: skip
    """x / (bias + alpha / size * s) ** beta for X (N, C, ...), where s is the sum of squares over
    the `size` channels around this one.
    """
    need_float(X)
    if X.ndim < 2 or size < 1:
        raise ExpressionError(
            f"X has shape {show_shape(X.shape)} and size is {size}; X must be (N, C, ...) "
            "and size at least 1"
        )
    k = reduce_axis(size, name="k")
    channels = X.shape_ints[1]

    def squares(*i: Value) -> Value:
        c = i[1] + k - (size - 1) // 2
        x = widen(X[(i[0], c, *i[2:])])
        return sum_over(where((c >= 0) & (c < channels), x * x, 0), k)

    total = compute(X.shape_ints, squares, name=f"{name}_squares")

    def body(*i: Value) -> Value:
        t = total[i] * (alpha / size) + bias
        if beta == 0.75:  # what networks use: two roots are cheaper than a power
            scale = rsqrt(t) * sqrt(rsqrt(t))
        else:
            scale = power(t, -beta)
        return cast(widen(X[i]) * scale, X.dtype)

    return compute(X.shape_ints, body, name=name)


@operator
def batch_norm_training(
    X: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor,
    epsilon: float = 1e-5, momentum: float = 0.9, name: str = "batch_norm_training",
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """batch_norm of X (N, C, ...) with the statistics of X itself, and the given statistics moved
    towards these: momentum * old + (1 - momentum) * new.
    """
    need_channels(X)
    for what, t in (("gamma", gamma), ("beta", beta), ("mean", mean), ("var", var)):
        need_vector(what, t, X, 1)
    rows = Rows(X, [d for d in range(X.ndim) if d != 1])
    own, squares = rows.moments(name, "own_mean")
    own_var = compute(rows.shape, lambda c: squares[c] / rows.count, name=f"{name}_own_var")
    scale = compute(
        rows.shape, lambda c: widen(gamma[c]) * rsqrt(own_var[c] + epsilon), name=f"{name}_scale"
    )
    shift = compute(rows.shape, lambda c: widen(beta[c]) - own[c] * scale[c], name=f"{name}_shift")

    def moved(old: Tensor, new: Tensor, what: str) -> Tensor:
        return compute(
            old.shape_ints,
            lambda c: cast(widen(old[c]) * momentum + new[c] * (1 - momentum), old.dtype),
            name=f"{name}_{what}",
        )

    y = scale_shift(X, scale, shift, axis=1, name=name)
    return y, moved(mean, own, "mean"), moved(var, own_var, "var")
