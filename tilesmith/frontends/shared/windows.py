"""Convolutions, also transposed ones: which operator of the DSL one is, and its bias."""

from __future__ import annotations

from typing import Any

from tilesmith.frontends.shared.building import Building
from tilesmith.graph.graph import Value
from tilesmith.ops.conv import conv1d, conv2d, conv3d, depthwise_conv2d
from tilesmith.ops.conv_transpose import conv1d_transpose, conv2d_transpose, conv3d_transpose
from tilesmith.ops.elementwise import bias_add

Pairs = tuple[tuple[int, int], ...]

# By the number of spatial dimensions.
CONVOLUTIONS = {1: conv1d, 2: conv2d, 3: conv3d}
_TRANSPOSED = {1: conv1d_transpose, 2: conv2d_transpose, 3: conv3d_transpose}


def with_bias(call: Building, y: Value, b: Value | None) -> Value:
    return y if b is None else call.add(bias_add, y, b, axis=1)


def convolved(
    call: Building, x: Value, w: Value, b: Value | None, groups: int, **settings: Any
) -> Value:
    """Of 1 to 3 spatial dimensions; settings as in ops.conv2d."""
    if len(w.shape) == 4 and groups > 1 and groups == x.shape[1]:
        return with_bias(call, call.add(depthwise_conv2d, x, w, **settings), b)
    function = CONVOLUTIONS[len(w.shape) - 2]
    return with_bias(call, call.add(function, x, w, groups=groups, **settings), b)


def convolved_back(
    call: Building, x: Value, w: Value, *, stride: tuple[int, ...], padding: Pairs,
    output_padding: tuple[int, ...], dilation: tuple[int, ...], groups: int,
) -> Value:  # fmt: skip
    """The transposed convolution of 1 to 3 spatial dimensions."""
    return call.add(
        _TRANSPOSED[len(w.shape) - 2], x, w, stride=stride, padding=padding,
        output_padding=output_padding, dilation=dilation, groups=groups,
    )  # fmt: skip
