"""Pooling of regions of interest: images and boxes, which are data, in, an image per box out."""

from __future__ import annotations

from tilesmith.base.dtype import INT64, DType
from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.functions import absolute, ceil, floor, maximum, minimum
from tilesmith.expr.reductions import amax
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Value, cast, where
from tilesmith.ops.arguments import (
    PerDim,
    accumulator,
    fixed,
    need_equal,
    need_tensor,
    operator,
    per_dim,
)


@operator
def roi_align(
    X: Tensor, rois: Tensor, batch: Tensor, size: PerDim = 1, samples: int = 2,
    scale: float = 1.0, mode: str = "avg", half_pixel: bool = True, name: str = "roi_align",
) -> Tensor:  # fmt: skip
    """X (N, C, H, W) in boxes (R, 4) of x1, y1, x2, y2, each in the image that batch (R,) names:
    (R, C, *size). Each output is the mean or maximum of samples x samples places of its bin.
    """
    if mode not in ("avg", "max"):
        raise ExpressionError(f"mode is {mode!r}; it must be 'avg' or 'max'")
    sizes = _checked(X, rois, batch, size)
    (samples,) = per_dim("samples", samples, 1)
    height, width = (fixed(f"extent {'HW'[k]} of X", X.shape_ints[2 + k]) for k in range(2))
    acc = accumulator(X.dtype)

    # Where the samples lie is the same for all channels, so it is a stage of its own.
    def places(first: int, bins: int) -> Tensor:
        def body(r: Value, p: Value, s: Value) -> Value:
            start, part = _bin(rois, r, first, bins, scale, half_pixel, acc)
            return start + cast(p, acc) * part + (cast(s, acc) + 0.5) * part / samples

        return compute((rois.shape_ints[0], bins, samples), body, name=f"{name}_at")

    ys, xs = places(1, sizes[0]), places(0, sizes[1])
    sy, sx = reduce_axis(samples, name="sy"), reduce_axis(samples, name="sx")

    def body(r: Value, c: Value, h: Value, w: Value) -> Value:
        y, x = ys[r, h, sy], xs[r, w, sx]
        outside = (y < -1) | (y > height) | (x < -1) | (x > width)
        y0, y1, ty = _between(y, height)
        x0, x1, tx = _between(x, width)
        image = cast(batch[r], INT64)
        corners = [
            cast(X[image, c, i, j], acc) * (wi * wj)
            for i, wi in ((y0, 1 - ty), (y1, ty))
            for j, wj in ((x0, 1 - tx), (x1, tx))
        ]
        value = corners[0]
        for corner in corners[1:]:
            value = value + corner if mode == "avg" else maximum(value, corner)
        value = where(outside, 0, value)
        if mode == "max":
            return cast(amax(value, axis=(sy, sx)), X.dtype)
        return cast(sum_over(value, axis=(sy, sx)) / (samples * samples), X.dtype)

    return compute((rois.shape_ints[0], X.shape_ints[1], *sizes), body, name=name)


@operator
def roi_align_adaptive(
    X: Tensor, rois: Tensor, batch: Tensor, size: PerDim = 1, scale: float = 1.0,
    half_pixel: bool = True, name: str = "roi_align_adaptive",
) -> Tensor:  # fmt: skip
    """roi_align by means, with as many samples in a bin as it has elements.

    How many those are is data. But a bilinear mean is a product of one along H and one along W, and
    samples lie at least half an element apart, so that few of them meet a row. So each bin has a
    weight for every row and for every column.
    """
    sizes = _checked(X, rois, batch, size)
    height, width = (fixed(f"extent {'HW'[k]} of X", X.shape_ints[2 + k]) for k in range(2))
    acc = accumulator(X.dtype)
    near = 6  # samples that may meet one row: those within one element on both sides of it

    def weights(first: int, bins: int, extent: int) -> Tensor:
        t = reduce_axis(near, name="t")

        def body(r: Value, p: Value, i: Value) -> Value:
            start, part = _bin(rois, r, first, bins, scale, half_pixel, acc)
            count = ceil(part)
            step = part / maximum(count, 1)
            origin = start + cast(p, acc) * part
            # The first sample that may meet row i, and those behind it.
            begin = maximum(floor((cast(i, acc) - 1 - origin) / maximum(step, 1e-6) - 0.5), 0)
            s = begin + cast(t, acc)
            x = origin + (s + 0.5) * step
            held = minimum(maximum(x, 0), extent - 1)
            weight = maximum(1 - absolute(held - cast(i, acc)), 0) / maximum(count, 1)
            counts = (s < count) & (x >= -1) & (x <= extent)
            return sum_over(where(counts, weight, 0), axis=t)

        return compute((rois.shape_ints[0], bins, extent), body, name=f"{name}_weights")

    rows, columns = weights(1, sizes[0], height), weights(0, sizes[1], width)
    rw, rh = reduce_axis(width, name="rw"), reduce_axis(height, name="rh")

    def across(r: Value, c: Value, y: Value, w: Value) -> Value:
        value = cast(X[cast(batch[r], INT64), c, y, rw], acc)
        return sum_over(value * columns[r, w, rw], axis=rw)

    boxes, channels = rois.shape_ints[0], X.shape_ints[1]
    parts = compute((boxes, channels, height, sizes[1]), across, name=f"{name}_rows")

    def body(r: Value, c: Value, h: Value, w: Value) -> Value:
        return cast(sum_over(parts[r, c, rh, w] * rows[r, h, rh], axis=rh), X.dtype)

    return compute((boxes, channels, *sizes), body, name=name)


