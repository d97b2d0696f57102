"""Pooling: a tensor of images of any rank in, the maximum, mean or norm of each window out.

Windows over the border read a padding stage, as in the convolutions; a mean divides by what its
window counts. The functions ending in 2d are those of two spatial dimensions, as in conv2d; the
others take the number of dimensions from the layout, or from X where none is given.
"""

from __future__ import annotations

from collections.abc import Callable

from tilesmith.base.dtype import INT64
from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.functions import absolute, sqrt
from tilesmith.expr.intervals import row_major
from tilesmith.expr.ints import product
from tilesmith.expr.reductions import amax, reduce
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Axis, Value, cast, power, where
from tilesmith.ops.arguments import Padding, PerDim, image_layout, need_tensor
from tilesmith.ops.pool_windows import Windows
from tilesmith.ops.precision import widen


def max_pool(
    X: Tensor, kernel: PerDim, stride: PerDim | None = None, padding: Padding = 0,
    dilation: PerDim = 1, ceil_mode: bool = False, layout: str | None = None,
    name: str = "max_pool",
) -> Tensor:  # fmt: skip
    """The maximum of each window; the stride is the kernel's size where none is given."""
    need_tensor("max_pool", "X", X)
    fill = X.dtype.lowest()
    return _max_pool(
        Windows("max_pool", X, kernel, stride, padding, dilation, ceil_mode, layout, fill), name
    )


def max_pool2d(
    X: Tensor, kernel: PerDim, stride: PerDim | None = None, padding: Padding = 0,
    dilation: PerDim = 1, ceil_mode: bool = False, layout: str = "NCHW",
    name: str = "max_pool2d",
) -> Tensor:  # fmt: skip
    """max_pool of two spatial dimensions."""
    need_tensor("max_pool2d", "X", X)
    fill = X.dtype.lowest()
    return _max_pool(
        Windows("max_pool2d", X, kernel, stride, padding, dilation, ceil_mode, layout, fill, 2),
        name,
    )


def _max_pool(windows: Windows, name: str) -> Tensor:
    out: Tensor = compute(
        windows.shape, lambda *i: amax(windows.read(i), axis=windows.axes),
        name=name, axes=windows.layout.labels,
    )  # fmt: skip
    return out


