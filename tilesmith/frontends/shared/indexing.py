"""Reads and writes at indices that a tensor holds. Constant indices become views or tables. And
scatter with NumPy, for what has no kernel. Updates outside of a tensor are dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilesmith.frontends.shared.building import Building, expanded, shaped, sliced
from tilesmith.graph.graph import Array, Value
from tilesmith.ops import indices as gathers
from tilesmith.ops import scatter as scatters
from tilesmith.ops.transform import take

# TopK counts for every element those before it, which a sort beats on longer axes.
MAX_TOP_K = 1024


def taken(call: Building, x: Value, ids: Value, axis: int) -> Value:
    """x at places along one axis, which the dimensions of ids replace."""
    n, known = x.shape[axis], call.contents(ids)
    if known is None:
        return call.add(gathers.gather, x, ids, axis=axis)
    places = np.where(known < 0, known + n, known).astype(np.int64)
    if (part := _as_slice(places.ravel())) is not None:  # a view
        shape = (*x.shape[:axis], *known.shape, *x.shape[axis + 1 :])
        return shaped(call, sliced(call, x, {axis: part}), shape)
    return call.add(take, x, call.constant(places), axis=axis)


def _as_slice(places: Array) -> tuple[int, int, int] | None:
    """Places that follow each other in equal steps."""
    if not places.size:
        return None
    first, step = int(places[0]), 1 if places.size == 1 else int(places[1] - places[0])
    past = first + step * places.size
    if step == 0 or not np.array_equal(places, np.arange(first, past, step)):
        return None
    # A stop in front of the first element is said by one that is far out.
    return first, past if past >= 0 else -(1 << 62), step


def put_along(call: Building, x: Value, ids: Value, updates: Value, axis: int) -> Value:
    """x with updates[place], or the one update of rank 0, at ids[place] along an axis; the last of
    several wins.
    """
    if (known := call.contents(ids)) is not None:
        updates = expanded(call, updates, ids.shape)
        last = call.constant(last_of_axis(known, x.shape, axis))
        return call.add(scatters.put_elements, x, updates, last, axis=axis)
    return call.add(scatters.scatter_elements, x, ids, updates, axis=axis, reduction="last")


def put_rows(call: Building, x: Value, rows: Value, updates: Value) -> Value:
    """x with updates[u] as the part that rows[u] names, indices of its first dimensions."""
    if (known := call.contents(rows)) is not None:
        last = call.constant(last_of_rows(known, x.shape))
        return call.add(scatters.put_rows, x, updates, last)
    return call.add(scatters.scatter_nd, x, rows, updates, reduction="last")


# with NumPy
_AT: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _wrapped(ids: Array, extent: int) -> Array:
    wide = ids.astype(np.int64)
    return np.where(wide < 0, wide + extent, wide)


def _written(out: Array, places: tuple[Array, ...], updates: Array, reduction: str) -> None:
    """Joins updates to out; of several at one place without a reduction the last one wins."""
    if reduction == "none":
        out[places] = updates  # NumPy assigns in order
    else:
        _AT[reduction].at(out, places, updates)


def scatter_elements_array(
    x: Array, ids: Array, updates: Array, axis: int, reduction: str
) -> Array:
    out = x.copy()
    along = _wrapped(ids, x.shape[axis])
    kept = (along >= 0) & (along < x.shape[axis])
    places = list(np.nonzero(kept))
    places[axis] = along[kept]
    _written(out, tuple(places), updates[kept], reduction)
    return out


def scatter_nd_array(x: Array, ids: Array, updates: Array, reduction: str) -> Array:
    depth = ids.shape[-1]
    rows = ids.reshape(-1, depth)
    new = updates.reshape(len(rows), *x.shape[depth:])
    out = x.copy()
    places, kept = _rows(rows, x.shape)
    _written(out, tuple(p[kept] for p in places), new[kept], reduction)
    return out


def _rows(rows: Array, shape: tuple[int, ...]) -> tuple[list[Array], Array]:
    places = [_wrapped(rows[:, j], shape[j]) for j in range(rows.shape[1])]
    kept = np.ones(len(rows), bool)
    for p, n in zip(places, shape, strict=False):
        kept &= (p >= 0) & (p < n)
    return places, kept


def last_of_axis(ids: Array, shape: tuple[int, ...], axis: int) -> Array:
    """For each element of a tensor the last place along the axis that names it; -1 for none."""
    order = np.arange(ids.shape[axis]).reshape([-1 if d == axis else 1 for d in range(ids.ndim)])
    updates = np.broadcast_to(order, ids.shape).astype(np.int64)
    return scatter_elements_array(np.full(shape, -1, np.int64), ids, updates, axis, "none")


def last_of_rows(rows: Array, shape: tuple[int, ...]) -> Array:
    """For each part of a tensor the last row that names it; -1 for none."""
    depth = rows.shape[1]
    start = np.full(shape[:depth], -1, np.int64)
    return scatter_nd_array(start, rows, np.arange(len(rows)), "none")
