"""Convolutions, also transposed ones: which operator of the DSL one is, and its bias."""

from __future__ import annotations

from typing import Any

from tilesmith.frontends.shared.building import Building
from tilesmith.graph.graph import Value
from tilesmith.ops.conv import conv1d, conv2d, conv3d, depthwise_conv2d
from tilesmith.ops.conv_transpose import conv1d_transpose, conv2d_transpose, conv3d_transpose
from tilesmith.ops.elementwise import bias_add
from tilesmith.ops.transform import pad

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
    if call.contents(w) is not None and max(dilation) == 1:
        w, padding = _whole_phases(call, w, stride, padding)
    return call.add(
        _TRANSPOSED[len(w.shape) - 2], x, w, stride=stride, padding=padding,
        output_padding=output_padding, dilation=dilation, groups=groups,
    )  # fmt: skip


def _whole_phases(
    call: Building, w: Value, stride: tuple[int, ...], padding: Pairs
) -> tuple[Value, Pairs]:
    """Weights with zeros around them, so that the stride divides their extent and the padding, and
    what they add to the output cut off again. Then the operator is a few small convolutions, not
    one over an input with zeros between its elements.
    """
    more = []
    for n, s, (before, _) in zip(w.shape[2:], stride, padding, strict=True):
        front = 0 if s == 2 else -before % s  # of a stride of 2 the operator takes any padding
        more.append((front, -(n + front) % s))
    if not any(map(any, more)):
        return w, padding
    wider = call.add(pad, w, widths=((0, 0), (0, 0), *more))
    cut = zip(padding, more, strict=True)
    return wider, tuple((p[0] + m[0], p[1] + m[1]) for p, m in cut)
