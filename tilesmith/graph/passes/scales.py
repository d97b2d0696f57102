"""Numbers by which the operands of a matrix product are multiplied are multiplied into its result,
where that costs nothing: exporters scale Q and K by the root of attention's scale each.
"""

from __future__ import annotations

import numpy as np

from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Graph, Node, Value
from tilesmith.graph.passes.affine import affine
from tilesmith.ops.elementwise import multiply
from tilesmith.ops.matmul import batch_matmul, matmul
from tilesmith.ops.transform import reshape, transpose


def scales_behind_products(graph: Graph) -> Graph:
    return edited(graph, _rule)


def _rule(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    if node.function not in (matmul, batch_matmul):
        return None
    made = e.graph.values[node.outputs[0]].dtype
    # The plain product of half precision might be beyond its range.
    if any(v.dtype is not made for v in inputs) or not made.is_float or made.bits < 32:
        return None
    number, plain = 1.0, []
    for v in inputs:
        found = _scaled(e, v)
        plain.append(v if found is None else found[1])
        number *= 1.0 if found is None else found[0]
    factor = np.asarray(number, made.numpy)
    if plain == [*inputs] or not np.isfinite(factor) or abs(factor) < np.finfo(made.numpy).tiny:
        return None
    y = e.add(node.function, *plain, **dict(node.settings))
    out: Value = e.add(multiply, y, e.constant(factor))
    return out


def _scaled(e: Editor, v: Value) -> tuple[float, Value] | None:
    """(number, x) where v is number * x and nobody else reads what lies in between."""
    moves, readers, value = list[Node](), list[Node](), v
    while (maker := e.maker(value)) is not None and e.is_inside(value, readers):
        inputs = tuple(e.builder.value(x) for x in maker.inputs)
        readers = [maker]
        if maker.function in (transpose, reshape):
            moves.append(maker)
            value = inputs[0]
            continue
        found = affine(e, maker, inputs)
        if found is None or found.scale.ndim or found.shifts or not found.scales:
            return None
        x = found.x
        for move in reversed(moves):
            if move.function is transpose:
                x = e.transpose(x, move.setting("axes"))
            else:
                x = e.reshape(x, e.builder.value(move.outputs[0]).shape)
        return float(found.scale), x
    return None
