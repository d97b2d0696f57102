"""Integers that stand for real numbers by a scale and a zero point, and sums of their products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilesmith.base.dtype import UINT8, DType
from tilesmith.graph.edit import Editor
from tilesmith.graph.graph import Array, Node, Value
from tilesmith.ops.conv import conv1d, conv2d, conv3d

CONVOLUTIONS = (conv1d, conv2d, conv3d)


# How far the scale of a bias may be from the product of the operands' scales to count as equal.
SAME_SCALE = 1e-5


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


def scaled_of(e: Editor, inputs: tuple[Value, ...], node: Node) -> Scaled | None:
    """What a dequantize node reads, if scale and zero point are constants."""
    scale = e.array(inputs[1])
    zero = e.array(inputs[2]) if len(inputs) > 2 else np.zeros(1, inputs[0].dtype.numpy)
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


def integer_product(
    e: Editor, root: Node, x: Scaled, w: Scaled
) -> tuple[Value, Array, Array | None, int] | None:
    """The sum of products, the scale of w, what to add for the zero point of x (or None), and the
    axis of both.
    """
    held = e.array(w.value)
    if x.value.dtype.bits != 8 or w.value.dtype.bits != 8:
        return None
    settings = dict(root.settings)
    convolves = root.function in CONVOLUTIONS
    if convolves and (held is None or settings.get("layout", "NCHW")[1] != "C"):
        return None
    if held is None:  # both operands are computed: without zero points the sum is all
        if x.zero.any() or w.zero.any() or not w.is_uniform:
            return None
        return e.add(root.function, x.value, w.value, **settings), w.scale, None, -1
    if not convolves:
        if len(held.shape) != 2 or settings.pop("transpose_a", False):
            return None
        turned = settings.pop("transpose_b", False)
        held, along = (held.T, 1 - w.axis) if turned else (held, w.axis)
    else:
        along = w.axis
    channel = 0 if convolves else 1
    if not w.is_uniform and along != channel:
        return None
    centred = held.astype(np.int16) - along_axis(w.zero.astype(np.int16), held.ndim, channel)
    if centred.min(initial=0) < -128 or centred.max(initial=0) > 127:
        return None
    weights = e.constant(centred.astype(np.int8), w.value.name)
    shift = None
    if zero := int(x.zero.item()):
        others = tuple(d for d in range(held.ndim) if d != channel)
        shift = (-zero * centred.sum(axis=others, dtype=np.int64)).astype(np.int32)
        if convolves:
            settings["fill"] = zero
    total = e.add(root.function, x.value, weights, **settings)
    return total, w.scale, shift, 1 if convolves else -1


def along_axis(a: Array, rank: int, axis: int) -> Any:
    return a.reshape(-1, *(1,) * (rank - 1 - axis)) if a.size > 1 else a.reshape(())
