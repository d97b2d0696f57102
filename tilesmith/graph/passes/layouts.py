"""Layouts: convolutions and pooling of a network become channels-last, and the transposes around
them meet and vanish. One layout then serves the whole network: on the processors measured,
channels-last with free tile sizes is within a few percent of the peak for 1x1 and 3x3 convolutions
alike.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.base.target import Target
from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Graph, Node, Operator, Value
from tilesmith.graph.kinds import parameters_of
from tilesmith.ops.conv import conv1d, conv2d, conv3d, depthwise_conv2d
from tilesmith.ops.conv_transpose import conv1d_transpose, conv2d_transpose, conv3d_transpose
from tilesmith.ops.matmul import matmul
from tilesmith.ops.transform import transpose

_LAST = {"NCW": "NWC", "NCHW": "NHWC", "NCDHW": "NDHWC"}
_MANY_PIXELS = 256  # of an image: a product of each one has tiles of them
_FIRST = {3: "NCW", 4: "NCHW", 5: "NCDHW"}
# The two dimensions of weights in front of the kernel's, as they stand behind it: OIHW becomes
# HWIO, and the IOHW of a transposed convolution HWIO as well.
_WEIGHTS: dict[Operator, tuple[int, int]] = {
    **dict.fromkeys((conv1d, conv2d, conv3d, depthwise_conv2d), (1, 0)),
    **dict.fromkeys((conv1d_transpose, conv2d_transpose, conv3d_transpose), (0, 1)),
}


@dataclass(frozen=True)
class ChannelsLast:
    """The pass. Operators that stand alone gain nothing by another order of channels: pooling stays
    as it is where there are no convolutions, and the only convolution if rows of its results, which
    vectors then run along, have at least `shortest` elements, or if its groups have fewer than
    `filters` filters, which vectors would run along otherwise. But what is given with channels
    last, as transposes around it say, is computed so.
    """

    shortest: int = 16
    filters: int = 0

    def __call__(self, graph: Graph) -> Graph:
        found = [n for n in graph.nodes if _has_layout(n)]
        convolutions = [n for n in found if n.function in _WEIGHTS]
        alone = not convolutions or (len(found) == 1 and self._stays(graph, found[0]))
        if alone and not any(map(_moves_channels, graph.nodes)):
            return graph
        return edited(graph, last_rule)

    def _stays(self, graph: Graph, node: Node) -> bool:
        """Types of fewer bits have instructions that sum along channels. A transposed convolution
        with strides computes each phase of its results by itself, in rows as long as its image's.
        """
        x, y = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
        if not (x.dtype.is_float and x.dtype.bits >= 32 and len(y.shape) in _FIRST):
            return False
        groups = node.setting("groups", 1)
        parted = isinstance(groups, int) and 1 < groups < x.shape[1]
        if parted and y.shape[1] // groups < self.filters:
            return True
        row = min(x.shape[-1], y.shape[-1]) if node.function in TRANSPOSED else y.shape[-1]
        return (prod(y.shape[2:]) if _is_pointwise(graph, node) else row) >= self.shortest


channels_last = ChannelsLast()


def _is_pointwise(graph: Graph, node: Node) -> bool:
    """Whether it treats all pixels alike, so that they are one row."""
    if node.function not in _CONVOLUTIONS:
        return False
    kernel = graph.values[node.inputs[1]].shape[2:]
    steps = is_everywhere(node.setting("stride", 1), 1)
    return steps and prod(kernel) == 1 and is_everywhere(node.setting("padding", 0), 0)


def _moves_channels(node: Node) -> bool:
    """Whether it transposes images between the two orders."""
    axes = tuple(node.setting("axes") or ()) if node.function is transpose else ()
    rank = len(axes)
    last, first = (0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))
    return rank in _FIRST and axes in (last, first)


def channels_last_for(target: Target) -> ChannelsLast:
    """What pays was measured on drawn convolutions. With masks, rows just fill their vectors."""
    lanes = target.lanes(32)
    return ChannelsLast(lanes if target.masks_vectors else max(16, 2 * lanes), 4 * lanes)


def last_rule(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    """The node with channels last and transposes around it, if it has a layout."""
    if not inputs or not _has_layout(node) or len(inputs[0].shape) not in _FIRST:
        return None
    rank = len(inputs[0].shape)
    layout = node.setting("layout") or _FIRST[rank]
    if layout not in _LAST:
        return None
    x = e.transpose(inputs[0], (0, *range(2, rank), 1))
    others = inputs[1:]
    if node.function in _WEIGHTS:
        order = (*range(2, rank), *_WEIGHTS[node.function])
        others = tuple(e.transpose(w, order) for w in others)
    settings = {**dict(node.settings), "layout": _LAST[layout]}
    y = e.add(node.function, x, *others, **settings)
    return e.transpose(y, (0, rank - 1, *range(1, rank - 1)))


def _has_layout(node: Node) -> bool:
    """Whether an operator can be asked for another layout."""
    return "layout" in parameters_of(node.function) and len(node.outputs) == 1


_CONVOLUTIONS = (conv1d, conv2d, conv3d)


def channels_last_halves(graph: Graph) -> Graph:
    """Channels-last, where the elements have 16 bits, or are integers of 8: as matrix instructions
    read them. A lone convolution that treats all of many pixels alike is a product as it is.
    """
    found = [n for n in graph.nodes if _has_layout(n)]
    if len(found) == 1 and not any(map(_moves_channels, graph.nodes)):
        x = graph.values[found[0].inputs[0]]
        is_half, pixels = x.dtype.is_float and x.dtype.bits == 16, prod(x.shape[2:])
        if is_half and pixels >= _MANY_PIXELS and _is_pointwise(graph, found[0]):
            return graph
    return edited(graph, partial(_last, 16))


def channels_last_singles(graph: Graph) -> Graph:
    """The same for float32, too, where matrix instructions take it as TF32."""
    return edited(graph, partial(_last, 32))


def _last(most: int, e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    d = inputs[0].dtype if inputs else None
    if d is None or d.bits > (most if d.is_float else 8):
        return None
    return last_rule(e, node, inputs)


TRANSPOSED = (conv1d_transpose, conv2d_transpose, conv3d_transpose)


def pointwise_products(graph: Graph) -> Graph:
    """Convolutions as products whose sums run over channels alone: those with kernels of one
    element, and neither strides nor padding; and transposed ones of 16 bits that multiply each
    pixel to a patch of their own, as large as their stride, of which the image then consists.
    """
    return edited(graph, _pointwise)


def _pointwise(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    if node.function in TRANSPOSED and len(inputs) == 2:
        return _patches(e, node, *inputs)
    return _product(e, node, inputs)


def _patches(e: Editor, node: Node, x: Value, w: Value) -> Value | None:
    layout, count = node.setting("layout") or "", len(x.shape) - 2
    if not layout.endswith("C") or not (x.dtype.is_float and x.dtype.bits == 16):
        return None
    kernel, (channels, filters) = w.shape[:count], w.shape[count:]
    stride = node.setting("stride", 1)
    strides = (stride,) * count if isinstance(stride, int) else tuple(stride)
    plain = all(
        is_everywhere(node.setting(name, number), number)
        for name, number in (("padding", 0), ("output_padding", 0), ("dilation", 1), ("groups", 1))
    )
    if not plain or strides != kernel:
        return None
    settings = {k: v for k, v in node.settings if k == "out_dtype"}
    by_channel = e.transpose(w, (count, *range(count), count + 1))
    weights = e.reshape(by_channel, (channels, prod(kernel) * filters))
    pixels = e.reshape(x, (prod(x.shape[:-1]), channels))
    y = e.add(matmul, pixels, weights, **settings)
    y = e.reshape(y, (*x.shape[:-1], *kernel, filters))
    places = (p for d in range(1, count + 1) for p in (d, count + d))
    y = e.transpose(y, (0, *places, 2 * count + 1))
    sizes = (n * k for n, k in zip(x.shape[1:-1], kernel, strict=True))
    return e.reshape(y, (x.shape[0], *sizes, filters))


def _product(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    if node.function not in _CONVOLUTIONS or len(inputs) != 2:
        return None
    x, w = inputs
    rank = len(x.shape)
    layout = node.setting("layout") or ""
    last = layout.endswith("C")
    kernel = w.shape[:-2] if last else w.shape[2:]
    if len(kernel) != rank - 2 or any(n != 1 for n in kernel) or node.setting("groups", 1) != 1:
        return None
    if not (
        is_everywhere(node.setting("stride", 1), 1) and is_everywhere(node.setting("padding", 0), 0)
    ):
        return None
    settings = {k: v for k, v in node.settings if k == "out_dtype"}
    if last:
        rows = e.reshape(x, (prod(x.shape[:-1]), x.shape[-1]))
        y = e.add(matmul, rows, e.reshape(w, w.shape[-2:]), **settings)
        return e.reshape(y, (*x.shape[:-1], w.shape[-1]))
    if x.shape[0] != 1:  # a batch of products, of pixels in one row
        if rank == 3:
            return None
        row = e.reshape(x, (*x.shape[:2], prod(x.shape[2:])))
        y = e.add(conv1d, row, e.reshape(w, (*w.shape[:2], 1)), **settings)
        return e.reshape(y, (*y.shape[:2], *x.shape[2:]))
    columns = e.reshape(x, (x.shape[1], prod(x.shape[2:])))
    y = e.add(matmul, e.reshape(w, w.shape[:2]), columns, **settings)
    return e.reshape(y, (1, w.shape[0], *x.shape[2:]))


def is_everywhere(given: Any, number: int) -> bool:
    """Whether a setting for all dimensions together or each of them is this number."""
    if isinstance(given, int):
        return given == number
    if isinstance(given, tuple):
        return all(is_everywhere(g, number) for g in given)
    return False