def _checked(X: Tensor, rois: Tensor, batch: Tensor, size: PerDim) -> tuple[int, ...]:
    need_tensor("X", X, "N C H W")
    need_tensor("rois", rois, "R 4")
    need_tensor("batch", batch, "R")
    need_equal("the extent of batch", batch.shape_ints[0], rois.shape_ints[0], "rois has")
    if fixed("dimension 1 of rois", rois.shape_ints[1]) != 4:
        raise ExpressionError(f"rois has {rois.shape[1]} columns; it must have 4")
    return per_dim("size", size, 2)


def _bin(
    rois: Tensor, r: Value, first: int, bins: int, scale: float, half_pixel: bool, acc: DType
) -> tuple[Value, Value]:
    """Where box r begins along a dimension, and how much of it a bin has."""
    offset = 0.5 if half_pixel else 0.0
    start = cast(rois[r, first], acc) * scale - offset
    length = cast(rois[r, first + 2], acc) * scale - offset - start
    if not half_pixel:  # a box without an extent counts as one element
        length = maximum(length, 1)
    return start, length / bins


def _between(x: Value, n: int) -> tuple[Value, Value, Value]:
    """The two elements beside a place that is held inside, and how far it is from the first."""
    held = minimum(maximum(x, 0), n - 1)
    low = floor(held)
    first = cast(low, INT64)
    return first, minimum(first + 1, n - 1), held - low


@operator
def max_roi_pool(
    X: Tensor, rois: Tensor, size: PerDim, scale: float = 1.0, name: str = "max_roi_pool"
) -> Tensor:
    """The maxima of X (N, C, H, W) in the bins of boxes (R, 5) of image, x1, y1, x2, y2:
    (R, C, *size); 0 for a bin that holds nothing.
    """
    need_tensor("X", X, "N C H W")
    need_tensor("rois", rois, "R 5")
    if fixed("dimension 1 of rois", rois.shape_ints[1]) != 5:
        raise ExpressionError(f"rois has {rois.shape[1]} columns; it must have 5")
    sizes = per_dim("size", size, 2)
    boxes, lowest = rois.shape_ints[0], X.dtype.lowest()
    acc = accumulator(X.dtype)

    def edge(first: int, bins: int, extent: int, upper: int) -> Tensor:
        """Where each bin begins, or ends."""

        def body(r: Value, p: Value) -> Value:
            start, end = (_nearest(cast(rois[r, first + k], acc) * scale) for k in (0, 2))
            part = maximum(end - start + 1, 1) / bins
            at = ceil((cast(p, acc) + 1) * part) if upper else floor(cast(p, acc) * part)
            return cast(minimum(maximum(at + start, 0), extent), INT64)

        return compute((boxes, bins), body, name=f"{name}_{'end' if upper else 'start'}")

    height, width = (fixed(f"extent {'HW'[k]} of X", X.shape_ints[2 + k]) for k in range(2))
    top, bottom = (edge(2, sizes[0], height, side) for side in (0, 1))
    left, right = (edge(1, sizes[1], width, side) for side in (0, 1))
    rw, rh = reduce_axis(width, name="rw"), reduce_axis(height, name="rh")

    # First over the columns of a bin, for all rows; then over its rows.
    def across(r: Value, c: Value, y: Value, w: Value) -> Value:
        inside = (rw >= left[r, w]) & (rw < right[r, w])
        return amax(where(inside, X[cast(rois[r, 0], INT64), c, y, rw], lowest), axis=rw)

    shape = (boxes, X.shape_ints[1], height, sizes[1])
    rows = compute(shape, across, name=f"{name}_rows")

    def body(r: Value, c: Value, h: Value, w: Value) -> Value:
        inside = (rh >= top[r, h]) & (rh < bottom[r, h])
        found = amax(where(inside, rows[r, c, rh, w], lowest), axis=rh)
        return where((bottom[r, h] > top[r, h]) & (right[r, w] > left[r, w]), found, 0)

    return compute((boxes, X.shape_ints[1], *sizes), body, name=name)


def _nearest(x: Value) -> Value:
    """The nearest whole number, halves away from 0."""
    return where(x >= 0, floor(x + 0.5), ceil(x - 0.5))