def max_pool_with_indices(
    X: Tensor, kernel: PerDim, stride: PerDim | None = None, padding: Padding = 0,
    dilation: PerDim = 1, ceil_mode: bool = False, column_major: bool = False,
    layout: str | None = None, name: str = "max_pool_with_indices",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """max_pool, and where in X as one row the first maximum lies (int64). `column_major` counts
    the first spatial dimension fastest.
    """
    op = "max_pool_with_indices"
    need_tensor(op, "X", X)
    windows = Windows(
        op, X, kernel, stride, padding, dilation, ceil_mode, layout, X.dtype.lowest()
    )  # fmt: skip
    strides = row_major(X.shape_ints)
    far = INT64.highest()

    def body(*index: Value) -> tuple[Value, ...]:
        at = windows.place(index)
        position: Value | int = 0
        inside: Value | None = None
        for d, (i, s) in enumerate(zip(at, strides, strict=True)):
            place = i - windows.before.get(d, 0)
            position = place * s + position
            if d in windows.spatial and windows.input is not X:
                fits = (place >= 0) & (place < X.shape_ints[d])
                inside = fits if inside is None else inside & fits
        # Padding must not win against an element that is as small.
        where_in_x = position if inside is None else where(inside, position, far)
        value = windows.input[at]
        return reduce((value, where_in_x), _first_largest, (X.dtype.lowest(), far), windows.axes)

    labels = windows.layout.labels
    values, places = compute(windows.shape, body, name=name, axes=labels)
    if column_major:
        rows: Tensor = places
        ranks = [X.shape_ints[d] for d in windows.spatial]

        def turned(*index: Value) -> Value:
            place = rows[index]
            inner = place % product(ranks)
            out: Value = place - inner
            below, above = product(ranks), product(())
            for n in ranks:
                below = below // n
                out = out + inner // below % n * above
                above = above * n
            return out

        if windows.layout.channel != 1:
            raise ExpressionError(f"{op}: column_major needs the channels first")
        places = compute(windows.shape, turned, name=f"{name}_turned", axes=labels)
    return values, places


def _first_largest(p: tuple[Value, ...], q: tuple[Value, ...]) -> tuple[Value, Value]:
    """Of two (value, position): the larger value, a NaN before all numbers, the first of equals."""

    def as_good(a: Value, b: Value) -> Value:
        return (a >= b) | (a != a) if a.dtype.is_float else a >= b

    left = as_good(p[0], q[0]) & (~as_good(q[0], p[0]) | (p[1] <= q[1]))
    return where(left, p[0], q[0]), where(left, p[1], q[1])


def avg_pool(
    X: Tensor, kernel: PerDim, stride: PerDim | None = None, padding: Padding = 0,
    count_include_pad: bool = True, ceil_mode: bool = False, dilation: PerDim = 1,
    layout: str | None = None, name: str = "avg_pool",
) -> Tensor:  # fmt: skip
    """The mean of each window; padding counts as zeros, or not at all."""
    windows = Windows("avg_pool", X, kernel, stride, padding, dilation, ceil_mode, layout, 0)
    return _avg_pool(X, windows, count_include_pad, name)


def avg_pool2d(
    X: Tensor, kernel: PerDim, stride: PerDim | None = None, padding: Padding = 0,
    count_include_pad: bool = True, ceil_mode: bool = False, layout: str = "NCHW",
    dilation: PerDim = 1, name: str = "avg_pool2d",
) -> Tensor:  # fmt: skip
    """avg_pool of two spatial dimensions."""
    windows = Windows("avg_pool2d", X, kernel, stride, padding, dilation, ceil_mode, layout, 0, 2)
    return _avg_pool(X, windows, count_include_pad, name)


def _avg_pool(X: Tensor, windows: Windows, include_pad: bool, name: str) -> Tensor:
    def body(*index: Value) -> Value:
        total = sum_over(widen(windows.read(index)), axis=windows.axes)
        mean = total / windows.count(index, include_pad)
        return cast(mean, X.dtype) if X.dtype.is_float else mean

    out: Tensor = compute(windows.shape, body, name=name, axes=windows.layout.labels)
    return out


def lp_pool(
    X: Tensor, kernel: PerDim, p: float = 2, stride: PerDim | None = None, padding: Padding = 0,
    ceil_mode: bool = False, dilation: PerDim = 1, layout: str | None = None,
    name: str = "lp_pool",
) -> Tensor:  # fmt: skip
    """The p-norm of each window; padding counts as zeros."""
    windows = Windows("lp_pool", X, kernel, stride, padding, dilation, ceil_mode, layout, 0)
    _check_p("lp_pool", p)

    def body(*index: Value) -> Value:
        total = sum_over(_to_the(widen(windows.read(index)), p), axis=windows.axes)
        return cast(_root(total, p), X.dtype)

    out: Tensor = compute(windows.shape, body, name=name, axes=windows.layout.labels)
    return out


def _check_p(op: str, p: float) -> None:
    if p <= 0:
        raise ExpressionError(f"{op}: p is {p}; it must be above 0")


def _to_the(x: Value, p: float) -> Value:
    """|x| ** p."""
    if p == 2:
        return x * x
    a = absolute(x)
    return a if p == 1 else power(a, int(p) if p == int(p) else float(p))


def _root(x: Value, p: float) -> Value:
    if p == 1:
        return x
    return sqrt(x) if p == 2 else power(x, 1.0 / p)


# of a whole image
def global_avg_pool(X: Tensor, layout: str | None = None, name: str = "global_avg_pool") -> Tensor:
    """The mean of each channel; the spatial dimensions stay, with an extent of 1."""
    return _global_mean("global_avg_pool", X, layout, None, name)


def global_avg_pool2d(X: Tensor, layout: str = "NCHW", name: str = "global_avg_pool2d") -> Tensor:
    """The mean of each channel; H and W stay, with an extent of 1."""
    return _global_mean("global_avg_pool2d", X, layout, 2, name)


def _global_mean(op: str, X: Tensor, layout: str | None, count: int | None, name: str) -> Tensor:
    def mean(x: Value, axes: tuple[Axis, ...]) -> Value:
        y = sum_over(widen(x), axis=axes) / product([a.extent for a in axes])
        return cast(y, X.dtype) if X.dtype.is_float else y

    return _over_image(op, X, layout, count, mean, name)


def global_max_pool(X: Tensor, layout: str | None = None, name: str = "global_max_pool") -> Tensor:
    """The maximum of each channel; the spatial dimensions stay, with an extent of 1."""
    return _over_image("global_max_pool", X, layout, None, lambda x, axes: amax(x, axis=axes), name)


def global_lp_pool(
    X: Tensor, p: float = 2, layout: str | None = None, name: str = "global_lp_pool"
) -> Tensor:
    """The p-norm of each channel; the spatial dimensions stay, with an extent of 1."""
    _check_p("global_lp_pool", p)

    def norm(x: Value, axes: tuple[Axis, ...]) -> Value:
        return cast(_root(sum_over(_to_the(widen(x), p), axis=axes), p), x.dtype)

    return _over_image("global_lp_pool", X, layout, None, norm, name)


def _over_image(
    op: str, X: Tensor, layout: str | None, count: int | None,
    joined: Callable[[Value, tuple[Axis, ...]], Value], name: str,
) -> Tensor:  # fmt: skip
    at = image_layout(op, X, layout, count)
    axes = tuple(
        reduce_axis(X.shape_ints[d], name=n)
        for d, n in zip(at.spatial, at.window_labels, strict=True)
    )

    def body(*index: Value) -> Value:
        place = list(index)
        for d, r in zip(at.spatial, axes, strict=True):
            place[d] = r
        return joined(X[tuple(place)], axes)

    shape: list[object] = list(X.shape_ints)
    for d in at.spatial:
        shape[d] = 1
    out: Tensor = compute(shape, body, name=name, axes=at.labels)
    return out
