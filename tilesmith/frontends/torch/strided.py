"""as_strided: elements at computed places of a tensor's memory, as a view where it is one, else by
a table of places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilesmith.base.errors import GraphError
from tilesmith.frontends.shared.building import permuted, shaped, sliced
from tilesmith.frontends.torch.call import Call, Importer, Memory
from tilesmith.graph.graph import Array, Value
from tilesmith.ops.transform import take


class OutsideError(GraphError):
    """An operator reads memory around its operand."""


def as_strided(
    call: Call, x: Value, size: Sequence[int], stride: Sequence[int],
    storage_offset: int | None = None,
) -> Value:  # fmt: skip
    if not prod(size):
        return call.constant(np.zeros(tuple(size), x.dtype.numpy))
    memories = call.memories()
    first = memories[0].offset if storage_offset is None else storage_offset
    for m in memories:
        y = _read(call, m, size, stride, first - m.offset)
        if y is not None:
            return y
    raise OutsideError(f"{call.origin} reads memory outside of {x}, which is not known here")


def _read(
    call: Call, m: Memory, size: Sequence[int], stride: Sequence[int], first: int
) -> Value | None:
    """The elements from address `first` of the tensor on; None if some are not in it."""
    flat, last = _in_order(call, m), first + _span(size, stride)
    if flat is None:
        held = _addresses(m.value.shape, m.strides).ravel()
        ranks = np.argsort(held, kind="stable")
        wanted = first + _addresses(size, stride)
        at = np.minimum(np.searchsorted(held[ranks], wanted), held.size - 1)
        if not np.array_equal(held[ranks][at], wanted):
            return None
        ids: Array = ranks[at]
        flat = shaped(call, m.value, (m.value.size,))
    elif first < 0 or last >= flat.size:
        return None
    else:
        order = _compact(size, stride)
        if order is not None:
            part = sliced(call, flat, {0: (first, last + 1, 1)})
            part = shaped(call, part, [size[d] for d in order])
            return permuted(call, part, np.argsort(order).tolist())
        ids = first + _addresses(size, stride)
    return call.add(take, flat, call.constant(ids.astype(np.int64)), axis=0)


def _in_order(call: Call, m: Memory) -> Value | None:
    """All elements as they lie in memory; None if there is something between them."""
    order = _compact(m.value.shape, m.strides)
    if order is None:
        return None
    return shaped(call, permuted(call, m.value, order), (m.value.size,))


def _compact(size: Sequence[int], stride: Sequence[int]) -> list[int] | None:
    """The order of dimensions in which elements of these strides lie one behind the other."""
    order = sorted(range(len(size)), key=lambda d: (size[d] > 1, -stride[d]))
    step = 1
    for d in reversed(order):
        if size[d] > 1 and stride[d] != step:
            return None
        step *= size[d]
    return order


def _span(size: Sequence[int], stride: Sequence[int]) -> int:
    return sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def _addresses(size: Sequence[int], stride: Sequence[int]) -> Array:
    places: Array = np.zeros((), np.int64)
    for n, s in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(n, dtype=np.int64) * s
    return places


IMPORTERS: Mapping[str, Importer] = {"aten.as_strided.default": as_strided}
