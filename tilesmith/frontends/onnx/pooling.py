"""Pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tilesmith.frontends.onnx.call import Call, Importer, RunOnHost
from tilesmith.frontends.onnx.indexing import MAX_COMPARISONS
from tilesmith.frontends.onnx.windows import pad_attribute, per_axis, sliding, spatial_rank
from tilesmith.frontends.shared.views import shaped
from tilesmith.graph.graph import Array, Value
from tilesmith.ops.blocks import crop_or_pad
from tilesmith.ops.pool import (
    avg_pool,
    avg_pool2d,
    global_avg_pool,
    global_avg_pool2d,
    global_lp_pool,
    global_max_pool,
    lp_pool,
    max_pool,
    max_pool2d,
    max_pool_with_indices,
)
from tilesmith.ops.scatter import last_row, put_rows


def _windows(call: Call) -> dict[str, Any]:
    """The settings of a pooling, by what the operators call them."""
    x, count = call.value(0), spatial_rank(call)
    call.required("kernel_shape")
    kernel = per_axis(call, "kernel_shape", count, 1, 1)
    slide = sliding(call, x.shape[2:], kernel)
    return {
        "kernel": kernel, "stride": slide.stride, "padding": slide.padding,
        "dilation": slide.dilation, "ceil_mode": bool(call.attribute("ceil_mode", 0)),
    }  # fmt: skip


def max_pooling(call: Call) -> Any:
    x, settings = call.value(0), _windows(call)
    if call.wants(1):
        turned = bool(call.attribute("storage_order", 0))
        return call.add(max_pool_with_indices, x, column_major=turned, **settings)
    return call.add(max_pool2d if len(x.shape) == 4 else max_pool, x, **settings)


def average_pooling(call: Call) -> Value:
    x, settings = call.value(0), _windows(call)
    include = bool(call.attribute("count_include_pad", 0))
    function = avg_pool2d if len(x.shape) == 4 else avg_pool
    y: Value = call.add(function, x, count_include_pad=include, **settings)
    return y


def lp_pooling(call: Call) -> Value:
    y: Value = call.add(lp_pool, call.value(0), p=call.attribute("p", 2), **_windows(call))
    return y


def global_average(call: Call) -> Value:
    x = call.value(0)
    spatial_rank(call)
    y: Value = call.add(global_avg_pool2d if len(x.shape) == 4 else global_avg_pool, x)
    return y


def global_max(call: Call) -> Value:
    spatial_rank(call)
    y: Value = call.add(global_max_pool, call.value(0))
    return y


def global_lp(call: Call) -> Value:
    spatial_rank(call)
    y: Value = call.add(global_lp_pool, call.value(0), p=call.attribute("p", 2))
    return y


def max_unpool(call: Call) -> Value:
    """Elements go where the indices of a MaxPool say, in an image of the shape that it had."""
    x, ids, count = call.value(0), call.value(1), spatial_rank(call)
    if ids.shape != x.shape or not ids.dtype.is_int:
        call.refuse(f"{ids} must be the indices of {x}, integers of the same shape")
    call.required("kernel_shape")
    kernel = per_axis(call, "kernel_shape", count, 1, 1)
    stride = per_axis(call, "strides", count, 1, 1)
    shape = list(x.shape)
    for k, pad in enumerate(pad_attribute(call, count)):
        shape[2 + k] = (x.shape[2 + k] - 1) * stride[k] + kernel[k] - sum(pad)
    wanted = tuple(call.ints(2)) if call.has(2) else tuple(shape)
    if len(wanted) != len(shape) or min((*shape, *wanted)) < 0:
        call.refuse(f"{x} does not unpool to {shape} in an output of {list(wanted)}")
    size = prod(shape)
    call.check_room("its result", size)
    if size * x.size > MAX_COMPARISONS or not x.size:
        raise RunOnHost("it has many elements", partial(_unpooled, shape=tuple(shape), out=wanted))
    row: Value = call.constant(np.zeros(size, x.dtype.numpy))
    places = call.add(last_row, shaped(call, ids, (x.size, 1)), row)
    y: Value = call.add(put_rows, row, shaped(call, x, (x.size,)), places)
    y = shaped(call, y, tuple(shape))
    if wanted != tuple(shape):
        y = call.add(crop_or_pad, y, starts=(0,) * len(shape), shape=wanted)
    return y


def _unpooled(
    arrays: Sequence[Array | None], shape: tuple[int, ...], out: tuple[int, ...]
) -> list[Array]:
    x, ids = np.asarray(arrays[0]), np.asarray(arrays[1]).reshape(-1)
    row = np.zeros(prod(shape), x.dtype)
    fits = (ids >= -row.size) & (ids < row.size)
    row[ids[fits]] = x.reshape(-1)[fits]
    y = np.zeros(out, x.dtype)
    both = tuple(slice(0, min(n, m)) for n, m in zip(shape, out, strict=True))
    y[both] = row.reshape(shape)[both]
    return [y]


IMPORTERS: Mapping[str, Importer] = {
    "AveragePool": average_pooling,
    "GlobalAveragePool": global_average,
    "GlobalLpPool": global_lp,
    "GlobalMaxPool": global_max,
    "LpPool": lp_pooling,
    "MaxPool": max_pooling,
    "MaxUnpool": max_unpool,
}
