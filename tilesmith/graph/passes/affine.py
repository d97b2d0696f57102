"""Affine: a node that multiplies by constants and adds constants, each a number or a vector along
one axis, as `x * scale + shift`.
"""

from __future__ import annotations

from math import prod

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Array, Graph, Node, Value
from tilesmith.ops.elementwise import add, bias_add, divide, multiply, subtract
from tilesmith.ops.matmul import dense
from tilesmith.ops.norm import batch_norm, scale_shift

_ZERO, _ONE = np.zeros(()), np.ones(())


@dataclass(frozen=True, slots=True)
class Affine:
    """`scale` and `shift` are in float64, of rank 0, or of rank 1 along `axis` of x."""

    x: Value
    scale: Array
    shift: Array
    axis: int | None  # None where both are numbers

    @property
    def scales(self) -> bool:
        return bool((self.scale != 1).any())

    @property
    def shifts(self) -> bool:
        return bool((self.shift != 0).any())

    def after(self, first: Affine, axis: int | None) -> Affine | None:
        """`self` of the result of `first`, whose axis is `axis` in terms of first.x."""
        if axis is not None and first.axis is not None and axis != first.axis:
            return None
        both = first.axis if axis is None else axis
        scale, shift = self.scale * first.scale, self.scale * first.shift + self.shift
        return Affine(first.x, scale, shift, both)


def affine(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Affine | None:
    """What a node does to its one input that is no constant, if it is that."""
    if not inputs or not inputs[0].dtype.is_float:
        return None
    found = _of_node(e, node, inputs)
    if found is None or not (np.isfinite(found.scale).all() and np.isfinite(found.shift).all()):
        return None
    return found


def _of_node(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Affine | None:
    function, x = node.function, inputs[0]
    if function in (batch_norm, scale_shift, bias_add):
        arrays = [_wide(a) for v in inputs[1:] if (a := e.array(v)) is not None]
        if len(arrays) != len(inputs) - 1:
            return None
        axis = node.setting("axis", 1) % len(x.shape)
        if function is bias_add:
            return Affine(x, _ONE, arrays[0], axis)
        if function is scale_shift:
            return Affine(x, arrays[0], arrays[1], axis)
        gamma, beta, mean, var = arrays
        with np.errstate(all="ignore"):
            scale = gamma / np.sqrt(var + node.setting("epsilon", 1e-5))
        return Affine(x, scale, beta - mean * scale, axis)
    if function in (add, subtract, multiply, divide):
        return _of_two(e, node, inputs)
    return None


def _of_two(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Affine | None:
    x, turned = inputs[0], False
    if len(inputs) == 1:
        other = node.setting("B")
        constant = None if other is None else np.asarray(other, np.float64)
    elif (held := e.array(inputs[1])) is not None:
        constant = _wide(held)
    elif (held := e.array(inputs[0])) is not None:
        x, constant, turned = inputs[1], _wide(held), True
    else:
        constant = None
    if constant is None or e.array(x) is not None:
        return None
    at = _along(constant.shape, x.shape)
    if at is None:
        return None
    axis = at[0] if at else None
    c = constant.reshape(-1 if at else ())
    if node.function is add:
        return Affine(x, _ONE, c, axis)
    if node.function is subtract:
        return Affine(x, -_ONE if turned else _ONE, c if turned else -c, axis)
    if node.function is multiply:
        return Affine(x, c, _ZERO, axis)
    if turned:
        return None
    with np.errstate(all="ignore"):
        return Affine(x, 1 / c, _ZERO, axis)


def _along(shape: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, ...] | None:
    """The one dimension of `whole` along which a constant is a vector, () if it is a number; None
    if it is neither, or would widen the result.
    """
    if prod(shape) == 1:
        return () if len(shape) <= len(whole) else None
    if len(shape) > len(whole):
        return None
    wide = (1,) * (len(whole) - len(shape)) + shape
    at = tuple(d for d, n in enumerate(wide) if n != 1)
    return at if len(at) == 1 and wide[at[0]] == whole[at[0]] else None


def _wide(a: Array) -> Array:
    return a.astype(np.float64)


def bias_apart(graph: Graph) -> Graph:
    """The bias of a dense product as an addition behind it."""
    return edited(graph, _without_bias)


def _without_bias(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    if node.function is not dense or len(inputs) != 3 or not inputs[0].dtype.is_float:
        return None
    y = e.add(dense, *inputs[:2], **dict(node.settings))
    return e.add(add, y, inputs[2]) if y.dtype is inputs[2].dtype else None


def bias_as_add(graph: Graph) -> Graph:
    return edited(graph, _rule)


def _rule(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    if node.function is not bias_add:
        return None
    x, b = inputs
    axis = node.setting("axis", 1) % len(x.shape)
    shape = (b.shape[0],) + (1,) * (len(x.shape) - 1 - axis)
    return e.add(add, x, e.reshape(b, shape))
