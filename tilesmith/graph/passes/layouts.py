"""Layouts: convolutions and pooling become channels-last, and the transposes around them meet and
vanish. One layout then serves the whole network: on the processors measured, channels-last with
free tile sizes is within a few percent of the peak for 1x1 and 3x3 convolutions alike.
"""

from __future__ import annotations

from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Graph, Node, Value
from tilesmith.ops.conv_transpose import conv1d_transpose, conv2d_transpose, conv3d_transpose

_LAST = {"NCW": "NWC", "NCHW": "NHWC", "NCDHW": "NDHWC"}
_TRANSPOSED = (conv1d_transpose, conv2d_transpose, conv3d_transpose)
_FIRST = {3: "NCW", 4: "NCHW", 5: "NCDHW"}


def channels_last(graph: Graph) -> Graph:
    return edited(graph, _rule)


def _rule(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    if not inputs or not _has_layout(node) or len(inputs[0].shape) not in _FIRST:
        return None
    rank = len(inputs[0].shape)
    layout = node.setting("layout", _FIRST[rank])
    if layout not in _LAST:
        return None
    spatial = tuple(range(2, rank))
    x = e.transpose(inputs[0], (0, *spatial, 1))
    # What is of another rank than the image is a table, such as the positions of a resize.
    weights = [_weights(e, node, w) if len(w.shape) == rank else w for w in inputs[1:]]
    settings = {**dict(node.settings), "layout": _LAST[layout]}
    y: Value = e.add(node.function, x, *weights, **settings)
    return e.transpose(y, (0, rank - 1, *range(1, rank - 1)))


def _has_layout(node: Node) -> bool:
    """Whether an operator can be asked for another layout, by its parameters."""
    code = node.function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return "layout" in names and len(node.outputs) == 1


def _weights(e: Editor, node: Node, w: Value) -> Value:
    """OIHW becomes HWIO. Those of a transposed convolution are IOHW, and become HWIO as well."""
    rank = len(w.shape)
    last = (0, 1) if node.function in _TRANSPOSED else (1, 0)
    return e.transpose(w, (*range(2, rank), *last))
