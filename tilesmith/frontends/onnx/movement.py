"""Operators that move elements: shapes, orders, slices, padding. Views are single stages of index
expressions, and shapes are constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from tilesmith.frontends.onnx.call import Call, Importer
from tilesmith.frontends.shared.views import expanded, shaped, sliced
from tilesmith.graph.graph import Value
from tilesmith.ops import transform, views


def axes_of(call: Call, k: int, rank: int) -> list[int] | None:
    """Axes that stand in input k, or in an attribute in older models; None if in neither."""
    if call.has(k):
        axes = call.ints(k)
    elif call.has_attribute("axes"):
        axes = list(call.attribute("axes", ()))
    else:
        return None
    found = [call.axis(a, rank) for a in axes]
    if len(set(found)) != len(found):
        call.refuse(f"axes {axes} name a dimension twice")
    return found


# shapes
def reshape(call: Call) -> Value:
    x, wanted = call.value(0), call.ints(1)
    zero_means_empty = bool(call.attribute("allowzero", 0))
    if any(n < -1 for n in wanted):
        call.refuse(f"the shape {wanted} has a negative extent; only one of -1 is allowed")
    shape = [
        x.shape[d] if n == 0 and not zero_means_empty and d < len(x.shape) else n
        for d, n in enumerate(wanted)
    ]
    if -1 in shape:
        known = prod(n for n in shape if n != -1)
        if shape.count(-1) > 1 or known == 0 or x.size % known:
            call.refuse(f"{x} has {x.size} elements, which do not fill the shape {wanted}")
        shape[shape.index(-1)] = x.size // known
    return shaped(call, x, shape)


def flatten(call: Call) -> Value:
    x = call.value(0)
    axis, rank = call.attribute("axis", 1), len(x.shape)
    if not -rank <= axis <= rank:
        call.refuse(f"axis {axis} does not exist in {x}")
    at = axis + rank if axis < 0 else axis
    return shaped(call, x, (prod(x.shape[:at]), prod(x.shape[at:])))


def squeeze(call: Call) -> Value:
    x = call.value(0)
    axes = axes_of(call, 1, len(x.shape))
    if axes is None:
        axes = [d for d, n in enumerate(x.shape) if n == 1]
    for d in axes:
        if x.shape[d] != 1:
            call.refuse(f"dimension {d} of {x} is not 1")
    return shaped(call, x, [n for d, n in enumerate(x.shape) if d not in axes])


def unsqueeze(call: Call) -> Value:
    x = call.value(0)
    given = call.ints(1) if call.has(1) else list(call.required("axes"))
    rank = len(x.shape) + len(given)
    axes = [call.axis(a, rank) for a in given]
    if len(set(axes)) != len(axes):
        call.refuse(f"axes {given} name a dimension twice")
    rest = iter(x.shape)
    return shaped(call, x, [1 if d in axes else next(rest) for d in range(rank)])


def transpose(call: Call) -> Value:
    x = call.value(0)
    order = tuple(call.attribute("perm", tuple(range(len(x.shape)))[::-1]))
    if sorted(order) != list(range(len(x.shape))):
        call.refuse(f"perm {order} does not name each dimension of {x} once")
    if order == tuple(range(len(x.shape))):
        return x
    out: Value = call.add(transform.transpose, x, axes=order)
    return out


# parts
def slice_(call: Call) -> Value:
    x = call.value(0)
    rank = len(x.shape)
    starts = call.ints(1) if call.version >= 10 else list(call.required("starts"))
    stops = call.ints(2) if call.version >= 10 else list(call.required("ends"))
    axes = axes_of(call, 3, rank)
    if axes is None:
        axes = list(range(len(starts)))
    steps = call.ints(4) if call.has(4) else [1] * len(axes)
    if not len(starts) == len(stops) == len(axes) == len(steps):
        call.refuse(
            f"starts {starts}, ends {stops}, axes {axes} and steps {steps} differ in length"
        )
    if len(axes) > rank:
        call.refuse(f"it slices {len(axes)} dimensions of {x}")
    parts = dict(zip(axes, zip(starts, stops, steps, strict=True), strict=True))
    if any(step == 0 for _, _, step in parts.values()):
        call.refuse("a step is 0")
    return sliced(call, x, parts)


def split(call: Call) -> tuple[Value, ...]:
    x = call.value(0)
    axis = call.axis(call.attribute("axis", 0), len(x.shape))
    n, count = x.shape[axis], call.num_outputs
    sizes: list[int]
    if call.has(1):
        sizes = call.ints(1)
    elif call.has_attribute("split"):
        sizes = list(call.attribute("split", ()))
    else:
        parts = call.attribute("num_outputs", count)
        if parts != count or not parts:
            call.refuse(f"num_outputs is {parts}, but it has {count} outputs")
        if call.version < 18 and n % parts:
            call.refuse(f"dimension {axis} of {x} is not divided by {parts} outputs")
        each = -(-n // parts)
        sizes = [max(0, min(each, n - k * each)) for k in range(parts)]
    if sum(sizes) != n or len(sizes) < count or min(sizes, default=0) < 0:
        call.refuse(f"sizes {sizes} do not divide dimension {axis} of {x} into {count} parts")
    starts = np.cumsum([0, *sizes]).tolist()
    return tuple(
        sliced(call, x, {axis: (starts[k], starts[k + 1], 1)}) for k in range(count)
    )  # fmt: skip


def concat(call: Call) -> Value:
    values = call.values
    axis = call.axis(call.required("axis"), len(values[0].shape))
    if len({v.dtype for v in values}) > 1:
        call.refuse(f"its inputs are of types {', '.join(str(v.dtype) for v in values)}")
    if len(values) == 1:
        return values[0]
    out: Value = call.add(transform.concatenate, *values, axis=axis)
    return out


# repetition
def expand(call: Call) -> Value:
    x, wanted = call.value(0), call.ints(1)
    try:
        shape = np.broadcast_shapes(x.shape, tuple(wanted))
    except ValueError:
        call.refuse(f"{x} does not broadcast to {wanted}")
    return expanded(call, x, shape)


def tile(call: Call) -> Value:
    x, repeats = call.value(0), call.ints(1)
    if len(repeats) != len(x.shape) or min(repeats, default=0) < 0:
        call.refuse(f"repeats {repeats} must have one number, at least 0, per dimension of {x}")
    if all(n == 1 for n in repeats):
        return x
    out: Value = call.add(views.tile, x, repeats=tuple(repeats))
    return out


def pad(call: Call) -> Value:
    x = call.value(0)
    rank = len(x.shape)
    pads = call.ints(1) if call.version >= 11 else list(call.required("pads"))
    axes = axes_of(call, 3, rank) if call.version >= 18 else None
    axes = list(range(rank)) if axes is None else axes
    if len(pads) != 2 * len(axes):
        call.refuse(f"pads {pads} must have two numbers for each of the axes {axes}")
    pairs = [(0, 0)] * rank
    for a, pair in zip(axes, zip(pads[: len(axes)], pads[len(axes) :], strict=True), strict=True):
        pairs[a] = pair
    for d, pair in enumerate(pairs):
        if x.shape[d] + min(pair[0], 0) + min(pair[1], 0) < 0:
            call.refuse(f"pads {pair} take away more than dimension {d} of {x} has")
    cut = {
        d: (-min(before, 0), x.shape[d] + min(after, 0), 1)
        for d, (before, after) in enumerate(pairs)
    }
    x = sliced(call, x, cut)
    widths = tuple((max(before, 0), max(after, 0)) for before, after in pairs)
    if not any(map(any, widths)):
        return x
    out: Value
    mode = call.attribute("mode", "constant")
    if mode in views.PAD_MODES:
        out = call.add(views.pad_mirrored, x, widths=widths, mode=mode)
        return out
    if mode != "constant":
        call.refuse(f"mode {mode!r} is unknown")
    if call.version < 11:
        filled = call.attribute("value", 0.0)
        return padded(call, x, widths, filled)
    value, known = call.optional(2), call.known(2)
    if value is not None and (value.size != 1 or value.dtype is not x.dtype):
        call.refuse(f"the value {value} must be one element of {x.dtype}")
    if value is not None and known is None:
        out = call.add(views.pad_with, x, value, widths=widths)
        return out
    return padded(call, x, widths, 0 if known is None else known.reshape(()).item())


def padded(
    call: Call, x: Value, widths: tuple[tuple[int, int], ...], filled: float | int | bool
) -> Value:
    number = float(filled) if x.dtype.is_float else int(filled)
    out: Value = call.add(transform.pad, x, widths=widths, value=number)
    return out


def identity(call: Call) -> Value:
    return call.value(0)


# orders
def trilu(call: Call) -> Value:
    x = call.value(0)
    k = call.optional_array(1)
    if k is not None and (k.size != 1 or k.dtype.kind != "i"):
        call.refuse(f"k is {k.dtype}{list(k.shape)}; it must be a whole number")
    diagonal = 0 if k is None else int(k.reshape(()))
    out: Value = call.add(views.trilu, x, k=diagonal, upper=bool(call.attribute("upper", 1)))
    return out


def reverse_sequence(call: Call) -> Value:
    batch, time = call.attribute("batch_axis", 1), call.attribute("time_axis", 0)
    x, lengths = call.value(0), call.value(1)
    if not lengths.dtype.is_int:
        call.refuse(f"{lengths} must be integers")
    out: Value = call.add(
        views.reverse_sequence, x, lengths,
        batch_axis=call.axis(batch, len(x.shape)), time_axis=call.axis(time, len(x.shape)),
    )  # fmt: skip
    return out


IMPORTERS: Mapping[str, Importer] = {
    "Concat": concat,
    "Expand": expand,
    "Flatten": flatten,
    "Identity": identity,
    "Pad": pad,
    "Reshape": reshape,
    "ReverseSequence": reverse_sequence,
    "Slice": slice_,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "Transpose": transpose,
    "Trilu": trilu,
    "Unsqueeze": unsqueeze,
}
