"""Operators of windows that slide over images: convolutions and pooling, and the attributes that
say where a window slides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, TypedDict, Unpack

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.frontends.onnx.call import Call, Importer, RunOnHost
from tilesmith.frontends.shared.building import shaped
from tilesmith.frontends.shared.windows import (
    CONVOLUTIONS,
    Pairs,
    convolved,
    convolved_back,
    with_bias,
)
from tilesmith.graph.graph import Array, Operator, Value
from tilesmith.ops import pool
from tilesmith.ops.blocks import crop_or_pad
from tilesmith.ops.conv import causal_conv1d, causal_state
from tilesmith.ops.deform import deform_conv
from tilesmith.ops.elementwise import silu
from tilesmith.ops.scatter import scatter_elements
from tilesmith.ops.transform import pad

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


class Window(TypedDict, total=False):
    """The attributes that a node states; what they are by default depends on the rank."""

    auto_pad: str
    dilations: tuple[int, ...]
    kernel_shape: tuple[int, ...]
    pads: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sliding:
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: Pairs  # (before, after) per spatial dimension


def spatial_rank(call: Call, x: Value) -> int:
    """The number of spatial dimensions of an input (N, C, ...)."""
    count = len(x.shape) - 2
    if count < 1:
        call.refuse(f"input {x} must be (N, C, ...), with a spatial dimension")
    return count


def per_axis(
    call: Call, name: str, values: tuple[int, ...] | None, count: int, default: int = 1
) -> tuple[int, ...]:
    """An attribute with one whole number, of at least the default, per spatial dimension."""
    values = (default,) * count if values is None else values
    if len(values) != count or any(v < default for v in values):
        call.refuse(
            f"attribute {name!r} is {list(values)}; it must be {count} whole number"
            f"{'s' if count > 1 else ''}, each at least {default}"
        )
    return values


def pad_attribute(call: Call, window: Window, count: int) -> Pairs:
    pads = window.get("pads", (0,) * 2 * count)
    if len(pads) != 2 * count or any(v < 0 for v in pads):
        call.refuse(
            f"attribute 'pads' is {list(pads)}; it must be {2 * count} whole numbers of at least 0"
        )
    return tuple(zip(pads[:count], pads[count:], strict=True))


def sliding(call: Call, window: Window, sizes: Sequence[int], kernel: Sequence[int]) -> Sliding:
    """Strides, dilations and padding of a window of `kernel` over `sizes` elements."""
    count = len(sizes)
    stride = per_axis(call, "strides", window.get("strides"), count)
    dilation = per_axis(call, "dilations", window.get("dilations"), count)
    mode = call.choice("auto_pad", window.get("auto_pad", "NOTSET"), AUTO_PADS)
    if mode == "NOTSET":
        return Sliding(stride, dilation, pad_attribute(call, window, count))
    if mode == "VALID":
        return Sliding(stride, dilation, ((0, 0),) * count)
    padding = []
    for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True):
        total = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
        padding.append(halves(total, mode == "SAME_UPPER"))
    return Sliding(stride, dilation, tuple(padding))


def halves(total: int, upper: bool) -> tuple[int, int]:
    """Padding on both sides; of an odd number one more behind (upper) or in front."""
    small = total // 2
    return (small, total - small) if upper else (total - small, small)


# convolutions
def conv(
    call: Call, x: Value, w: Value, b: Value | None = None, *, group: int = 1,
    **window: Unpack[Window],
) -> Value:  # fmt: skip
    count = spatial_rank(call, x)
    kernel = kernel_of(call, w, window, count)
    groups = positive(call, "group", group)
    slide = sliding(call, window, x.shape[2:], kernel)
    if count not in CONVOLUTIONS:
        raise RunOnHost(f"its input has {count} spatial dimensions; kernels have 1 to 3")
    return convolved(
        call, x, w, b, groups, stride=slide.stride, padding=slide.padding, dilation=slide.dilation
    )


def positive(call: Call, name: str, value: int) -> int:
    if value < 1:
        call.refuse(f"attribute {name!r} is {value}; it must be at least 1")
    return value


def kernel_of(call: Call, w: Value, window: Window, count: int) -> tuple[int, ...]:
    """The spatial extents of the weights."""
    if len(w.shape) != count + 2:
        call.refuse(f"weights {w} must be of rank {count + 2}, as its input is")
    kernel = w.shape[2:]
    if window.get("kernel_shape", kernel) != kernel:
        call.refuse(
            f"attribute 'kernel_shape' is {list(window['kernel_shape'])}, but the weights are {w}"
        )
    return kernel


def conv_transpose(
    call: Call, x: Value, w: Value, b: Value | None = None, *, group: int = 1,
    output_padding: tuple[int, ...] | None = None, output_shape: tuple[int, ...] | None = None,
    **window: Unpack[Window],
) -> Value:  # fmt: skip
    count = spatial_rank(call, x)
    kernel, groups = kernel_of(call, w, window, count), positive(call, "group", group)
    stride = per_axis(call, "strides", window.get("strides"), count)
    dilation = per_axis(call, "dilations", window.get("dilations"), count)
    extra = per_axis(call, "output_padding", output_padding, count, 0)
    mode = call.choice("auto_pad", window.get("auto_pad", "NOTSET"), AUTO_PADS)
    wanted = (output_shape or ())[-count:]
    if wanted and (len(wanted) != count or min(wanted) < 1):
        call.refuse(
            f"attribute 'output_shape' is {list(wanted)}; it must be {count} entries of at least 1"
        )
    if not wanted and mode.startswith("SAME"):
        wanted = tuple(n * s for n, s in zip(x.shape[2:], stride, strict=True))
    padding = pad_attribute(call, window, count) if mode == "NOTSET" else ((0, 0),) * count
    behind = [0] * count  # zeros where an output is wanted that is larger than what is computed
    if wanted:
        pairs = []
        for k in range(count):
            natural = stride[k] * (x.shape[2 + k] - 1) + dilation[k] * (kernel[k] - 1) + 1
            total = natural + extra[k] - wanted[k]
            pairs.append(halves(max(total, 0), mode == "SAME_UPPER"))
            behind[k] = max(-total, 0)
        padding = tuple(pairs)
    # What an operator adds behind by itself, it computes; more than that is beyond every input.
    for k in range(count):
        if extra[k] + behind[k] < max(stride[k], dilation[k]):
            extra = (*extra[:k], extra[k] + behind[k], *extra[k + 1 :])
            behind[k] = 0
        elif extra[k] >= max(stride[k], dilation[k]):
            behind[k] += extra[k]
            extra = (*extra[:k], 0, *extra[k + 1 :])
    if count not in CONVOLUTIONS:
        # The reference operator is right for these only.
        if groups > 1 or output_shape is not None or "auto_pad" in window:
            call.refuse(
                f"its input has {count} spatial dimensions; with groups, output_shape or auto_pad "
                "there may be 1 to 3"
            )
        raise RunOnHost(f"its input has {count} spatial dimensions; kernels have 1 to 3")
    y = convolved_back(
        call, x, w, stride=stride, padding=padding, output_padding=extra, dilation=dilation,
        groups=groups,
    )  # fmt: skip
    if any(behind):
        y = call.add(pad, y, widths=((0, 0), (0, 0), *((0, n) for n in behind)))
    return with_bias(call, y, b)


def deform(
    call: Call, x: Value, w: Value, offset: Value, b: Value | None = None,
    mask: Value | None = None, *, group: int = 1, offset_group: int = 1, **window: Unpack[Window],
) -> Value:  # fmt: skip
    count = spatial_rank(call, x)
    kernel_of(call, w, window, count)
    y = call.add(
        deform_conv, x, w, offset, *(() if mask is None else (mask,)),
        stride=per_axis(call, "strides", window.get("strides"), count),
        padding=pad_attribute(call, window, count),
        dilation=per_axis(call, "dilations", window.get("dilations"), count),
        groups=positive(call, "group", group), offset_groups=offset_group,
    )  # fmt: skip
    return with_bias(call, y, b)


def causal(
    call: Call, x: Value, w: Value, b: Value | None = None, past: Value | None = None, *,
    activation: str = "none",
) -> tuple[Value, Value]:  # fmt: skip
    call.choice("activation", activation, ("none", "silu", "swish"))
    if len(w.shape) != 3:
        call.refuse(f"weights {w} must be (channels, 1, kernel)")
    before = () if past is None else (past,)
    y = with_bias(call, call.add(causal_conv1d, x, w, *before), b)
    if activation != "none":
        y = call.add(silu, y)
    return y, call.add(causal_state, x, *before, kept=w.shape[2] - 1)


# pooling
class Pooling(Window, total=False):
    ceil_mode: bool


def _pooling(call: Call, x: Value, window: Pooling) -> dict[str, Any]:
    """The settings of a pooling, by what the operators call them."""
    kernel = _pool_kernel(call, x, window)
    slide = sliding(call, window, x.shape[2:], kernel)
    return {
        "kernel": kernel, "stride": slide.stride, "padding": slide.padding,
        "dilation": slide.dilation, "ceil_mode": window.get("ceil_mode", False),
    }  # fmt: skip


def _pool_kernel(call: Call, x: Value, window: Window) -> tuple[int, ...]:
    if "kernel_shape" not in window:
        call.refuse("attribute 'kernel_shape' is missing; it must be a list of whole numbers")
    return per_axis(call, "kernel_shape", window["kernel_shape"], spatial_rank(call, x))


def max_pooling(
    call: Call, x: Value, *, storage_order: bool = False, **window: Unpack[Pooling]
) -> Any:
    settings = _pooling(call, x, window)
    if call.wants(1):
        return call.add_several(
            pool.max_pool_with_indices, x, column_major=storage_order, **settings
        )
    return call.add(pool.max_pool2d if len(x.shape) == 4 else pool.max_pool, x, **settings)


def average_pooling(
    call: Call, x: Value, *, count_include_pad: bool = False, **window: Unpack[Pooling]
) -> Any:
    function = pool.avg_pool2d if len(x.shape) == 4 else pool.avg_pool
    settings = _pooling(call, x, window)
    return call.add(function, x, count_include_pad=count_include_pad, **settings)


def lp_pooling(call: Call, x: Value, *, p: int = 2, **window: Unpack[Pooling]) -> Any:
    return call.add(pool.lp_pool, x, p=p, **_pooling(call, x, window))


def global_pooling(function: Operator, of_images: Operator | None = None) -> Importer:
    def read(call: Call, x: Value) -> Any:
        count = spatial_rank(call, x)
        return call.add(of_images if of_images and count == 2 else function, x)

    return read


def global_lp(call: Call, x: Value, *, p: int = 2) -> Any:
    spatial_rank(call, x)
    return call.add(pool.global_lp_pool, x, p=p)


def max_unpool(
    call: Call, x: Value, ids: Value, output_shape: list[int] | None = None,
    **window: Unpack[Window],
) -> Value:  # fmt: skip
    """Elements go where the indices of a MaxPool say, in an image of the shape that it had."""
    count = spatial_rank(call, x)
    if ids.shape != x.shape or not ids.dtype.is_int:
        call.refuse(f"{ids} must be the indices of {x}, integers of the same shape")
    kernel = _pool_kernel(call, x, window)
    stride = per_axis(call, "strides", window.get("strides"), count)
    shape = list(x.shape)
    for k, sides in enumerate(pad_attribute(call, window, count)):
        shape[2 + k] = (x.shape[2 + k] - 1) * stride[k] + kernel[k] - sum(sides)
    wanted = tuple(shape if output_shape is None else output_shape)
    if len(wanted) != len(shape) or min((*shape, *wanted)) < 0:
        call.refuse(f"{x} does not unpool to {shape} in an output of {list(wanted)}")
    size = prod(shape)
    call.check_room("its result", size)
    if not x.size:
        raise RunOnHost("it has no elements", partial(_unpooled, shape=tuple(shape), out=wanted))
    row = call.constant(np.zeros(size, x.dtype.numpy))
    updates = shaped(call, x, (x.size,))
    y = call.add(scatter_elements, row, shaped(call, ids, (x.size,)), updates, reduction="last")
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
    "CausalConvWithState": causal,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "DeformConv": deform,
    "GlobalAveragePool": global_pooling(pool.global_avg_pool, pool.global_avg_pool2d),
    "GlobalLpPool": global_lp,
    "GlobalMaxPool": global_pooling(pool.global_max_pool),
    "LpPool": lp_pooling,
    "MaxPool": max_pooling,
    "MaxUnpool": max_unpool,
}
