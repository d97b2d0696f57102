"""Operators that read or write at indices given by a tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilesmith.base.dtype import BOOL, INT64
from tilesmith.frontends.shared.building import expanded, joined, permuted, shaped, sliced
from tilesmith.frontends.shared.indexing import (
    MAX_TOP_K,
    put_along,
    put_rows,
    taken,
)
from tilesmith.frontends.torch.call import Call, Importer, Number, Term, both, named
from tilesmith.graph.graph import Value
from tilesmith.ops import indices as gathers
from tilesmith.ops import scatter as scatters
from tilesmith.ops import search
from tilesmith.ops.elementwise import where


# reading
def read_at(call: Call, x: Value, ids: Value, axis: int, lowest: int = 0) -> Value:
    """x at places along one axis, which the dimensions of ids replace."""
    call.need_range(ids, lowest, x.shape[axis])
    return taken(call, x, ids, axis)


def embedding(
    call: Call, table: Value, ids: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:  # fmt: skip
    return read_at(call, table, ids, 0)


def index_select(call: Call, x: Value, dim: int, ids: Value) -> Value:
    if ids.dtype.bits < 32:
        call.leave(f"its index is {ids.dtype}")
    return read_at(call, x, shaped(call, ids, (ids.size,)), call.dim(x, dim))


def gather(call: Call, x: Value, dim: int, ids: Value, *, sparse_grad: bool = False) -> Value:
    if not x.shape or not ids.shape:
        call.leave("an operand is a scalar")
    call.need_range(ids, 0, x.shape[dim])
    return call.add(gathers.gather_elements, x, ids, axis=dim % len(x.shape))


def _joint_rows(
    call: Call, x: Value, named: Mapping[int, Value], counted_back: bool = True
) -> tuple[Value, tuple[int, ...]]:
    """Indices of several dimensions, broadcast and side by side: (..., dimensions)."""
    for d, v in named.items():
        call.need_range(v, -x.shape[d] if counted_back else 0, x.shape[d])
    ids = list(named.values())
    shape = np.broadcast_shapes(*(v.shape for v in ids))
    each = [shaped(call, expanded(call, call.cast(v, INT64), shape), (*shape, 1)) for v in ids]
    return joined(call, each, len(shape)), shape


def index(call: Call, x: Value, indices: Sequence[Value | None]) -> Value:
    named = {d: v for d, v in enumerate(indices) if v is not None}
    if not named:
        return x
    if any(v.dtype is BOOL for v in named.values()):
        call.leave("the size of its result depends on a mask")
    if len(named) == 1:
        ((axis, ids),) = named.items()
        return read_at(call, x, ids, axis, -x.shape[axis])
    axes = list(named)
    rest = [d for d in range(len(x.shape)) if d not in named]
    rows, shape = _joint_rows(call, x, named)
    y = call.add(gathers.gather_nd, permuted(call, x, [*axes, *rest]), rows)
    if axes[-1] - axes[0] == len(axes) - 1:  # the new dimensions stand where the old ones were
        front = axes[0]
        count = len(shape)
        order = [*range(count, count + front), *range(count), *range(count + front, len(y.shape))]
        y = permuted(call, y, order)
    return y


# writing
def index_put(
    call: Call, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False,
    *, counted_back: bool = True,
) -> Value:  # fmt: skip
    named = {d: v for d, v in enumerate(indices) if v is not None}
    call.need_same(x, values)
    if any(v.dtype is BOOL for v in named.values()):
        return _put_where(call, x, named, values, accumulate)
    axes = list(named)
    rest = [d for d in range(len(x.shape)) if d not in named]
    adjacent = axes[-1] - axes[0] == len(axes) - 1
    rows, shape = _joint_rows(call, x, named, counted_back)
    if adjacent:  # where the dimensions of the indices stand in the values
        front = axes[0]
        whole = (*x.shape[:front], *shape, *x.shape[front + len(axes) :])
        order = [
            *range(front, front + len(shape)), *range(front), *range(front + len(shape), len(whole))
        ]  # fmt: skip
    else:
        whole = (*shape, *(x.shape[d] for d in rest))
        order = list(range(len(whole)))
    updates = permuted(call, expanded(call, values, whole), order)
    count, depth = prod(shape), len(axes)
    if not count or not x.size:
        return x
    target = permuted(call, x, [*axes, *rest])
    updates = shaped(call, updates, (count, *target.shape[depth:]))
    rows = shaped(call, rows, (count, depth))
    if accumulate and x.dtype is BOOL:
        call.leave("it adds up conditions")
    if accumulate:
        y = call.add(scatters.scatter_nd, target, rows, updates, reduction="add")
    else:
        y = put_rows(call, target, rows, updates)
    return permuted(call, y, np.argsort([*axes, *rest]).tolist())


def index_copy(call: Call, x: Value, dim: int, ids: Value, source: Value) -> Value:
    """Other than in index_put, no index may count from the end."""
    named = [None] * call.dim(x, dim) + [shaped(call, ids, (ids.size,))]
    source = call.cast(source, x.dtype)  # what index_fill becomes has a number of any dtype
    return index_put(call, x, named, source, counted_back=False)


def index_add(
    call: Call, x: Value, dim: int, ids: Value, source: Value, *, alpha: Number = 1
) -> Value:
    if alpha != 1:
        call.leave(f"it has a factor of {alpha}")
    named = [None] * call.dim(x, dim) + [shaped(call, ids, (ids.size,))]
    return index_put(call, x, named, source, True, counted_back=False)


def _put_where(
    call: Call, x: Value, named: Mapping[int, Value], values: Value, accumulate: bool
) -> Value:
    """A mask over the first dimensions, and one value for all elements where it is True."""
    mask = named.get(0)
    if len(named) > 1 or mask is None or values.size != 1 or accumulate:
        call.leave("it writes several values by a mask")
    mask = shaped(call, mask, mask.shape + (1,) * (len(x.shape) - len(mask.shape)))
    return call.add(where, mask, shaped(call, values, ()), x)


def scatter(call: Call, x: Value, dim: int, ids: Value, source: Term) -> Value:
    axis, updates = _updates(call, x, dim, ids, source)
    if not ids.size:
        return x
    call.need_range(ids, 0, x.shape[axis])
    return put_along(call, x, ids, updates, axis)


def scatter_reduce(
    call: Call, x: Value, dim: int, ids: Value, source: Value, reduce: str = "sum", *,
    include_self: bool = True,
) -> Value:  # fmt: skip
    how = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}.get(reduce)
    if how is None or not include_self or x.dtype is BOOL:
        call.leave(f"it joins by {reduce!r}, include_self={include_self}")
    axis, updates = _updates(call, x, dim, ids, source)
    if not ids.size:
        return x
    call.need_range(ids, 0, x.shape[axis])
    return call.add(scatters.scatter_elements, x, ids, updates, axis=axis, reduction=how)


def _updates(call: Call, x: Value, dim: int, ids: Value, source: Term) -> tuple[int, Value]:
    """The axis, and updates of the shape of the indices, or one; a source may be larger."""
    if not x.shape or not ids.shape:
        call.leave("an operand is a scalar")
    if not isinstance(source, Value) or not source.shape:
        return dim % len(x.shape), shaped(call, call.value(source, x.dtype), ())
    parts = {d: (0, n, 1) for d, n in enumerate(ids.shape)}
    return dim % len(x.shape), sliced(call, call.cast(source, x.dtype), parts)


# orders
def top_k(
    call: Call, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, ...]:
    axis = call.dim(x, dim)
    if x.shape[axis] > MAX_TOP_K:
        call.leave("its axis is long")
    return call.add_several(search.top_k, x, k=k, axis=axis, largest=largest)


def sort(
    call: Call, x: Value, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Value, ...]:
    count = x.shape[dim] if x.shape else 0
    return top_k(call, x, count, dim, descending)


def fill_where(call: Call, x: Value, mask: Value, value: Number | Value) -> Value:
    return call.add(where, mask, call.value(value, x.dtype), x)


IMPORTERS: Mapping[str, Importer] = {
    "aten.embedding.default": embedding,
    "aten.gather.default": gather,
    "aten.index.Tensor": index,
    "aten.index_add.default": index_add,
    "aten.index_copy.default": index_copy,
    "aten.index_put.default": index_put,
    "aten.index_select.default": index_select,
    **both("masked_fill", fill_where),
    **named("scatter", scatter, "src", "value"),
    "aten.scatter_add.default": scatter_reduce,
    "aten.scatter_reduce.two": scatter_reduce,
    "aten.sort.default": sort,
    "aten.sort.stable": lambda call, x, *, stable=None, dim=-1, descending=False: sort(
        call, x, dim, descending
    ),
    "aten.topk.default": top_k,
}
