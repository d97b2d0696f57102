"""Operators whose results are constants once shapes are known."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilesmith.frontends.onnx.call import Call, Importer, RunOnHost
from tilesmith.frontends.onnx.convert import dtype_of
from tilesmith.frontends.shared.views import expanded
from tilesmith.graph.graph import Value


def shape_of(call: Call) -> Value:
    shape = call.value(0).shape
    end = call.attribute("end", len(shape))
    return call.constant(np.array(shape[call.attribute("start", 0) : end], np.int64))


def size(call: Call) -> Value:
    return call.constant(np.array(call.value(0).size, np.int64))


def constant(call: Call) -> Value:
    for name, dtype in _CONSTANTS.items():
        if call.has_attribute(name):
            return call.constant(np.asarray(call.required(name), dtype))
    if call.has_attribute("value_string") or call.has_attribute("value_strings"):
        raise RunOnHost("it is a string")
    return call.refuse("it has no value")


_CONSTANTS = {
    "value": None, "value_int": np.int64, "value_ints": np.int64, "value_float": np.float32,
    "value_floats": np.float32,
}  # fmt: skip


def constant_of_shape(call: Call) -> Value:
    shape = call.ints(0) if call.value(0).size else []
    if min(shape, default=0) < 0:
        call.refuse(f"the shape {shape} has a negative extent")
    value = np.asarray(call.attribute("value", np.zeros(1, np.float32)))
    if value.size != 1:
        call.refuse(f"its value has shape {list(value.shape)}; it must have one element")
    return expanded(call, call.constant(value.reshape(())), tuple(shape))


def eye_like(call: Call) -> Value:
    x = call.value(0)
    if len(x.shape) != 2:
        call.refuse(f"{x} is not a matrix")
    code = call.attribute("dtype", 0)
    dtype = dtype_of(code, str(call.node)).numpy if code else x.dtype.numpy
    return call.constant(np.eye(*x.shape, k=call.attribute("k", 0), dtype=dtype))


def range_(call: Call) -> Value:
    start, limit, delta = (call.array(k) for k in range(3))
    for a in (start, limit, delta):
        if a.size != 1 or a.dtype != start.dtype:
            call.refuse("start, limit and delta must be numbers of one type")
    first, past, step = (a.reshape(()).item() for a in (start, limit, delta))
    if step == 0:
        call.refuse("delta is 0")
    if start.dtype.kind in "iu":
        return call.constant(np.arange(first, past, step, dtype=start.dtype))
    count = max(0, int(np.ceil((past - first) / step)))
    return call.constant((first + np.arange(count) * step).astype(start.dtype))


IMPORTERS: Mapping[str, Importer] = {
    "Constant": constant,
    "ConstantOfShape": constant_of_shape,
    "EyeLike": eye_like,
    "Range": range_,
    "Shape": shape_of,
    "Size": size,
}
