"""Whether two graphs of one model compute the same results, though one may spell out views that the
other leaves out: equal expressions get equal numbers, and what changes nothing gets that of what it
reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from math import prod
from typing import Any

from tilesmith.graph.graph import Array, Graph, Node
from tilesmith.ops.transform import reshape, transpose
from tilesmith.ops.views import slice_

_MOST_BYTES = 1 << 20  # of constants that are compared by their contents


class Numbering:
    """A number for each expression: of values of different graphs, those with equal numbers hold
    the same elements in the same order. Numbers do not tell shapes apart.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def results(self, graph: Graph) -> list[tuple[str, tuple[int, ...], int]]:
        """Name, shape and number of each output."""
        found = {x: self._of("input", x) for x in graph.inputs}
        found |= {x: self._constant(a) for x, a in graph.constants.items()}
        for node in graph.nodes:
            number = self._same(graph, node, found)
            for k, x in enumerate(node.outputs):
                found[x] = self._node(graph, node, found, k) if number is None else number
        return [(name, graph.values[x].shape, found[x]) for name, x in graph.outputs]

    def _of(self, *key: Hashable) -> int:
        return self._known.setdefault(key, len(self._known))

    def _constant(self, a: Array) -> int:
        """Of weights, which graphs share, by where they lie."""
        if a.nbytes > _MOST_BYTES and a.flags.c_contiguous:
            return self._of("array", a.__array_interface__["data"][0], a.size, a.dtype.str)
        return self._of("contents", hashlib.sha256(a.tobytes()).digest(), a.size, a.dtype.str)

    def _same(self, graph: Graph, node: Node, found: dict[str, int]) -> int | None:
        """The number of its input, if it has the same elements in the same order."""
        if node.function not in (reshape, transpose, slice_):
            return None
        x, y = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
        if prod(x.shape) != prod(y.shape):
            return None
        same = node.function is reshape
        if node.function is transpose:
            axes = node.setting("axes") or range(len(x.shape))[::-1]
            moved = [a % len(x.shape) for a in axes if x.shape[a] != 1]
            same = moved == sorted(moved)
        if node.function is slice_:
            steps, starts = node.setting("steps") or (), node.setting("starts")
            same = {None, 1} >= {*steps} and {None, 0} >= {*starts}
        return found[node.inputs[0]] if same else None

    def _node(self, graph: Graph, node: Node, found: dict[str, int], k: int) -> int:
        inputs = tuple((found[x], graph.values[x].shape) for x in node.inputs)
        return self._of(node.function, node.settings, inputs, k)


def have_same_results(a: Graph, b: Graph) -> bool:
    """Whether that can be told from their nodes. Inputs are the same by their names."""
    numbering = Numbering()
    if a.checks != b.checks or _types(a) != _types(b):
        return False
    return numbering.results(a) == numbering.results(b)


def _types(graph: Graph) -> list[Any]:
    return [(x, graph.values[x].shape, graph.values[x].dtype) for x in graph.inputs]
