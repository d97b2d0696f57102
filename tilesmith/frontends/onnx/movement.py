"""Operators that move elements: shapes, orders, slices, padding; and those that make constants.
Views are single stages of index expressions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tilesmith.frontends.onnx.call import Call, Importer, RunOnHost
from tilesmith.frontends.shared.building import (
    expanded,
    padded,
    parts_along,
    permuted,
    shaped,
    sliced,
)
from tilesmith.graph.graph import Array, Value
from tilesmith.ops import transform, views


def counted(call: Call, axes: Sequence[int], rank: int) -> list[int]:
    """Axes counted from 0, none of them twice."""
    found = [call.axis(a, rank) for a in axes]
    if len(set(found)) != len(found):
        call.refuse(f"axes {list(axes)} name a dimension twice")
    return found


# shapes
def reshape(call: Call, x: Value, shape: list[int], *, allowzero: bool = False) -> Value:
    if any(n < -1 for n in shape):
        call.refuse(f"the shape {shape} has a negative extent; only one of -1 is allowed")
    full = [
        x.shape[d] if n == 0 and not allowzero and d < len(x.shape) else n
        for d, n in enumerate(shape)
    ]
    if -1 in full:
        known = prod(n for n in full if n != -1)
        if full.count(-1) > 1 or known == 0 or x.size % known:
            call.refuse(f"{x} has {x.size} elements, which do not fill the shape {shape}")
        full[full.index(-1)] = x.size // known
    return shaped(call, x, full)


def flatten(call: Call, x: Value, *, axis: int = 1) -> Value:
    rank = len(x.shape)
    if not -rank <= axis <= rank:
        call.refuse(f"axis {axis} does not exist in {x}")
    at = axis + rank if axis < 0 else axis
    return shaped(call, x, (prod(x.shape[:at]), prod(x.shape[at:])))


def squeeze(call: Call, x: Value, axes: list[int] | None = None) -> Value:
    ones = [d for d, n in enumerate(x.shape) if n == 1]
    dropped = ones if axes is None else counted(call, axes, len(x.shape))
    for d in dropped:
        if x.shape[d] != 1:
            call.refuse(f"dimension {d} of {x} is not 1")
    return shaped(call, x, [n for d, n in enumerate(x.shape) if d not in dropped])


def unsqueeze(call: Call, x: Value, axes: list[int]) -> Value:
    rank = len(x.shape) + len(axes)
    new, rest = counted(call, axes, rank), iter(x.shape)
    return shaped(call, x, [1 if d in new else next(rest) for d in range(rank)])


def transpose(call: Call, x: Value, *, perm: tuple[int, ...] | None = None) -> Value:
    order = tuple(range(len(x.shape)))[::-1] if perm is None else perm
    if sorted(order) != list(range(len(x.shape))):
        call.refuse(f"perm {order} does not name each dimension of {x} once")
    return permuted(call, x, order)


# parts
def slice_(
    call: Call, x: Value, starts: list[int], ends: list[int], axes: list[int] | None = None,
    steps: list[int] | None = None,
) -> Value:  # fmt: skip
    at = list(range(len(starts))) if axes is None else counted(call, axes, len(x.shape))
    steps = [1] * len(at) if steps is None else steps
    if not len(starts) == len(ends) == len(at) == len(steps):
        call.refuse(f"starts {starts}, ends {ends}, axes {at} and steps {steps} differ in length")
    if len(at) > len(x.shape):
        call.refuse(f"it slices {len(at)} dimensions of {x}")
    parts = dict(zip(at, zip(starts, ends, steps, strict=True), strict=True))
    if any(step == 0 for _, _, step in parts.values()):
        call.refuse("a step is 0")
    return sliced(call, x, parts)


def split(
    call: Call, x: Value, split: list[int] | None = None, *, axis: int = 0,
    num_outputs: int | None = None,
) -> tuple[Value, ...]:  # fmt: skip
    axis = call.axis(axis, len(x.shape))
    n, count = x.shape[axis], call.num_outputs
    sizes = split
    if sizes is None:
        parts = count if num_outputs is None else num_outputs
        if parts != count or not parts:
            call.refuse(f"num_outputs is {parts}, but it has {count} outputs")
        if call.version < 18 and n % parts:
            call.refuse(f"dimension {axis} of {x} is not divided by {parts} outputs")
        each = -(-n // parts)
        sizes = [max(0, min(each, n - k * each)) for k in range(parts)]
    if sum(sizes) != n or len(sizes) < count or min(sizes, default=0) < 0:
        call.refuse(f"sizes {sizes} do not divide dimension {axis} of {x} into {count} parts")
    return parts_along(call, x, axis, sizes[:count])


def concat(call: Call, first: Value, *rest: Value, axis: int) -> Value:
    values = (first, *rest)
    axis = call.axis(axis, len(first.shape))
    if len({v.dtype for v in values}) > 1:
        call.refuse(f"its inputs are of types {', '.join(str(v.dtype) for v in values)}")
    if not rest:
        return first
    return call.add(transform.concatenate, *values, axis=axis)


# repetition
def expand(call: Call, x: Value, shape: list[int]) -> Value:
    try:
        joint = np.broadcast_shapes(x.shape, tuple(shape))
    except ValueError:
        call.refuse(f"{x} does not broadcast to {shape}")
    return expanded(call, x, joint)


def tile(call: Call, x: Value, repeats: list[int]) -> Value:
    if len(repeats) != len(x.shape) or min(repeats, default=0) < 0:
        call.refuse(f"repeats {repeats} must have one number, at least 0, per dimension of {x}")
    if all(n == 1 for n in repeats):
        return x
    return call.add(views.tile, x, repeats=tuple(repeats))


def pad(
    call: Call, x: Value, pads: list[int], value: Value | float | None = None,
    axes: list[int] | None = None, *, mode: str = "constant",
) -> Value:  # fmt: skip
    rank = len(x.shape)
    at = list(range(rank)) if axes is None else counted(call, axes, rank)
    if len(pads) != 2 * len(at):
        call.refuse(f"pads {pads} must have two numbers for each of the axes {at}")
    pairs = [(0, 0)] * rank
    for a, pair in zip(at, zip(pads[: len(at)], pads[len(at) :], strict=True), strict=True):
        pairs[a] = pair
    for d, pair in enumerate(pairs):
        if x.shape[d] + min(pair[0], 0) + min(pair[1], 0) < 0:
            call.refuse(f"pads {pair} take away more than dimension {d} of {x} has")
    if max(pads, default=0) <= 0:
        return padded(call, x, pairs)
    if mode not in ("constant", *views.PAD_MODES):
        call.refuse(f"mode {mode!r} is unknown")
    filled: Any = 0 if value is None else value
    if mode == "constant" and isinstance(value, Value):
        if value.size != 1 or value.dtype is not x.dtype:
            call.refuse(f"the value {value} must be one element of {x.dtype}")
        known = call.contents(value)
        filled = value if known is None else known.reshape(()).item()
    if not isinstance(filled, Value):
        filled = float(filled) if x.dtype.is_float else int(filled)
    return padded(call, x, pairs, mode, filled)


def identity(call: Call, x: Value) -> Value:
    return x


# orders
def trilu(call: Call, x: Value, k: Array | None = None, *, upper: bool = True) -> Value:
    if k is not None and (k.size != 1 or k.dtype.kind != "i"):
        call.refuse(f"k is {k.dtype}{list(k.shape)}; it must be a whole number")
    diagonal = 0 if k is None else int(k.reshape(()))
    return call.add(views.trilu, x, k=diagonal, upper=upper)


def reverse_sequence(
    call: Call, x: Value, lengths: Value, *, batch_axis: int = 1, time_axis: int = 0
) -> Value:
    if not lengths.dtype.is_int:
        call.refuse(f"{lengths} must be integers")
    return call.add(
        views.reverse_sequence, x, lengths,
        batch_axis=call.axis(batch_axis, len(x.shape)),
        time_axis=call.axis(time_axis, len(x.shape)),
    )  # fmt: skip


# results that are constants once shapes are known
def shape_of(call: Call, x: Value, *, start: int = 0, end: int | None = None) -> Value:
    return call.constant(np.array(x.shape[start:end], np.int64))


def size(call: Call, x: Value) -> Value:
    return call.constant(np.array(x.size, np.int64))


def constant(call: Call, **attributes: Any) -> Value:
    for name, dtype in _CONSTANTS.items():
        if name in attributes:
            return call.constant(np.asarray(attributes[name], dtype))
    if "value_string" in attributes or "value_strings" in attributes:
        raise RunOnHost("it is a string")
    return call.refuse("it has no value")


_CONSTANTS = {
    "value": None, "value_int": np.int64, "value_ints": np.int64, "value_float": np.float32,
    "value_floats": np.float32,
}  # fmt: skip


def constant_of_shape(call: Call, given: Value, *, value: Array | None = None) -> Value:
    shape = call.ints(given) if given.size else []
    if min(shape, default=0) < 0:
        call.refuse(f"the shape {shape} has a negative extent")
    value = np.zeros(1, np.float32) if value is None else value
    if value.size != 1:
        call.refuse(f"its value has shape {list(value.shape)}; it must have one element")
    return expanded(call, call.constant(value.reshape(())), tuple(shape))


def eye_like(call: Call, x: Value, *, dtype: int = 0, k: int = 0) -> Value:
    if len(x.shape) != 2:
        call.refuse(f"{x} is not a matrix")
    made = call.element_type(dtype, "its result") if dtype else x.dtype
    return call.constant(np.eye(*x.shape, k=k, dtype=made.numpy))


def range_(call: Call, start: Array, limit: Array, delta: Array, *, stash_type: int = 1) -> Value:
    for a in (start, limit, delta):
        if a.size != 1 or a.dtype != start.dtype:
            call.refuse("start, limit and delta must be numbers of one type")
    first, past, step = (a.reshape(()).item() for a in (start, limit, delta))
    if step == 0:
        call.refuse("delta is 0")
    if start.dtype.kind in "iu":
        return call.constant(np.arange(first, past, step, dtype=start.dtype))
    count = max(0, int(np.ceil((past - first) / step)))
    return call.constant((first + np.arange(count) * step).astype(start.dtype))


IMPORTERS: Mapping[str, Importer] = {
    "Concat": concat,
    "Constant": constant,
    "ConstantOfShape": constant_of_shape,
    "Expand": expand,
    "EyeLike": eye_like,
    "Flatten": flatten,
    "Identity": identity,
    "Pad": pad,
    "Range": range_,
    "Reshape": reshape,
    "ReverseSequence": reverse_sequence,
    "Shape": shape_of,
    "Size": size,
    "Slice": slice_,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "Transpose": transpose,
    "Trilu": trilu,
    "Unsqueeze": unsqueeze,
}
