"""Merged dimensions: softmax and normalisations as operators of few dimensions, where neighbours
are treated alike. Rows and columns are then as long as they can be: a softmax over the first axis
of (4, 46, 38, 12, 8) has columns of 8 elements, but of 167,808 once the others are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod
from typing import Any

from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Graph, Node, Value
from tilesmith.graph.kinds import work_of
from tilesmith.ops.group_norm import group_norm
from tilesmith.ops.norm import layer_norm, log_softmax, softmax
from tilesmith.ops.transform import transpose


def merge_dimensions(graph: Graph) -> Graph:
    return edited(graph, _rule)


def _rule(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    function = node.function
    if function not in (softmax, log_softmax, layer_norm, group_norm):
        return None
    x = inputs[0]
    if not prod(x.shape) or not _stands_alone(e, node):
        return None
    settings = dict(node.settings)
    if function is group_norm:
        if len(x.shape) < 4:
            return None
        shape = (*x.shape[:2], prod(x.shape[2:]))
    else:
        over = _axes(settings.get("axis", -1), len(x.shape))
        if len(inputs) > 1 or over == [len(x.shape) - 1]:
            return None  # rows of the last dimension are long already; weights have shapes, too
        shape, axes = _merged(x.shape, over)
        settings["axis"] = axes[0] if function is not layer_norm else axes
    if len(shape) == len(x.shape):
        return None
    y = e.add(function, e.reshape(x, shape), *inputs[1:], **settings)
    return e.reshape(y, x.shape)


def _stands_alone(e: Editor, node: Node) -> bool:
    """Whether its input is neither transposed, so that neighbours are none in memory, nor computed
    element by element, which belongs into the same kernel.
    """
    made = e.graph.producer.get(node.inputs[0])
    if made is None:
        return True
    return made.function is not transpose and not work_of(e.graph, made).pointwise


def _axes(given: Any, rank: int) -> list[int]:
    wanted = given if isinstance(given, Sequence) else (given,)
    return sorted(int(a) % rank for a in wanted)


def _merged(shape: Sequence[int], over: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape with neighbours merged that are both in `over` or both not, and the places of the
    former in it. Dimensions of one element are left out.
    """
    long = [d for d, n in enumerate(shape) if n != 1]
    parts = [(inside, prod(shape[d] for d in dims))
             for inside, dims in groupby(long, lambda d: d in over)]  # fmt: skip
    if not any(inside for inside, _ in parts):
        parts.append((True, 1))
    axes = tuple(k for k, (inside, _) in enumerate(parts) if inside)
    return tuple(n for _, n in parts), axes
