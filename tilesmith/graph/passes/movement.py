"""Movement: moves transposes and reshapes behind the element-wise nodes that read them, so that
they cancel each other, or end at an input or output of a kernel, where they cost nothing. Behind
sums and the like, a transpose has only their results to move.
"""

from __future__ import annotations

from math import prod

from tilesmith.base.errors import ExpressionError
from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Graph, Node, Value
from tilesmith.graph.kinds import work_of
from tilesmith.ops.reduce import (
    reduce_l1,
    reduce_l2,
    reduce_log_sum,
    reduce_log_sum_exp,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
    reduce_sum_square,
)
from tilesmith.ops.transform import concatenate, reshape, transpose

Shape = tuple[int, ...]
_REDUCTIONS = frozenset({
    reduce_sum, reduce_prod, reduce_max, reduce_min, reduce_mean, reduce_sum_square, reduce_l1,
    reduce_l2, reduce_log_sum, reduce_log_sum_exp,
})  # fmt: skip


def sink_movement(graph: Graph) -> Graph:
    return edited(graph, _rule)


def _rule(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    if node.function is concatenate:
        return _concatenate(e, node, inputs)
    if node.function in _REDUCTIONS:
        return _reduced(e, node, inputs[0])
    if len(node.outputs) != 1 or not work_of(e.graph, node).pointwise:
        return None
    shape = e.graph.values[node.outputs[0]].shape
    full = [v for v in inputs if v.shape == shape and e.array(v) is None]
    try:
        return _past_transpose(e, node, inputs, full, shape) or _past_reshape(
            e, node, inputs, full, shape
        )
    except ExpressionError:  # the operator asks for a rank of its own
        return None


def _past_transpose(
    e: Editor, node: Node, inputs: tuple[Value, ...], full: list[Value], shape: Shape
) -> Value | None:
    """All operands of full shape are transposed alike: f(x', y') = f(x, y)'."""
    orders = {_order(e, v) for v in full}
    if len(orders) != 1 or (axes := orders.pop()) is None:
        return None
    back = tuple(axes.index(d) for d in range(len(axes)))
    moved = []
    for v in inputs:
        if v.shape == shape:
            moved.append(e.transpose(v, back))
        elif prod(v.shape) == 1:
            moved.append(v)
        else:
            wide = e.reshape(v, (1,) * (len(shape) - len(v.shape)) + v.shape)
            moved.append(_trimmed(e, e.transpose(wide, back)))
    inner = tuple(shape[d] for d in back)
    full = [v for v in moved if v.shape == inner and e.array(v) is None]
    y = _past_reshape(e, node, tuple(moved), full, inner)
    if y is None:
        y = e.add(node.function, *moved, **dict(node.settings))
    return e.transpose(y, axes)


def _order(e: Editor, v: Value) -> tuple[int, ...] | None:
    found = e.source(v, transpose)
    return None if found is None else found[1].setting("axes")


def _trimmed(e: Editor, v: Value) -> Value:
    """Without leading dimensions of extent 1, which broadcasting does not need."""
    shape = v.shape
    while shape and shape[0] == 1:
        shape = shape[1:]
    return e.reshape(v, shape)


def _past_reshape(
    e: Editor, node: Node, inputs: tuple[Value, ...], full: list[Value], shape: Shape
) -> Value | None:
    """f(reshape(x), y) = reshape(f(x, y')), where y can be seen in the shape of x."""
    for v in full:
        if (found := e.source(v, reshape)) is None:
            continue
        inner = found[0].shape
        moved = [_seen_as(e, x, shape, inner) for x in inputs]
        if any(x is None for x in moved):
            continue
        y = e.add(node.function, *(x for x in moved if x is not None), **dict(node.settings))
        return e.reshape(y, shape)
    return None


def _seen_as(e: Editor, x: Value, shape: Shape, inner: Shape) -> Value | None:
    if x.shape == shape:
        return e.reshape(x, inner)
    if prod(x.shape) == 1:
        return e.reshape(x, (1,) * min(1, len(inner)))
    wide = (1,) * (len(shape) - len(x.shape)) + x.shape
    # Dimensions that are the same at the end of both shapes, of which x may be made.
    same = 0
    while same < min(len(shape), len(inner)) and shape[-1 - same] == inner[-1 - same]:
        same += 1
    if all(n == 1 for n in wide[: len(wide) - same]):
        return e.reshape(x, wide[len(wide) - same :])
    extents: list[int] = []
    for outside, inside in _regrouped(shape, inner):
        own = [wide[d] for d in outside]
        if all(n == 1 for n in own):
            extents += [1] * len(inside)
        elif own == [shape[d] for d in outside]:
            extents += [inner[d] for d in inside]
        else:
            return None
    return e.reshape(x, tuple(extents))


def _regrouped(a: Shape, b: Shape) -> list[tuple[list[int], list[int]]]:
    """The dimensions of two shapes of the same elements, in groups as small as possible that hold
    the same elements on both sides.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        left, right = [i] if i < len(a) else [], [j] if j < len(b) else []
        i, j = i + len(left), j + len(right)
        while (p := prod(a[d] for d in left)) != (q := prod(b[d] for d in right)):
            if p < q:
                left.append(i)
                i += 1
            else:
                right.append(j)
                j += 1
        groups.append((left, right))
    return groups


def _concatenate(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    orders = {_order(e, v) for v in inputs}
    if len(orders) != 1 or (axes := orders.pop()) is None:
        return None
    back = tuple(axes.index(d) for d in range(len(axes)))
    axis = axes[node.setting("axis", 0) % len(axes)]
    y = e.add(node.function, *(e.transpose(v, back) for v in inputs), axis=axis)
    return e.transpose(y, axes)


def _reduced(e: Editor, node: Node, x: Value) -> Value | None:
    """sum(x') over some dimensions is the sum of x over the same ones, transposed."""
    found = e.source(x, transpose)
    if found is None or (order := found[1].setting("axes")) is None:
        return None
    rank, axes = len(order), node.setting("axes")
    given = range(rank) if axes is None else (axes,) if isinstance(axes, int) else axes
    gone = {a % rank for a in given}
    settings = {**dict(node.settings), "axes": tuple(sorted(order[a] for a in gone))}
    y = e.add(node.function, found[0], **settings)
    if node.setting("keepdims", False):
        return e.transpose(y, order)
    left = [order[d] for d in range(rank) if d not in gone]
    return e.transpose(y, tuple(sorted(left).index(d) for d in left))
