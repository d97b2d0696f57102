"""Integers that stand for real numbers by a scale and a zero point, and sums of their products."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import UINT8, DType
from tilesmith.graph.edit import Editor
from tilesmith.graph.graph import Array, Node, Value
from tilesmith.ops.conv import conv1d, conv2d, conv3d, depthwise_conv2d
from tilesmith.ops.elementwise import add, bias_add, cast, multiply, subtract
from tilesmith.ops.matmul import batch_matmul, dense, matmul
from tilesmith.ops.reduce import reduce_sum

CONVOLUTIONS = (conv1d, conv2d, conv3d, depthwise_conv2d)
PRODUCTS = (matmul, batch_matmul, dense)


# How far a bias may be from a whole multiple of the scale of a sum, as a part of it, to be added as
# that integer: a few roundings to float32.
_SAME_BIAS = 2.0**-22

_MAX_SUM = 2**29  # of products, and of each bias, so that a few of them fit into int32


@dataclass(frozen=True)
class Scaled:
    """Integers, and the scale and zero point with which they stand for real numbers. Both have one
    element, or one for each place along `axis` of the integers.
    """

    value: Value
    scale: Array
    zero: Array
    axis: int = 0

    @property
    def is_uniform(self) -> bool:
        return bool(self.scale.size == 1 and self.zero.size == 1)

    def is_like(self, other: Scaled) -> bool:
        return (
            self.is_uniform
            and other.is_uniform
            and self.value.dtype is other.value.dtype
            and float(self.scale.item()) == float(other.scale.item())
            and int(self.zero.item()) == int(other.zero.item())
        )

    def reals(self, held: Array) -> Array:
        """What the integers stand for, in float64, given what they are."""
        zero, scale = (along_axis(t, held.ndim, self.axis) for t in (self.zero, self.scale))
        real: Array = (held.astype(np.float64) - zero) * scale.astype(np.float64)
        return real


@dataclass(frozen=True)
class Total:
    """A sum of products that stands for (value + whole) * scale + rest. `value` is of int32; the
    others hold one number, or one for each place along `axis` of it.
    """

    value: Value
    scale: Array  # in float64
    axis: int
    whole: Array | None = None  # integers
    rest: Array | None = None  # reals in float64, which are no multiples of the scale

    def summed(self, e: Editor) -> Total:
        """With `whole` in the value."""
        if self.whole is None:
            return self
        shift = e.constant(self.whole.astype(np.int32))
        return replace(self, value=e.add(bias_add, self.value, shift, axis=self.axis), whole=None)

    def plus(self, e: Editor, bias: Array, axis: int) -> Total | None:
        """With a vector of reals along an axis added."""
        total = self if axis == self.axis else replace(self.summed(e), axis=axis)
        if axis != self.axis and (self.scale.size > 1 or self.rest is not None):
            return None
        with np.errstate(all="ignore"):
            units = np.rint(bias / self.scale)
            near = np.abs(units * self.scale - bias) <= _SAME_BIAS * np.abs(bias)
        if (near & (np.abs(units) < _MAX_SUM)).all():
            whole = units.astype(np.int64)
            return replace(total, whole=whole if total.whole is None else total.whole + whole)
        rest = bias.astype(np.float64)
        return replace(total, rest=rest if total.rest is None else total.rest + rest)

    def reshaped(self, e: Editor, shape: tuple[int, ...]) -> Total | None:
        """Under another shape, in which `axis` still is a dimension of its own."""
        total = self.summed(e)
        old, axis = self.value.shape, self.axis
        if self.scale.size > 1 or self.rest is not None:
            before, extent = prod(old[:axis]), old[axis]
            places = (k for k, n in enumerate(shape) if (prod(shape[:k]), n) == (before, extent))
            found = next(places, None)
            if found is None or not self.value.size:
                return None
            axis = found
        return replace(total, value=e.reshape(total.value, shape), axis=axis)

    def lined_up(self, numbers: Array) -> Any:
        """Numbers along `axis`, for broadcasting."""
        return along_axis(numbers, len(self.value.shape), self.axis)


def scaled_of(e: Editor, inputs: tuple[Value, ...], node: Node) -> Scaled | None:
    """What a dequantize node reads, if scale and zero point are constants."""
    scale = e.array(inputs[1])
    # inputs[0] may be of another type than in the model, where 0 stands for something else
    stated = inputs[0] if len(inputs) > 2 else e.graph.values[node.inputs[0]]
    zero = e.array(inputs[2]) if len(inputs) > 2 else np.zeros(1, stated.dtype.numpy)
    if scale is None or zero is None or scale.dtype != np.float32 or node.setting("block", 0):
        return None
    if scale.ndim > 1 or zero.ndim > 1 or node.setting("dtype") not in (None, "float32"):
        return None
    axis = node.setting("axis", 1) % max(1, len(inputs[0].shape))
    if inputs[0].dtype.bits == 8:
        zero = moved_zero(zero, inputs[0].dtype)
    return Scaled(inputs[0], scale.reshape(-1), zero.reshape(-1), axis)


def moved_zero(zero: Array, kind: DType) -> Array:
    """Zero points of int8 or uint8 for the same numbers in the other of both types."""
    if zero.dtype == kind.numpy or zero.dtype.itemsize != 1:
        return zero.reshape(-1)
    by = 128 if kind is UINT8 else -128
    return (zero.reshape(-1).astype(np.int16) + by).astype(kind.numpy)


def integer_product(e: Editor, root: Node, x: Scaled, w: Scaled) -> Total | None:
    """The sum of products as integers, if x has one scale and zero point."""
    held = e.array(w.value)
    if x.value.dtype.bits != 8 or w.value.dtype.bits != 8:
        return None
    if held is None:
        return None if root.function in CONVOLUTIONS else _of_computed(e, root, x, w)
    settings = dict(root.settings)
    convolves = root.function in CONVOLUTIONS
    first, along = 0, w.axis  # of the weights: which dimension is that of the results
    if convolves and str(settings.get("layout", "")).endswith("C"):
        first = held.ndim - 1
    elif not convolves:
        if len(held.shape) != 2 or settings.pop("transpose_a", False):
            return None
        if root.function is not dense:
            first = 1
            turned = settings.pop("transpose_b", False)
            held, along = (held.T, 1 - w.axis) if turned else (held, w.axis)
    if not w.is_uniform and along != first:
        return None
    centred = held.astype(np.int16) - along_axis(w.zero.astype(np.int16), held.ndim, first)
    others = tuple(d for d in range(held.ndim) if d != first)
    most = 255 * np.abs(centred).sum(axis=others, dtype=np.int64).max(initial=0)
    if centred.min(initial=0) < -128 or centred.max(initial=0) > 127 or most >= _MAX_SUM:
        return None
    weights = e.constant(centred.astype(np.int8), w.value.name)
    zero = int(x.zero.item())
    if zero and convolves:
        settings["fill"] = zero
    y = e.add(root.function, x.value, weights, instead_of=root, **settings)
    axis = 1 if convolves and first == 0 else len(y.shape) - 1
    shift = -zero * centred.sum(axis=others, dtype=np.int64) if zero else None
    return Total(y, x.scale.astype(np.float64) * w.scale, axis, shift)


def _of_computed(e: Editor, root: Node, x: Scaled, w: Scaled) -> Total | None:
    """Both operands are computed. Their zero points are sums of the other operand's rows or
    columns: sum (a - za) (b - zb) = sum a b - zb sum a - za sum (b - zb).
    """
    length = x.value.shape[-2 if root.setting("transpose_a") else -1]
    if not w.is_uniform or root.function is dense or length * 255**2 >= _MAX_SUM // 4:
        return None
    y = e.add(root.function, x.value, w.value, instead_of=root, **dict(root.settings))
    of_x, of_w = int(x.zero.item()), int(w.zero.item())
    if of_w:
        rows = _sums(e, x.value, bool(root.setting("transpose_a")), -1)
        y = e.add(subtract, y, e.add(multiply, rows, B=of_w))
    if of_x:
        columns = _sums(e, w.value, bool(root.setting("transpose_b")), -2)
        columns = e.add(add, columns, B=-length * of_w) if of_w else columns
        y = e.add(subtract, y, e.add(multiply, columns, B=of_x))
    return Total(y, x.scale.astype(np.float64) * w.scale, 0)


def _sums(e: Editor, x: Value, transposed: bool, axis: int) -> Value:
    """The sums of integers along one of the last two dimensions, of which the other is kept."""
    rank = len(x.shape)
    wide = e.add(cast, x, dtype="int32")
    if not transposed:
        return e.add(reduce_sum, wide, axes=(axis % rank,), keepdims=True)
    total = e.add(reduce_sum, wide, axes=((-3 - axis) % rank,), keepdims=True)
    return e.transpose(total, (*range(rank - 2), rank - 1, rank - 2))


def along_axis(a: Array, rank: int, axis: int) -> Any:
    return a.reshape(-1, *(1,) * (rank - 1 - axis)) if a.size > 1 else a.reshape(())
