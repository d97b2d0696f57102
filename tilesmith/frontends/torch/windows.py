"""Operators of windows that slide over images: convolutions and pooling, also to a given size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tilesmith.frontends.shared.building import shaped
from tilesmith.frontends.shared.windows import CONVOLUTIONS, convolved, convolved_back, with_bias
from tilesmith.frontends.torch.call import Call, Importer
from tilesmith.graph.graph import Array, Value
from tilesmith.ops import pool as p
from tilesmith.ops.blocks import col2im as col2im_op
from tilesmith.ops.elementwise import multiply
from tilesmith.ops.integer import remainder
from tilesmith.ops.reduce import reduce_max
from tilesmith.ops.resize import interpolate
from tilesmith.ops.transform import take

Sizes = Sequence[int]


# convolutions
def per_axis(values: Sizes, count: int) -> tuple[int, ...]:
    """One number stands for all dimensions."""
    return tuple(values) * count if len(values) == 1 else tuple(values)


def convolution(
    call: Call, x: Value, w: Value, bias: Value | None, stride: Sizes, padding: Sizes,
    dilation: Sizes, transposed: bool, output_padding: Sizes, groups: int,
) -> Value:  # fmt: skip
    count = len(w.shape) - 2
    if count not in CONVOLUTIONS or not x.size:
        call.leave(f"its input is {x}")
    x = shaped(call, x, (1,) * (len(w.shape) - len(x.shape)) + x.shape)
    slides: dict[str, Any] = {
        "stride": per_axis(stride, count),
        "padding": tuple((p, p) for p in per_axis(padding, count)),
        "dilation": per_axis(dilation, count),
    }
    if transposed:
        extra = per_axis(output_padding, count)
        y = convolved_back(call, x, w, output_padding=extra, groups=groups, **slides)
        y = with_bias(call, y, bias)
    else:
        y = convolved(call, x, w, bias, groups, **slides)
    return shaped(call, y, call.shape)


def col2im(
    call: Call, x: Value, output_size: Sizes, kernel_size: Sizes, dilation: Sizes, padding: Sizes,
    stride: Sizes,
) -> Value:  # fmt: skip
    columns = shaped(call, x, (1,) * (3 - len(x.shape)) + x.shape)
    y = call.add(
        col2im_op, columns, image=tuple(output_size), block=tuple(kernel_size),
        stride=tuple(stride), padding=tuple((p, p) for p in padding), dilation=tuple(dilation),
    )  # fmt: skip
    return shaped(call, y, call.shape)


# pooling
def _images(call: Call, x: Value, count: int) -> Value:
    """(N, C, ...), also where there is no batch."""
    if not x.size:
        call.leave("its input is empty")
    return shaped(call, x, (1,) * (count + 2 - len(x.shape)) + x.shape)


def _windows(
    count: int, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool
) -> dict[str, Any]:
    size = per_axis(kernel, count)
    return {
        "kernel": size, "stride": per_axis(stride, count) if stride else size,
        "padding": tuple((n, n) for n in per_axis(padding, count)),
        "dilation": per_axis(dilation, count), "ceil_mode": ceil_mode,
    }  # fmt: skip


def max_pool(count: int) -> Importer:
    """The maxima, and where in its image each lies."""

    def read(
        call: Call, x: Value, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = (0,),
        dilation: Sizes = (1,), ceil_mode: bool = False,
    ) -> tuple[Value, Value | None]:  # fmt: skip
        settings = _windows(count, kernel_size, stride, padding, dilation, ceil_mode)
        images = _images(call, x, count)
        if not call.wants(1):
            y = call.add(p.max_pool2d if count == 2 else p.max_pool, images, **settings)
            return shaped(call, y, call.shape), None
        y, places = call.add_several(p.max_pool_with_indices, images, **settings)
        places = call.add(remainder, places, B=prod(images.shape[2:]))
        return shaped(call, y, call.shape), shaped(call, places, call.shape)

    return read


def avg_pool(count: int) -> Importer:
    def read(
        call: Call, x: Value, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = (0,),
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value:  # fmt: skip
        settings = _windows(count, kernel_size, stride, padding, (1,), ceil_mode)
        if divisor_override is not None and ceil_mode:
            call.leave("it has a divisor of its own and windows that are cut off")
        include = count_include_pad or divisor_override is not None
        function = p.avg_pool2d if count == 2 else p.avg_pool
        y = call.add(function, _images(call, x, count), count_include_pad=include, **settings)
        if divisor_override is not None:
            y = call.add(multiply, y, B=prod(settings["kernel"]) / divisor_override)
        return shaped(call, y, call.shape)

    return read


def _spans(old: int, new: int) -> list[tuple[int, int]]:
    """Which elements along an axis each output reads."""
    return [(k * old // new, -(-(k + 1) * old // new)) for k in range(new)]


def _table(old: int, new: int) -> tuple[Array, Array]:
    """The same as positions and weights; shorter spans repeat their last element with weight 0."""
    spans = _spans(old, new)
    widest = max(b - a for a, b in spans)
    ids = np.array([[min(a + k, b - 1) for k in range(widest)] for a, b in spans], np.int64)
    shares = np.array([[1 / (b - a) if a + k < b else 0 for k in range(widest)] for a, b in spans])
    return ids, shares


def adaptive_average(count: int) -> Importer:
    def read(call: Call, x: Value, output_size: Sizes) -> Value:
        images = _images(call, x, count)
        sizes = images.shape[2:]
        y = images
        if all(old % new == 0 for old, new in zip(sizes, output_size, strict=True)):
            kernel = tuple(old // new for old, new in zip(sizes, output_size, strict=True))
            y = call.add(p.avg_pool2d if count == 2 else p.avg_pool, images, kernel=kernel)
            return shaped(call, y, call.shape)
        for d, (old, new) in enumerate(zip(sizes, output_size, strict=True)):
            if old != new:
                ids, shares = _table(old, new)
                tables = (call.constant(ids), call.constant(shares.astype(x.dtype.numpy)))
                y = call.add(interpolate, y, *tables, axis=d + 2)
        return shaped(call, y, call.shape)

    return read


def adaptive_max(count: int) -> Importer:
    def read(call: Call, x: Value, output_size: Sizes) -> tuple[Value, None]:
        if call.wants(1):
            call.leave("it returns where the maxima are")
        y = _images(call, x, count)
        for d, (old, new) in enumerate(zip(y.shape[2:], output_size, strict=True)):
            if old != new:
                ids = call.constant(_table(old, new)[0])
                y = call.add(reduce_max, call.add(take, y, ids, axis=d + 2), axes=(d + 3,))
        return shaped(call, y, call.shape), None

    return read


IMPORTERS: Mapping[str, Importer] = {
    "aten._adaptive_avg_pool2d.default": adaptive_average(2),
    "aten._adaptive_avg_pool3d.default": adaptive_average(3),
    "aten.adaptive_avg_pool1d.default": adaptive_average(1),
    "aten.adaptive_max_pool2d.default": adaptive_max(2),
    "aten.adaptive_max_pool3d.default": adaptive_max(3),
    **{f"aten.avg_pool{n}d.default": avg_pool(n) for n in (1, 2, 3)},
    "aten.col2im.default": col2im,
    "aten.convolution.default": convolution,
    "aten.max_pool2d_with_indices.default": max_pool(2),
    "aten.max_pool3d_with_indices.default": max_pool(3),
}
