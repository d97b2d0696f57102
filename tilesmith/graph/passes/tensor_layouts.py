"""Layouts for matrix instructions: convolutions in half precision become channels-last, so that
sums run along contiguous memory, as the instructions of a GPU read it. A convolution with a kernel
of one element becomes the matrix product that it is.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Graph, Node, Value
from tilesmith.graph.passes.layouts import last_rule
from tilesmith.ops.conv import conv1d, conv2d, conv3d
from tilesmith.ops.matmul import matmul

_CONVOLUTIONS = (conv1d, conv2d, conv3d)


def channels_last_halves(graph: Graph) -> Graph:
    """Channels-last, where the elements have 16 bits."""
    return edited(graph, _last)


def _last(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    if not inputs or not (inputs[0].dtype.is_float and inputs[0].dtype.bits == 16):
        return None
    return last_rule(e, node, inputs)


def pointwise_products(graph: Graph) -> Graph:
    """Convolutions with kernels of one element, and neither strides nor padding, as products."""
    return edited(graph, _product)


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
    if not (_all(node.setting("stride", 1), 1) and _all(node.setting("padding", 0), 0)):
        return None
    settings = {k: v for k, v in node.settings if k == "out_dtype"}
    if last:
        rows = e.reshape(x, (prod(x.shape[:-1]), x.shape[-1]))
        y: Value = e.add(matmul, rows, e.reshape(w, w.shape[-2:]), **settings)
        return e.reshape(y, (*x.shape[:-1], w.shape[-1]))
    if x.shape[0] != 1:
        return None  # a batch of products; the convolution says that as well
    columns = e.reshape(x, (x.shape[1], prod(x.shape[2:])))
    y = e.add(matmul, e.reshape(w, w.shape[:2]), columns, **settings)
    return e.reshape(y, (1, w.shape[0], *x.shape[2:]))


def _all(given: Any, number: int) -> bool:
    """Whether a setting for all dimensions together or each of them is this number."""
    if isinstance(given, int):
        return given == number
    if isinstance(given, tuple):
        return all(_all(g, number) for g in given)
    return False
