"""Scaled channels: a convolution with one group per channel and a kernel of one element sums
nothing. It multiplies every channel by a number, which as element-wise work needs no layout of its
own, joins what stands around it and runs along rows of any length.
"""

from __future__ import annotations

from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Graph, Node, Value
from tilesmith.graph.passes.layouts import is_everywhere
from tilesmith.ops.conv import conv1d, conv2d, conv3d, depthwise_conv2d
from tilesmith.ops.elementwise import multiply

_CONVOLUTIONS = (conv1d, conv2d, conv3d, depthwise_conv2d)


def scaled_channels(graph: Graph) -> Graph:
    """Such convolutions, with neither strides nor padding, as products."""
    return edited(graph, _rule)


def _rule(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    if node.function not in _CONVOLUTIONS or len(inputs) != 2:
        return None
    x, w = inputs
    rank = len(x.shape)
    last = (node.setting("layout") or "").endswith("C")
    channel = rank - 1 if last else 1
    if len(w.shape) != rank or w.shape != _one_per_channel(x.shape[channel], rank, last):
        return None
    groups = node.setting("groups", 1)
    if node.function is not depthwise_conv2d and groups != x.shape[channel]:
        return None
    # Sums of integers and of short floats may be given more bits than their terms have.
    kept = node.setting("out_dtype") in (None, x.dtype, str(x.dtype))
    if not kept or not x.dtype.is_float or w.dtype != x.dtype:
        return None
    # With strides, the tiles of a convolution are the faster way to leave elements out.
    stride, padding = node.setting("stride", 1), node.setting("padding", 0)
    if not (is_everywhere(stride, 1) and is_everywhere(padding, 0)):
        return None
    scale = (w.shape[-1],) if last else (w.shape[0], *(1,) * (rank - 2))
    return e.add(multiply, x, e.reshape(w, scale))


def _one_per_channel(channels: int, rank: int, last: bool) -> tuple[int, ...]:
    ones = (1,) * (rank - 1)
    return (*ones, channels) if last else (channels, *ones)
