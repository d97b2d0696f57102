"""Operators that move elements: shapes, orders, parts, padding; and those that create tensors, such
as zeros and arange. PyTorch says the shape of each result, so nothing has to be inferred here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tilesmith.frontends.shared.building import (
    expanded,
    joined,
    padded,
    parts_along,
    permuted,
    shaped,
    sliced,
)
from tilesmith.frontends.torch.call import Call, Importer, Number, named
from tilesmith.graph.graph import Value
from tilesmith.ops import transform, views

_END = (1 << 63) - 1


# shapes
def as_result(call: Call, x: Value, *_: object, **__: object) -> Value:
    """x under the shape of the result."""
    return reshaped(call, x, call.shape)


def reshaped(call: Call, x: Value, shape: Sequence[int]) -> Value:
    """A shape that x was made from is found again: batches of matrices are folded into one
    dimension in front of a product and unfolded behind it, and a kernel needs neither.
    """
    base = call.bases.get(x.name)
    if base is not None and base.shape == tuple(shape):
        return base
    y = shaped(call, x, shape)
    if y is not x:
        call.bases[y.name] = x if base is None else base
    return y


def permute(call: Call, x: Value, dims: Sequence[int]) -> Value:
    return permuted(call, x, [d % len(x.shape) for d in dims])


def transpose(call: Call, x: Value, dim0: int, dim1: int) -> Value:
    order = list(range(len(x.shape)))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return permuted(call, x, order)


def t(call: Call, x: Value) -> Value:
    return permuted(call, x, range(len(x.shape))[::-1])


def expand(call: Call, x: Value, size: Sequence[int], *, implicit: bool = False) -> Value:
    return expanded(call, x, call.shape)


# parts
def select(call: Call, x: Value, dim: int, index: int) -> Value:
    d = dim % len(x.shape)
    at = index % x.shape[d]
    return reshaped(call, sliced(call, x, {d: (at, at + 1, 1)}), call.shape)


def slice_(
    call: Call, x: Value, dim: int = 0, start: int | None = None, end: int | None = None,
    step: int = 1,
) -> Value:  # fmt: skip
    d = dim % len(x.shape)
    return sliced(call, x, {d: (start or 0, _END if end is None else end, step)})


def split_with_sizes(call: Call, x: Value, sizes: Sequence[int], dim: int = 0) -> tuple[Value, ...]:
    return parts_along(call, x, dim % len(x.shape), sizes)


def split(call: Call, x: Value, size: int, dim: int = 0) -> tuple[Value, ...]:
    n = x.shape[dim]
    sizes = [min(size, n - at) for at in range(0, n, size)] if size else [0]
    return split_with_sizes(call, x, sizes, dim)


def unbind(call: Call, x: Value, dim: int = 0) -> tuple[Value, ...]:
    parts = parts_along(call, x, dim % len(x.shape), [1] * x.shape[dim])
    return tuple(shaped(call, v, call.type(k).shape) for k, v in enumerate(parts))


def cat(call: Call, tensors: Sequence[Value], dim: int = 0) -> Value:
    # An empty vector joins anything, by an old rule of PyTorch.
    given = [call.cast(v, call.dtype) for v in tensors if v.shape != (0,)]
    if not given:
        return call.cast(tensors[0], call.dtype)
    return joined(call, given, dim % len(given[0].shape))


def stack(call: Call, tensors: Sequence[Value], dim: int = 0) -> Value:
    rank = len(tensors[0].shape)
    d = dim % (rank + 1)
    shape = (*tensors[0].shape[:d], 1, *tensors[0].shape[d:])
    return joined(call, [shaped(call, call.cast(v, call.dtype), shape) for v in tensors], d)


def unfold(call: Call, x: Value, dim: int, size: int, step: int) -> Value:
    """Windows along a dimension, their elements in a new last one. A scalar is one such element."""
    if not x.shape:
        return sliced(call, shaped(call, x, (1,)), {0: (0, size, 1)})
    d = dim % len(x.shape)
    ids = np.arange(call.shape[d])[:, None] * step + np.arange(size)
    y = call.add(transform.take, x, call.constant(ids), axis=d)
    rank = len(y.shape)
    return permuted(call, y, [k for k in range(rank) if k != d + 1] + [d + 1])


def diagonal(call: Call, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    rank = len(x.shape)
    a, b = dim1 % rank, dim2 % rank
    rest = [d for d in range(rank) if d not in (a, b)]
    rows, columns, count = x.shape[a], x.shape[b], call.shape[-1]
    y = permuted(call, x, [*rest, a, b])
    y = shaped(call, y, (*y.shape[:-2], rows * columns))
    first = offset if offset >= 0 else -offset * columns
    past = first + (count - 1) * (columns + 1) + 1 if count else first
    return sliced(call, y, {len(rest): (first, past, columns + 1)})


# repetition, order
def repeat(call: Call, x: Value, repeats: Sequence[int]) -> Value:
    x = shaped(call, x, (1,) * (len(repeats) - len(x.shape)) + x.shape)
    return x if prod(repeats) == 1 else call.add(views.tile, x, repeats=tuple(repeats))


def flip(call: Call, x: Value, dims: Sequence[int]) -> Value:
    rank = len(x.shape)
    if not rank:
        return x
    return sliced(call, x, {d % rank: (-1, -_END, -1) for d in dims})


def trilu(upper: bool) -> Importer:
    def read(call: Call, x: Value, diagonal: int = 0) -> Value:
        return call.add(views.trilu, x, k=diagonal, upper=upper)

    return read


# padding
def _widths(x: Value, pad: Sequence[int]) -> list[tuple[int, int]]:
    """Padding by dimension, the first one first. PyTorch lists the last one first."""
    pairs = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    return [(0, 0)] * (len(x.shape) - len(pairs)) + pairs


def constant_pad(call: Call, x: Value, pad: Sequence[int], value: Number = 0) -> Value:
    """Pads with a constant; negative widths crop."""
    return padded(call, x, _widths(x, pad), value=call.term(value, x.dtype))


def mirrored_pad(mode: str) -> Importer:
    def read(call: Call, x: Value, padding: Sequence[int]) -> Value:
        if min(padding, default=0) < 0:
            call.leave("a padding is negative")
        return call.add(views.pad_mirrored, x, widths=tuple(_widths(x, padding)), mode=mode)

    return read


def slice_scatter(
    call: Call, x: Value, source: Value, dim: int = 0, start: int | None = None,
    end: int | None = None, step: int = 1,
) -> Value:  # fmt: skip
    """x with some of it replaced: the parts around it are joined with what is new."""
    d = dim % len(x.shape)
    n = x.shape[d]
    first, past, step = slice(start or 0, _END if end is None else end, step).indices(n)
    if step != 1:
        call.leave(f"its step is {step}")
    source = expanded(call, call.cast(source, x.dtype), (*x.shape[:d], max(past - first, 0),
                                                         *x.shape[d + 1 :]))  # fmt: skip
    if past <= first:
        return x
    around = [sliced(call, x, {d: (0, first, 1)})] if first else []
    behind = [sliced(call, x, {d: (past, n, 1)})] if past < n else []
    return joined(call, [*around, source, *behind], d)


# new tensors, which are constants of the graph
def _filled(call: Call, number: Number) -> Value:
    """A view of one element, whatever its shape."""
    one = np.asarray(number).astype(call.dtype.numpy)
    return call.constant(np.broadcast_to(one, call.shape))


def full(call: Call, like: Sequence[int] | Value, fill_value: Number, **_: Any) -> Value:
    return _filled(call, fill_value)


def filled(number: Number) -> Importer:
    """The first argument is a size or a tensor of that size."""

    def read(call: Call, like: Any, *_: Any, **__: Any) -> Value:
        return _filled(call, number)

    return read


def scalar_tensor(call: Call, number: Number, **_: Any) -> Value:
    return _filled(call, number)


def arange(call: Call, start: Number, end: Number, step: Number = 1, **_: Any) -> Value:
    count = call.shape[0]
    if call.dtype.is_float:
        return call.constant((start + np.arange(count) * step).astype(call.dtype.numpy))
    whole = np.arange(count) * int(step) + int(start)
    return call.constant(whole.astype(call.dtype.numpy))


def up_to(call: Call, end: Number, **_: Any) -> Value:
    return arange(call, 0, end)


IMPORTERS: Mapping[str, Importer] = {
    "aten._unsafe_view.default": as_result,
    "aten.arange.default": up_to,
    **named("arange", arange, "start", "start_step"),
    "aten.cat.default": cat,
    "aten.constant_pad_nd.default": constant_pad,
    "aten.diagonal.default": diagonal,
    "aten.empty.memory_format": filled(0),
    "aten.empty_like.default": filled(0),
    "aten.expand.default": expand,
    "aten.flip.default": flip,
    "aten.full.default": full,
    "aten.full_like.default": full,
    "aten.new_empty.default": filled(0),
    "aten.new_full.default": lambda call, x, size, value, **_: _filled(call, value),
    "aten.new_ones.default": filled(1),
    "aten.new_zeros.default": filled(0),
    "aten.ones.default": filled(1),
    "aten.ones_like.default": filled(1),
    "aten.permute.default": permute,
    **{f"aten.reflection_pad{n}d.default": mirrored_pad("reflect") for n in (1, 2, 3)},
    "aten.repeat.default": repeat,
    **{f"aten.replication_pad{n}d.default": mirrored_pad("edge") for n in (1, 2, 3)},
    "aten.reshape.default": as_result,
    "aten.scalar_tensor.default": scalar_tensor,
    "aten.select.int": select,
    "aten.slice.Tensor": slice_,
    "aten.slice_scatter.default": slice_scatter,
    "aten.split.Tensor": split,
    "aten.split_with_sizes.default": split_with_sizes,
    **named("squeeze", as_result, "default", "dim", "dims"),
    "aten.stack.default": stack,
    "aten.t.default": t,
    "aten.transpose.int": transpose,
    "aten.tril.default": trilu(False),
    "aten.triu.default": trilu(True),
    "aten.unbind.int": unbind,
    "aten.unfold.default": unfold,
    "aten.unsqueeze.default": as_result,
    "aten.view.default": as_result,
    "aten.zeros.default": filled(0),
    "aten.zeros_like.default": filled(0),
}
