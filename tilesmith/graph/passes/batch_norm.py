"""Batch norm, and any product with constants per channel, becomes part of the weights of the
convolution or matrix product in front of it, and its shift part of the bias. Where there is none,
batch norm becomes one multiplication and one addition.
"""

from __future__ import annotations

from math import prod

import numpy as np

from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Array, Graph, Node, Value
from tilesmith.graph.passes.affine import Affine, affine
from tilesmith.graph.passes.exactness import feeds_a_jump, is_power_of_two
from tilesmith.ops.conv import conv1d, conv2d, conv3d, depthwise_conv2d
from tilesmith.ops.conv_transpose import conv1d_transpose, conv2d_transpose, conv3d_transpose
from tilesmith.ops.elementwise import add, cast, multiply
from tilesmith.ops.matmul import batch_matmul, dense, matmul
from tilesmith.ops.norm import batch_norm, scale_shift
from tilesmith.ops.transform import reshape, transpose

_CONVOLUTIONS = (conv1d, conv2d, conv3d, depthwise_conv2d)
_TRANSPOSED = (conv1d_transpose, conv2d_transpose, conv3d_transpose)
_PRODUCTS = (matmul, batch_matmul, dense)


def fold_batch_norm(graph: Graph) -> Graph:
    return edited(graph, _rule)


def _rule(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    found = affine(e, node, inputs)
    if found is None:
        return None
    folded = _into_weights(e, node, found)
    if folded is None and node.function in (batch_norm, scale_shift):
        return _applied(e, found)
    return folded


def _into_weights(e: Editor, node: Node, last: Affine) -> Value | None:
    """Goes up from the node through what only it reads, to a product with constant weights. That
    changes roundings, unless it is one multiplication by powers of two.
    """
    total, axis, count = last, last.axis, 1
    value, moves, readers = last.x, list[Node](), list[Node]()
    while (maker := e.maker(value)) is not None:
        if not e.is_inside(value, readers):
            return None
        inputs = tuple(e.builder.value(x) for x in maker.inputs)
        readers = [maker]
        if maker.function in (transpose, reshape):
            before = _axis_before(maker, inputs[0].shape, value.shape, axis)
            if axis is not None and before is None:
                return None
            axis, value = before, inputs[0]
            moves.append(maker)
        elif (inner := affine(e, maker, inputs)) is not None:
            joint = total.after(inner, axis)
            if joint is None:
                return None
            total, axis, value, count = joint, joint.axis, inner.x, count + 1
        else:
            if count == 1 and not total.scales:  # a bias where it belongs
                return None
            exact = count == 1 and not total.shifts and is_power_of_two(total.scale).all()
            if not exact and feeds_a_jump(e.graph, node):
                return None
            return _folded(e, maker, inputs, Affine(value, total.scale, total.shift, axis), moves)
    return None


def _axis_before(
    move: Node, old: tuple[int, ...], new: tuple[int, ...], axis: int | None
) -> int | None:
    """Which dimension of what is moved a dimension of the result is."""
    if axis is None:
        return None
    if move.function is transpose:
        found: int = move.setting("axes")[axis] % len(old)
        return found
    for d, n in enumerate(old):
        if n == new[axis] and prod(old[:d]) == prod(new[:axis]) and prod(old) != 0:
            return d
    return None


def _folded(
    e: Editor, maker: Node, inputs: tuple[Value, ...], a: Affine, moves: list[Node]
) -> Value | None:
    weights = _weights(e, maker, inputs, a)
    if weights is None:
        return None
    y = e.add(maker.function, inputs[0], weights, instead_of=maker, **dict(maker.settings))
    if a.shifts:
        y = e.add(add, y, _constant(e, a.shift, a.axis, y))
    for move in reversed(moves):
        if move.function is transpose:
            y = e.transpose(y, move.setting("axes"))
        else:
            y = e.reshape(y, e.builder.value(move.outputs[0]).shape)
    return y


def _weights(e: Editor, maker: Node, inputs: tuple[Value, ...], a: Affine) -> Value | None:
    """The weights times the scale, if they are a constant that only this node reads."""
    if maker.function not in (*_CONVOLUTIONS, *_TRANSPOSED, *_PRODUCTS) or len(inputs) != 2:
        return None
    old, dtype = e.array(inputs[1]), inputs[1].dtype
    made = e.builder.value(maker.outputs[0])
    if old is None or not dtype.is_float or made.dtype is not dtype:
        return None
    if not a.scales:
        return inputs[1]
    if not e.is_inside(inputs[1], [maker]):
        return None
    factor = _factor(maker, old.shape, a, len(made.shape))
    if factor is None:
        return None
    wide = old.astype(np.float64) * factor
    with np.errstate(over="ignore"):
        new = wide.astype(dtype.numpy)
    return e.constant(new, inputs[1].name) if _fits(wide, new) else None


def _fits(wide: Array, new: Array) -> bool:
    """Whether float64 weights are within the range of another type: none became infinite, and none
    lost more bits than normal numbers do.
    """
    known = np.isfinite(wide)
    if not known.any():
        return True
    with np.errstate(invalid="ignore"):
        lost = np.abs(new.astype(np.float64) - wide)[known].max()
    return bool(lost <= 2 * dtype_named(new.dtype).roundoff * np.abs(wide[known]).max())


def _factor(maker: Node, shape: tuple[int, ...], a: Affine, rank: int) -> Array | None:
    """The scale in a shape that is broadcast to the weights'; None if its axis is not that of the
    weights' results.
    """
    if a.scale.ndim == 0:
        return a.scale
    if maker.function in _PRODUCTS:
        turned = maker.function is dense or maker.setting("transpose_b", False)
        place = len(shape) - (2 if turned else 1)
        return _vector(a.scale, place, len(shape)) if a.axis == rank - 1 else None
    first = str(maker.setting("layout") or "NC").startswith("NC")
    if a.axis != (1 if first else rank - 1):
        return None
    if maker.function in _CONVOLUTIONS:
        return _vector(a.scale, 0 if first else rank - 1, rank)
    groups = maker.setting("groups", 1)
    inputs = shape[0 if first else rank - 2]
    both = np.repeat(a.scale.reshape(groups, -1), inputs // groups, axis=0)  # (I, O / groups)
    return both.reshape(*both.shape, *(1,) * (rank - 2)) if first else both


def _vector(v: Array, axis: int, rank: int) -> Array:
    return v.reshape(-1, *(1,) * (rank - 1 - axis))


def _applied(e: Editor, a: Affine) -> Value:
    """x * scale + shift, in float32 at least."""
    narrow = a.x.dtype
    x = e.add(cast, a.x, dtype="float32") if narrow.bits < 32 else a.x
    if a.scales:
        x = e.add(multiply, x, _constant(e, a.scale, a.axis, x))
    if a.shifts:
        x = e.add(add, x, _constant(e, a.shift, a.axis, x))
    return x if x.dtype is narrow else e.add(cast, x, dtype=narrow.name)


def _constant(e: Editor, v: Array, axis: int | None, like: Value) -> Value:
    shaped = v if v.ndim == 0 or axis is None else _vector(v, axis, len(like.shape))
    return e.constant(shaped.astype(like.dtype.numpy))
