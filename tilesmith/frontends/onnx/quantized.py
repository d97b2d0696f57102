"""Quantised operators. A product of integers of 8 bits is one sum in int32, for which processors
have instructions; zero points become corrections behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from tilesmith.base.errors import GraphError
from tilesmith.frontends.onnx.call import Call, Importer, RunOnHost
from tilesmith.frontends.onnx.windows import Window, positive, sliding, spatial_rank
from tilesmith.frontends.shared.building import padded, shaped
from tilesmith.frontends.shared.products import product
from tilesmith.frontends.shared.windows import CONVOLUTIONS
from tilesmith.graph.graph import Value
from tilesmith.ops.elementwise import bias_add, divide, multiply, subtract
from tilesmith.ops.quantize import dequantize, quantization_range, quantize, requantize
from tilesmith.ops.reduce import reduce_sum


# to and from small integers
def _along(call: Call, x: Value, scale: Value, axis: int, block: int) -> dict[str, Any]:
    """The settings that say which elements of x a scale belongs to."""
    if scale.size == 1 and len(scale.shape) < 2:
        return {}
    axis = call.axis(axis, len(x.shape))
    if block < 0:
        call.refuse(f"block_size is {block}; it must be at least 0")
    return {"axis": axis, "block": block} if block else {"axis": axis}


def _named_dtype(call: Call, attribute: str, code: int) -> str | None:
    if not code:
        return None
    try:
        return call.element_type(code, attribute).name
    except GraphError as error:
        raise RunOnHost(str(error)) from None


def import_quantize(
    call: Call, x: Value, scale: Value, zero: Value | None = None, *, axis: int = 1,
    block_size: int = 0, output_dtype: int = 0, precision: int = 0, saturate: bool = True,
) -> Value:  # fmt: skip
    wanted = _named_dtype(call, "output_dtype", output_dtype)
    if zero is not None:
        if wanted not in (None, zero.dtype.name):
            call.refuse(f"output_dtype is {wanted}, but the zero point {zero}")
        wanted = zero.dtype.name
    settings = {"dtype": wanted or "uint8", **_along(call, x, scale, axis, block_size)}
    if computed := _named_dtype(call, "precision", precision):
        settings["precision"] = computed
    given = [] if zero is None else [zero]
    return call.add(quantize, x, scale, *given, **settings)


def import_dequantize(
    call: Call, x: Value, scale: Value, zero: Value | None = None, *, axis: int = 1,
    block_size: int = 0, output_dtype: int = 0,
) -> Value:  # fmt: skip
    if zero is not None and zero.dtype is not x.dtype:
        call.refuse(f"the zero point {zero} is not of the type of {x}")
    settings = _along(call, x, scale, axis, block_size)
    if wanted := _named_dtype(call, "output_dtype", output_dtype):
        settings["dtype"] = wanted
    given = [] if zero is None else [zero]
    return call.add(dequantize, x, scale, *given, **settings)


def import_dynamic_quantize(call: Call, x: Value) -> tuple[Value, ...]:
    scale, zero = call.add_several(quantization_range, x)
    return call.add(quantize, x, scale, zero), scale, zero


# products
def _is_zero(call: Call, x: Value | None) -> bool:
    held = None if x is None else call.contents(x)
    return x is None or (held is not None and not held.any())


def _centred(call: Call, x: Value, zero: Value | None) -> Value:
    """x less its zero point, which fits into 16 bits; x itself where that is 0."""
    if zero is None or _is_zero(call, zero):
        return x
    return call.add(subtract, call.cast(x, "int16"), call.cast(zero, "int16"))


def _lined_up(call: Call, x: Value, rank: int, axis: int) -> Value:
    """A vector of more than one element along an axis of a tensor of that rank, for broadcasting;
    one number as one of rank 0. What has more dimensions lines up by itself.
    """
    if x.size == 1:
        return shaped(call, x, ())
    if len(x.shape) != 1:
        return x
    return shaped(call, x, (x.size, *(1,) * (rank - 1 - axis % rank)))


def _need_small(call: Call, *values: Value) -> None:
    for x in values:
        if not x.dtype.is_int or x.dtype.bits != 8:
            call.refuse(f"{x} must be of int8 or uint8")


def _fitting(call: Call, b: Value, zb: Value | None) -> tuple[Value, Value | None]:
    """b and its zero point; constants of which the difference fits into int8, as that and None."""
    if zb is None or _is_zero(call, zb):
        return b, None
    held, zero = call.contents(b), call.contents(zb)
    if held is None or zero is None:
        return b, zb
    centred = held.astype(np.int16) - zero.astype(np.int16)
    fits = centred.min(initial=0) >= -128 and centred.max(initial=0) <= 127
    return (call.constant(centred.astype(np.int8)), None) if fits else (b, zb)


def import_matmul_integer(
    call: Call, a: Value, b: Value, za: Value | None = None, zb: Value | None = None
) -> Value:
    """(a - za) @ (b - zb) in int32; za may differ for each row, zb for each column."""
    _need_small(call, a, b)
    za = None if za is None else _lined_up(call, za, max(len(a.shape), 1), -2)
    zb = None if zb is None else _lined_up(call, zb, max(len(b.shape), 1), -1)
    b, zb = _fitting(call, b, zb)
    if len(b.shape) < 2 or len(a.shape) < 2:
        return product(call, _centred(call, a, za), _centred(call, b, zb))
    # sum (a - za)(b - zb) = sum a b - za sum (b - zb) - zb sum a
    y = product(call, a, b)
    if za is not None and not _is_zero(call, za):
        # of constant weights, the sums are constants
        wide = call.cast(_centred(call, b, zb), "int32")
        columns = call.add(reduce_sum, wide, axes=(-2,), keepdims=True)
        y = _less(call, y, call.add(multiply, columns, call.cast(za, "int32")))
    if zb is not None:
        rows = call.add(reduce_sum, call.cast(a, "int32"), axes=(-1,), keepdims=True)
        y = _less(call, y, call.add(multiply, rows, call.cast(zb, "int32")))
    return y


def _less(call: Call, y: Value, shift: Value) -> Value:
    """y - shift, for which each column may have one number."""
    if shift.size == y.shape[-1] == shift.shape[-1]:
        shift = call.add(multiply, shaped(call, shift, (shift.size,)), B=-1)
        return call.add(bias_add, y, shift, axis=-1)
    return call.add(subtract, y, shift)


def _requantized(
    call: Call, total: Value, scales: tuple[Value, ...], zero: Value | None, like: Value
) -> Value:
    """The sums in the type of the zero point; scales are those of both operands and the result."""
    factor = call.add(divide, call.add(multiply, scales[0], scales[1]), scales[2])
    factor = call.cast(factor, "float32")
    given = [] if zero is None else [zero]
    dtype = like.dtype.name if zero is None else zero.dtype.name
    return call.add(requantize, total, factor, *given, dtype=dtype)


def import_qlinear_matmul(
    call: Call, a: Value, a_scale: Value, za: Value | None, b: Value, b_scale: Value,
    zb: Value | None, y_scale: Value, zero: Value | None = None,
) -> Value:  # fmt: skip
    total = import_matmul_integer(call, a, b, za, zb)
    left = _lined_up(call, a_scale, max(len(a.shape), 1), -2)
    right = _lined_up(call, b_scale, max(len(b.shape), 1), -1)
    scale = _lined_up(call, y_scale, max(len(total.shape), 1), -2)
    if zero is not None:
        zero = _lined_up(call, zero, max(len(total.shape), 1), -2)
    return _requantized(call, total, (left, right, scale), zero, a)


# convolutions
def _convolved(
    call: Call, x: Value, w: Value, zx: Value | None, zw: Value | None, group: int, window: Window,
    w_scale: Value | None = None,
) -> Value:  # fmt: skip
    """The convolution of x - zx and w - zw in int32; zw is one number or one for each channel."""
    _need_small(call, x, w)
    count = spatial_rank(call, x)
    if len(w.shape) != count + 2:
        call.refuse(f"weights {w} must be of rank {count + 2}, as its input is")
    function = CONVOLUTIONS.get(count)
    if function is None:
        # The reference operator takes one scale and one zero point for all channels.
        if any(v is not None and v.size > 1 for v in (w_scale, zw)):
            call.refuse(
                f"its input has {count} spatial dimensions; with scales or zero points for each "
                "channel there may be 1 to 3"
            )
        raise RunOnHost(f"its input has {count} spatial dimensions; kernels have 1 to 3")
    slide = sliding(call, window, x.shape[2:], w.shape[2:])
    groups = positive(call, "group", group)
    slides: dict[str, Any] = {"stride": slide.stride, "dilation": slide.dilation}
    if zw is not None:
        w, zw = _fitting(call, w, _lined_up(call, zw, count + 2, 0))
    if zx is not None and zx.size != 1:
        call.refuse(f"the zero point {zx} of its input must be one number")
    zx = None if zx is None or _is_zero(call, zx) else shaped(call, zx, ())
    if zw is not None and groups != 1:  # sums of windows would differ from group to group
        w, zw = _centred(call, w, zw), None
    if zx is None:
        slides["padding"] = slide.padding
    elif any(map(any, slide.padding)):
        # What is padded is the zero point, so the same number per channel corrects every place.
        held = call.contents(zx)
        filled = zx if held is None else int(held)
        x = padded(call, x, ((0, 0), (0, 0), *slide.padding), value=filled)
    y = call.add(function, x, w, groups=groups, **slides)
    if zx is not None:
        wide = call.cast(_centred(call, w, zw), "int32")
        weights = call.add(reduce_sum, wide, axes=tuple(range(1, count + 2)), keepdims=False)
        shift = call.add(multiply, call.add(multiply, weights, call.cast(zx, "int32")), B=-1)
        y = call.add(bias_add, y, shift, axis=1)
    if zw is not None:
        flat = call.add(reduce_sum, call.cast(x, "int32"), axes=(1,), keepdims=True)
        ones = call.constant(np.ones((1, 1, *w.shape[2:]), np.int32))
        windows = call.add(function, flat, ones, **slides)
        each = shaped(call, zw, zw.shape[:1] + zw.shape[2:])  # without the channels of a filter
        y = call.add(subtract, y, call.add(multiply, windows, call.cast(each, "int32")))
    return y


def import_conv_integer(
    call: Call, x: Value, w: Value, zx: Value | None = None, zw: Value | None = None, *,
    group: int = 1, **window: Unpack[Window],
) -> Value:  # fmt: skip
    return _convolved(call, x, w, zx, zw, group, window)


def import_qlinear_conv(
    call: Call, x: Value, x_scale: Value, zx: Value | None, w: Value, w_scale: Value,
    zw: Value | None, y_scale: Value, zero: Value | None = None, bias: Value | None = None, *,
    group: int = 1, **window: Unpack[Window],
) -> Value:  # fmt: skip
    total = _convolved(call, x, w, zx, zw, group, window, w_scale)
    if bias is not None:
        total = call.add(bias_add, total, bias, axis=1)
    scales = tuple(_lined_up(call, s, len(x.shape), 1) for s in (x_scale, w_scale, y_scale))
    if zero is not None:
        zero = _lined_up(call, zero, len(x.shape), 1)
    return _requantized(call, total, scales, zero, x)


IMPORTERS: Mapping[str, Importer] = {
    "QuantizeLinear": import_quantize,
    "DequantizeLinear": import_dequantize,
    "DynamicQuantizeLinear": import_dynamic_quantize,
    "MatMulInteger": import_matmul_integer,
    "QLinearMatMul": import_qlinear_matmul,
    "ConvInteger": import_conv_integer,
    "QLinearConv": import_qlinear_conv,
}
