"""Pooling: the maximum or the mean of sliding windows.

Windows beyond the border read a padding stage, as in the convolutions. A mean divides by the number
of elements that its window counts.
"""

from __future__ import annotations

from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import amax, compute, reduce_axis
from tilesmith.expr.dsl import sum as sum_over
from tilesmith.expr.functions import maximum, minimum
from tilesmith.expr.values import Axis, Tensor, Value, cast
from tilesmith.ops.arguments import (
    Padding,
    PerDim,
    fixed,
    layout_axes,
    need_tensor,
    pad_pairs,
    per_dim,
)
from tilesmith.ops.precision import widen
from tilesmith.ops.window import output_extent, padded

_LABELS = {"NCHW": ("n", "c", "h", "w"), "NHWC": ("n", "h", "w", "c")}


class _Windows:
    """The windows of one pooling: their positions, and the padded input they read."""

    def __init__(
        self, op: str, X: Tensor, kernel: PerDim, stride: PerDim | None, padding: Padding,
        dilation: PerDim, ceil_mode: bool, layout: str, fill: float,
    ) -> None:  # fmt: skip
        _, self.spatial = layout_axes(op, layout, 2)
        need_tensor(op, "X", X, " ".join(layout))
        self.kernel = per_dim(op, "kernel", kernel, 2)
        self.stride = self.kernel if stride is None else per_dim(op, "stride", stride, 2)
        self.dilation = per_dim(op, "dilation", dilation, 2)
        self.pads = pad_pairs(op, padding, 2)
        self.sizes = [fixed(op, f"extent {layout[d]} of X", X.shape_ints[d]) for d in self.spatial]
        around: dict[int, tuple[int, int]] = {}
        shape: list[object] = list(X.shape_ints)
        for k, d in enumerate(self.spatial):
            size, pad, s = self.sizes[k], self.pads[k], self.stride[k]
            reach = self.dilation[k] * (self.kernel[k] - 1) + 1
            if max(pad) >= reach:
                raise ExpressionError(
                    f"{op}: padding {pad} in {layout[d]} is as large as the kernel, which reaches "
                    f"over {reach} elements; a window would hold nothing but padding"
                )
            n = output_extent(op, layout[d], size, self.kernel[k], s, pad, self.dilation[k])
            # One more, partial window if elements are left over and it starts before the end.
            left_over = (size + sum(pad) - reach) % s
            if ceil_mode and left_over and n * s < size + pad[0]:
                n += 1
            end = (n - 1) * s + reach
            around[d] = (pad[0], max(pad[1], end - size - pad[0]))
            shape[d] = n
        self.input = padded(X, around, fill)
        self.shape = shape
        self.axes: tuple[Axis, ...] = (
            reduce_axis(self.kernel[0], name="rh"), reduce_axis(self.kernel[1], name="rw"),
        )  # fmt: skip

    def read(self, index: tuple[Value, ...]) -> Value:
        at = list(index)
        for d, s, dil, r in zip(self.spatial, self.stride, self.dilation, self.axes, strict=True):
            at[d] = index[d] * s + r * dil
        return self.input[tuple(at)]

    def count(self, index: tuple[Value, ...], include_pad: bool) -> Value | int:
        """The number of elements that the window at `index` counts."""
        total: Value | int = 1
        for k, d in enumerate(self.spatial):
            size, (before, after) = self.sizes[k], self.pads[k]
            low, high = (-before, size + after) if include_pad else (0, size)
            places = self.shape[d]
            assert isinstance(places, int)
            last = (places - 1) * self.stride[k] - before + self.kernel[k]
            start = index[d] * self.stride[k] - before
            if low <= -before and last <= high:
                total = total * self.kernel[k]
            else:
                total = total * (minimum(start + self.kernel[k], high) - maximum(start, low))
        return total


def max_pool2d(
    X: Tensor, kernel: PerDim, stride: PerDim | None = None, padding: Padding = 0,
    dilation: PerDim = 1, ceil_mode: bool = False, layout: str = "NCHW",
    name: str = "max_pool2d",
) -> Tensor:  # fmt: skip
    """The maximum of each window; the stride defaults to the kernel's size."""
    op = "max_pool2d"
    need_tensor(op, "X", X)
    fill = X.dtype.lowest()
    windows = _Windows(op, X, kernel, stride, padding, dilation, ceil_mode, layout, fill)
    out: Tensor = compute(
        windows.shape, lambda *i: amax(windows.read(i), axis=windows.axes),
        name=name, axes=_LABELS[layout],
    )  # fmt: skip
    return out


def avg_pool2d(
    X: Tensor, kernel: PerDim, stride: PerDim | None = None, padding: Padding = 0,
    count_include_pad: bool = True, ceil_mode: bool = False, layout: str = "NCHW",
    name: str = "avg_pool2d",
) -> Tensor:  # fmt: skip
    """The mean of each window; padding counts as zeros if `count_include_pad`, else not at all."""
    op = "avg_pool2d"
    windows = _Windows(op, X, kernel, stride, padding, 1, ceil_mode, layout, 0)

    def body(*index: Value) -> Value:
        total = sum_over(widen(windows.read(index)), axis=windows.axes)
        mean = total / windows.count(index, count_include_pad)
        return cast(mean, X.dtype) if X.dtype.is_float else mean

    out: Tensor = compute(windows.shape, body, name=name, axes=_LABELS[layout])
    return out


def global_avg_pool2d(X: Tensor, layout: str = "NCHW", name: str = "global_avg_pool2d") -> Tensor:
    """The mean of each channel; H and W stay, with an extent of 1."""
    op = "global_avg_pool2d"
    _, spatial = layout_axes(op, layout, 2)
    need_tensor(op, "X", X, " ".join(layout))
    h, w = (X.shape_ints[d] for d in spatial)
    rh, rw = reduce_axis(h, name="rh"), reduce_axis(w, name="rw")

    def body(*index: Value) -> Value:
        at = list(index)
        at[spatial[0]], at[spatial[1]] = rh, rw
        mean = sum_over(widen(X[tuple(at)]), axis=(rh, rw)) / (h * w)
        return cast(mean, X.dtype) if X.dtype.is_float else mean

    shape: list[object] = list(X.shape_ints)
    shape[spatial[0]] = shape[spatial[1]] = 1
    out: Tensor = compute(shape, body, name=name, axes=_LABELS[layout])
    return out
