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
from tilesmith.expr.functions import absolute, maximum, minimum, sqrt
from tilesmith.expr.intervals import row_major
from tilesmith.expr.ints import of, product
from tilesmith.expr.reductions import amax, reduce
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Axis, Value, cast, power, where
from tilesmith.ops.arguments import (
    Padding,
    PerDim,
    image_layout,
    operator,
    pad_pairs,
    per_dim,
    widen,
)
from tilesmith.ops.window import open_output_extent, padded


class Windows:
    """`count` is the number of spatial dimensions, where an operator has just one."""

    def __init__(
        self, X: Tensor, kernel: PerDim, stride: PerDim | None, padding: Padding,
        dilation: PerDim, ceil_mode: bool, layout: str | None, fill: float,
        count: int | None = None,
    ) -> None:  # fmt: skip
        self.layout = image_layout(X, layout, count)
        self.spatial, words = self.layout.spatial, self.layout.words
        rank = len(self.spatial)
        self.kernel = per_dim("kernel", kernel, rank)
        self.stride = self.kernel if stride is None else per_dim("stride", stride, rank)
        self.dilation = per_dim("dilation", dilation, rank)
        self.pads = pad_pairs(padding, rank)
        self.sizes = [X.shape_ints[d] for d in self.spatial]
        self.past: list[int] = []  # elements behind the end that windows reach at most
        around: dict[int, tuple[int, int]] = {}
        shape: list[object] = list(X.shape_ints)
        for k, d in enumerate(self.spatial):
            size, pad, s = self.sizes[k], self.pads[k], self.stride[k]
            reach = self.dilation[k] * (self.kernel[k] - 1) + 1
            if max(pad) >= reach:
                raise ExpressionError(
                    f"padding {pad} in {words[d]} is as large as the kernel, which reaches "
                    f"over {reach} elements; a window would hold nothing but padding"
                )
            n = of(open_output_extent(words[d], size, self.kernel[k], s, pad, self.dilation[k]))
            past = pad[1]
            if ceil_mode:  # windows that begin in front of the end, if all but s - 1 of it fits
                spare = min(0, pad[1] - reach + s)
                n, past = (size + (pad[0] - 1 + spare)) // s + 1, reach - 1 + spare
            exact = ((n - 1) * s + reach - size - pad[0]).const
            self.past.append(past if exact is None else exact)
            around[d] = (pad[0], max(pad[1], self.past[-1]))
            shape[d] = n
        self.before = {d: p[0] for d, p in around.items()}
        self.input = padded(X, around, fill)
        self.shape = shape
        names = self.layout.window_labels
        self.axes: tuple[Axis, ...] = tuple(
            reduce_axis(k, name=n) for k, n in zip(self.kernel, names, strict=True)
        )

    def place(self, index: tuple[Value, ...]) -> tuple[Value, ...]:
        """Where the window at `index` reads the padded input."""
        at = list(index)
        for d, s, dil, r in zip(self.spatial, self.stride, self.dilation, self.axes, strict=True):
            at[d] = index[d] * s + r * dil
        return tuple(at)

    def read(self, index: tuple[Value, ...]) -> Value:
        return self.input[self.place(index)]

    def count(self, index: tuple[Value, ...], include_pad: bool) -> Value | int:
        """How many elements the window at `index` counts."""
        total: Value | int = 1
        for k, d in enumerate(self.spatial):
            (before, after), past = self.pads[k], self.past[k]
            low, more = (-before, after) if include_pad else (0, 0)
            end = self.sizes[k] + more
            high = end if (known := end.const) is None else known
            taps, step = self.kernel[k], self.dilation[k]
            start = index[d] * self.stride[k] - before
            if low <= -before and past <= more:
                total = total * taps
            elif step == 1:
                total = total * (minimum(start + taps, high) - maximum(start, low))
            else:  # tap t counts if low <= start + step*t < high
                ends = minimum((high - start + (step - 1)) // step, taps)
                total = total * (ends - maximum((low - start + (step - 1)) // step, 0))
        return total


@operator
def max_pool(
    X: Tensor, kernel: PerDim, stride: PerDim | None = None, padding: Padding = 0,
    dilation: PerDim = 1, ceil_mode: bool = False, layout: str | None = None,
    name: str = "max_pool",
) -> Tensor:  # fmt: skip
    """The maximum of each window; the stride is the kernel's size where none is given."""
    fill = X.dtype.lowest()
    return _max_pool(Windows(X, kernel, stride, padding, dilation, ceil_mode, layout, fill), name)


@operator
def max_pool2d(
    X: Tensor, kernel: PerDim, stride: PerDim | None = None, padding: Padding = 0,
    dilation: PerDim = 1, ceil_mode: bool = False, layout: str = "NCHW",
    name: str = "max_pool2d",
) -> Tensor:  # fmt: skip
    """max_pool of two spatial dimensions."""
    fill = X.dtype.lowest()
    return _max_pool(
        Windows(X, kernel, stride, padding, dilation, ceil_mode, layout, fill, 2),
        name,
    )


def _max_pool(windows: Windows, name: str) -> Tensor:
    return compute(
        windows.shape, lambda *i: amax(windows.read(i), axis=windows.axes),
        name=name, axes=windows.layout.labels,
    )  # fmt: skip


@operator
def max_pool_with_indices(
    X: Tensor, kernel: PerDim, stride: PerDim | None = None, padding: Padding = 0,
    dilation: PerDim = 1, ceil_mode: bool = False, column_major: bool = False,
    layout: str | None = None, name: str = "max_pool_with_indices",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """max_pool, and where in X as one row the first maximum lies (int64). `column_major` counts
    the first spatial dimension fastest.
    """
    windows = Windows(X, kernel, stride, padding, dilation, ceil_mode, layout, X.dtype.lowest())
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
            raise ExpressionError("column_major needs the channels first")
        places = compute(windows.shape, turned, name=f"{name}_turned", axes=labels)
    return values, places


def _first_largest(p: tuple[Value, ...], q: tuple[Value, ...]) -> tuple[Value, Value]:
    """Of two (value, position): the larger value, a NaN before all numbers, the first of equals."""

    def as_good(a: Value, b: Value) -> Value:
        return (a >= b) | (a != a) if a.dtype.is_float else a >= b

    left = as_good(p[0], q[0]) & (~as_good(q[0], p[0]) | (p[1] <= q[1]))
    return where(left, p[0], q[0]), where(left, p[1], q[1])


@operator
def avg_pool(
    X: Tensor, kernel: PerDim, stride: PerDim | None = None, padding: Padding = 0,
    count_include_pad: bool = True, ceil_mode: bool = False, dilation: PerDim = 1,
    layout: str | None = None, name: str = "avg_pool",
) -> Tensor:  # fmt: skip
    """The mean of each window; padding counts as zeros, or not at all."""
    windows = Windows(X, kernel, stride, padding, dilation, ceil_mode, layout, 0)
    return _avg_pool(X, windows, count_include_pad, name)


@operator
def avg_pool2d(
    X: Tensor, kernel: PerDim, stride: PerDim | None = None, padding: Padding = 0,
    count_include_pad: bool = True, ceil_mode: bool = False, layout: str = "NCHW",
    dilation: PerDim = 1, name: str = "avg_pool2d",
) -> Tensor:  # fmt: skip
    """avg_pool of two spatial dimensions."""
    windows = Windows(X, kernel, stride, padding, dilation, ceil_mode, layout, 0, 2)
    return _avg_pool(X, windows, count_include_pad, name)


def _avg_pool(X: Tensor, windows: Windows, include_pad: bool, name: str) -> Tensor:
    def body(*index: Value) -> Value:
        total = sum_over(widen(windows.read(index)), axis=windows.axes)
        mean = total / windows.count(index, include_pad)
        return cast(mean, X.dtype) if X.dtype.is_float else mean

    return compute(windows.shape, body, name=name, axes=windows.layout.labels)


@operator
def lp_pool(
    X: Tensor, kernel: PerDim, p: float = 2, stride: PerDim | None = None, padding: Padding = 0,
    ceil_mode: bool = False, dilation: PerDim = 1, layout: str | None = None,
    name: str = "lp_pool",
) -> Tensor:  # fmt: skip
    """The p-norm of each window; padding counts as zeros."""
    windows = Windows(X, kernel, stride, padding, dilation, ceil_mode, layout, 0)
    _check_p(p)

    def body(*index: Value) -> Value:
        total = sum_over(_to_the(widen(windows.read(index)), p), axis=windows.axes)
        return cast(_root(total, p), X.dtype)

    return compute(windows.shape, body, name=name, axes=windows.layout.labels)


def _check_p(p: float) -> None:
    if p <= 0:
        raise ExpressionError(f"p is {p}; it must be above 0")


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
@operator
def global_avg_pool(X: Tensor, layout: str | None = None, name: str = "global_avg_pool") -> Tensor:
    """The mean of each channel; the spatial dimensions stay, with an extent of 1."""
    return _global_mean(X, layout, None, name)


@operator
def global_avg_pool2d(X: Tensor, layout: str = "NCHW", name: str = "global_avg_pool2d") -> Tensor:
    """The mean of each channel; H and W stay, with an extent of 1."""
    return _global_mean(X, layout, 2, name)


def _global_mean(X: Tensor, layout: str | None, count: int | None, name: str) -> Tensor:
    def mean(x: Value, axes: tuple[Axis, ...]) -> Value:
        y = sum_over(widen(x), axis=axes) / product([a.extent for a in axes])
        return cast(y, X.dtype) if X.dtype.is_float else y

    return _over_image(X, layout, count, mean, name)


@operator
def global_max_pool(X: Tensor, layout: str | None = None, name: str = "global_max_pool") -> Tensor:
    """The maximum of each channel; the spatial dimensions stay, with an extent of 1."""
    return _over_image(X, layout, None, lambda x, axes: amax(x, axis=axes), name)


@operator
def global_lp_pool(
    X: Tensor, p: float = 2, layout: str | None = None, name: str = "global_lp_pool"
) -> Tensor:
    """The p-norm of each channel; the spatial dimensions stay, with an extent of 1."""
    _check_p(p)

    def norm(x: Value, axes: tuple[Axis, ...]) -> Value:
        return cast(_root(sum_over(_to_the(widen(x), p), axis=axes), p), x.dtype)

    return _over_image(X, layout, None, norm, name)


def _over_image(
    X: Tensor, layout: str | None, count: int | None,
    joined: Callable[[Value, tuple[Axis, ...]], Value], name: str,
) -> Tensor:  # fmt: skip
    at = image_layout(X, layout, count)
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
    return compute(shape, body, name=name, axes=at.labels)
