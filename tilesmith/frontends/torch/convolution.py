"""Convolutions, also transposed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilesmith.frontends.shared.building import shaped
from tilesmith.frontends.shared.products import whole_phases
from tilesmith.frontends.torch.call import Call, Importer
from tilesmith.graph.graph import Value
from tilesmith.ops import conv as c
from tilesmith.ops import conv_transpose as ct
from tilesmith.ops.blocks import col2im as col2im_op
from tilesmith.ops.elementwise import bias_add

Sizes = Sequence[int]
_PLAIN = {1: c.conv1d, 2: c.conv2d, 3: c.conv3d}
_TRANSPOSED = {1: ct.conv1d_transpose, 2: ct.conv2d_transpose, 3: ct.conv3d_transpose}


def per_axis(values: Sizes, count: int) -> tuple[int, ...]:
    """One number stands for all dimensions."""
    return tuple(values) * count if len(values) == 1 else tuple(values)


def convolution(
    call: Call, x: Value, w: Value, bias: Value | None, stride: Sizes, padding: Sizes,
    dilation: Sizes, transposed: bool, output_padding: Sizes, groups: int,
) -> Value:  # fmt: skip
    count = len(w.shape) - 2
    if count not in _PLAIN or not x.size:
        call.leave(f"its input is {x}")
    x = shaped(call, x, (1,) * (len(w.shape) - len(x.shape)) + x.shape)
    strides, dilations = per_axis(stride, count), per_axis(dilation, count)
    pads = tuple((p, p) for p in per_axis(padding, count))
    y: Value
    if transposed:
        extra = per_axis(output_padding, count)
        if call.contents(w) is not None and max(dilations) == 1:
            w, pads = whole_phases(call, w, strides, pads)
        y = call.add(
            _TRANSPOSED[count], x, w, stride=strides, padding=pads, output_padding=extra,
            dilation=dilations, groups=groups,
        )  # fmt: skip
    elif count == 2 and groups > 1 and groups == x.shape[1]:
        y = call.add(
            c.depthwise_conv2d, x, w, stride=strides, padding=pads, dilation=dilations
        )  # fmt: skip
    else:
        y = call.add(
            _PLAIN[count], x, w, groups=groups, stride=strides, padding=pads, dilation=dilations
        )
    if bias is not None:
        y = call.add(bias_add, y, bias, axis=1)
    return shaped(call, y, call.shape)


def col2im(
    call: Call, x: Value, output_size: Sizes, kernel_size: Sizes, dilation: Sizes, padding: Sizes,
    stride: Sizes,
) -> Value:  # fmt: skip
    columns = shaped(call, x, (1,) * (3 - len(x.shape)) + x.shape)
    y: Value = call.add(
        col2im_op, columns, image=tuple(output_size), block=tuple(kernel_size),
        stride=tuple(stride), padding=tuple((p, p) for p in padding), dilation=tuple(dilation),
    )  # fmt: skip
    return shaped(call, y, call.shape)


IMPORTERS: Mapping[str, Importer] = {
    "aten.col2im.default": col2im,
    "aten.convolution.default": convolution,
}
