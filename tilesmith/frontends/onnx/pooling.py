"""Pooling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilesmith.frontends.onnx.call import Call, Importer, RunOnHost
from tilesmith.frontends.onnx.windows import per_axis, sliding, spatial_rank
from tilesmith.graph.graph import Value
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
    raise RunOnHost("it writes each element to a place that is known at run time only")


IMPORTERS: Mapping[str, Importer] = {
    "AveragePool": average_pooling,
    "GlobalAveragePool": global_average,
    "GlobalLpPool": global_lp,
    "GlobalMaxPool": global_max,
    "LpPool": lp_pooling,
    "MaxPool": max_pooling,
    "MaxUnpool": max_unpool,
}
