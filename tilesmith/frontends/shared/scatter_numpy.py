"""Scatter with NumPy: for large ones, and for indices that are constants. Updates outside of a
tensor are dropped, as in the kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilesmith.graph.graph import Array

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
