"""Products of one matrix with several weights of the same shape become one batch of products: the
queries, keys and values of attention. On a GPU one launch then fills more multiprocessors, and
takes hardly longer than each of the three did.

Each result is a part of the batch, which lies in one piece, so that reading it costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Array, Graph, Node, Value
from tilesmith.graph.kinds import Kind, work_of
from tilesmith.ops.elementwise import add
from tilesmith.ops.matmul import batch_matmul, matmul

_MOST = 8  # products of a batch


@dataclass(frozen=True)
class _Product:
    """`end` is the node that makes its result: the product, or the addition of a bias."""

    node: Node
    end: Node
    weight: str
    bias: str | None


def shared_products(graph: Graph) -> Graph:
    families: dict[str, tuple[_Product, ...]] = {}  # by the name of each member's last node
    for family in _families(graph):
        families |= {p.end.name: family for p in family}
    if not families:
        return graph

    def rule(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
        family = families.get(node.name)
        if family is None:
            return None
        y = _batch(e, family)
        at = [p.end.name for p in family].index(node.name)
        _, rows, columns = y.shape
        one = e.slice(y, (at, 0, 0), (at + 1, rows, columns), (1, 1, 1))
        return e.reshape(one, (rows, columns))

    return edited(graph, rule)


def _batch(e: Editor, family: tuple[_Product, ...]) -> Value:
    """All results of a family, stacked. The editor makes equal nodes once."""
    names = tuple(p.weight for p in family)
    weights = _stacked(e, names, tuple(e.graph.constants[n] for n in names))
    x = e.new[family[0].node.inputs[0]]
    y = e.add(batch_matmul, x, weights, **dict(family[0].node.settings))
    biases = tuple(p.bias for p in family if p.bias is not None)
    if not biases:
        return y
    each = tuple(e.graph.constants[b].reshape(1, -1) for b in biases)
    return e.add(add, y, _stacked(e, biases, each))


def _stacked(e: Editor, names: tuple[str, ...], arrays: tuple[Array, ...]) -> Value:
    held = e.stacked.get(names)
    if held is None:
        held = e.stacked[names] = e.constant(np.stack(arrays), names[0])
    return held


def _families(graph: Graph) -> Iterator[tuple[_Product, ...]]:
    found: dict[object, list[_Product]] = {}
    for node in graph.nodes:
        product = _product(graph, node)
        if product is None:
            continue
        w = graph.constants[product.weight]
        key = (node.inputs[0], w.shape, w.dtype, node.settings, product.bias is None)
        found.setdefault(key, []).append(product)
    for every in found.values():
        for k in range(0, len(every), _MOST):
            if len(every[k : k + _MOST]) > 1:
                yield tuple(every[k : k + _MOST])


def _product(graph: Graph, node: Node) -> _Product | None:
    """A product with a constant whose result, behind a bias if any, is not computed with at once:
    that would no longer be part of the same kernel.
    """
    if node.function is not matmul or node.setting("transpose_a") or node.setting("transpose_b"):
        return None
    x, w = node.inputs
    if w not in graph.constants or len(graph.values[x].shape) != 2 or x in graph.constants:
        return None
    end, bias = node, None
    readers = graph.consumers.get(node.outputs[0], ())
    if len(readers) == 1 and readers[0].function is add and node.outputs[0] not in graph.returned:
        other = [v for v in readers[0].inputs if v != node.outputs[0]]
        columns = graph.values[w].shape[-1]
        if len(other) == 1 and other[0] in graph.constants:
            if graph.constants[other[0]].shape not in ((columns,), (1, columns)):
                return None
            end, bias = readers[0], other[0]
    if end.outputs[0] in graph.returned or _is_computed_with(graph, end.outputs[0]):
        return None
    return _Product(node, end, w, bias)


def _is_computed_with(graph: Graph, value: str) -> bool:
    """Whether element-wise nodes read it, as it is or moved."""
    for n in graph.consumers.get(value, ()):
        kind = work_of(graph, n).kind
        if kind is Kind.ELEMENTWISE:
            return True
        if kind in (Kind.ALIAS, Kind.VIEW) and _is_computed_with(graph, n.outputs[0]):
            return True
    return False
