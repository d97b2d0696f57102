"""Operators that read or write at indices given by a tensor. Negative indices count from the end.
Those outside of a tensor are an error; where the model computes them, they give an unspecified
element, or none is written, but other memory is never accessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from tilesmith.frontends.onnx import host_numpy
from tilesmith.frontends.onnx.call import Call, Importer, OnHost, RunOnHost
from tilesmith.frontends.shared.building import shaped
from tilesmith.frontends.shared.indexing import (
    MAX_TOP_K,
    put_along,
    put_rows,
    scatter_elements_array,
    scatter_nd_array,
    taken,
)
from tilesmith.graph.graph import Array, Value
from tilesmith.ops import indices as gathers
from tilesmith.ops import scatter as scatters
from tilesmith.ops import search
from tilesmith.ops.transform import take


def _need_indices(call: Call, v: Value) -> None:
    if not v.dtype.is_int:
        call.refuse(f"the indices {v} must be integers")


# reading
def gather(call: Call, x: Value, ids: Value, *, axis: int = 0) -> Value:
    _need_indices(call, ids)
    axis = call.axis(axis, len(x.shape))
    call.need_range(ids, x.shape[axis])
    return taken(call, x, ids, axis)


def gather_elements(call: Call, x: Value, ids: Value, *, axis: int = 0) -> Value:
    _need_indices(call, ids)
    axis = call.axis(axis, len(x.shape))
    y = call.add(gathers.gather_elements, x, ids, axis=axis)
    call.need_range(ids, x.shape[axis])
    return y


def gather_nd(call: Call, x: Value, ids: Value, *, batch_dims: int = 0) -> Value:
    _need_indices(call, ids)
    y = call.add(gathers.gather_nd, x, ids, batch_dims=batch_dims)
    call.need_range(ids, *x.shape[batch_dims : batch_dims + ids.shape[-1]])
    return y


def one_hot(call: Call, ids: Value, depth: Array, values: Value, *, axis: int = -1) -> Value:
    if depth.size != 1 or values.shape != (2,):
        call.refuse(f"depth {list(depth.shape)} and values {values} must be one and two elements")
    if (count := int(depth.reshape(()))) < 0:
        call.refuse(f"its depth is {count}")
    axis = call.axis(axis, len(ids.shape) + 1)
    return call.add(gathers.one_hot, ids, values, depth=count, axis=axis)


def compress(call: Call, x: Value, condition: Value, *, axis: int | None = None) -> Value:
    if len(condition.shape) != 1:
        call.refuse(f"the condition {condition} must be a vector")
    if (known := call.contents(condition)) is None:
        raise RunOnHost("the size of its result depends on its condition")
    if axis is None:
        x = shaped(call, x, (x.size,))
    axis = call.axis(axis or 0, len(x.shape))
    chosen = np.flatnonzero(known)
    if chosen.size and chosen[-1] >= x.shape[axis]:
        call.refuse(f"its condition is longer than dimension {axis} of {x}")
    return call.add(take, x, call.constant(chosen.astype(np.int64)), axis=axis)


def top_k(
    call: Call, x: Value, k: list[int] | int, *, axis: int = -1, largest: bool = True,
    sorted: bool = True,
) -> tuple[Value, ...]:  # fmt: skip
    axis = call.axis(axis, len(x.shape))
    counts = [k] if isinstance(k, int) else k
    if len(counts) != 1 or not 0 <= counts[0] <= x.shape[axis]:
        call.refuse(f"k is {counts}; dimension {axis} of {x} has {x.shape[axis]} elements")
    if x.shape[axis] > MAX_TOP_K:
        raise RunOnHost(
            "its axis is long", partial(_top_k_array, k=counts[0], axis=axis, largest=largest)
        )
    return call.add_several(search.top_k, x, k=counts[0], axis=axis, largest=largest)


def _top_k_array(
    arrays: Sequence[Array | None], k: int, axis: int, largest: bool
) -> tuple[Array, Array]:
    x = np.asarray(arrays[0])
    # A stable sort of the reverse gives the last of equals first; reversed again it is the first.
    order = np.flip(x, axis) if largest else x
    places = np.argsort(order, axis, kind="stable")
    if largest:
        places = np.flip(x.shape[axis] - 1 - places, axis)
    places = np.take(places, np.arange(k), axis)
    return np.take_along_axis(x, places, axis), places.astype(np.int64)


# writing
def scatter_elements(
    call: Call, x: Value, ids: Value, updates: Value, *, axis: int = 0, reduction: str = "none"
) -> Value:
    _need_indices(call, ids)
    axis = call.axis(axis, len(x.shape))
    call.choice("reduction", reduction, ("none", *scatters.REDUCTIONS))
    if ids.shape != updates.shape or len(ids.shape) != len(x.shape):
        call.refuse(f"{ids} and {updates} must have one shape, of the rank of {x}")
    if updates.dtype is not x.dtype:
        call.refuse(f"{updates} must be of the type of {x}")
    if any(n > m for d, (n, m) in enumerate(zip(ids.shape, x.shape, strict=True)) if d != axis):
        call.refuse(f"{ids} is larger than {x}")
    if not ids.size:
        return x
    call.need_range(ids, x.shape[axis])
    if reduction != "none" and x.dtype.kind == "b":
        raise RunOnHost("it joins conditions", partial(
            _scattered_elements, axis=axis, reduction=reduction))  # fmt: skip
    if reduction == "none":
        return put_along(call, x, ids, updates, axis)
    return call.add(scatters.scatter_elements, x, ids, updates, reduction=reduction, axis=axis)


def _scattered_elements(arrays: Sequence[Array | None], axis: int, reduction: str) -> list[Array]:
    x, ids, updates = map(np.asarray, arrays)
    return [scatter_elements_array(x, ids, updates, axis, reduction)]


def scatter_nd(
    call: Call, x: Value, ids: Value, updates: Value, *, reduction: str = "none"
) -> Value:
    _need_indices(call, ids)
    call.choice("reduction", reduction, ("none", *scatters.REDUCTIONS))
    depth = ids.shape[-1] if ids.shape else 0
    if not 1 <= depth <= len(x.shape):
        call.refuse(f"the last dimension of {ids} must be 1 to {len(x.shape)}, the rank of {x}")
    if updates.shape != (*ids.shape[:-1], *x.shape[depth:]) or updates.dtype is not x.dtype:
        call.refuse(f"{updates} must have the shape of the places {ids} in {x}, and its type")
    rows = prod(ids.shape[:-1])
    if not rows:
        return x
    call.need_range(ids, *x.shape[:depth])
    if reduction != "none" and x.dtype.kind == "b":
        raise RunOnHost("it joins conditions", partial(_scattered_rows, reduction=reduction))
    ids = shaped(call, ids, (rows, depth))
    updates = shaped(call, updates, (rows, *x.shape[depth:]))
    if reduction == "none":
        return put_rows(call, x, ids, updates)
    return call.add(scatters.scatter_nd, x, ids, updates, reduction=reduction)


def _scattered_rows(arrays: Sequence[Array | None], reduction: str) -> list[Array]:
    x, ids, updates = map(np.asarray, arrays)
    return [scatter_nd_array(x, ids, updates, reduction)]


def tensor_scatter(
    call: Call, x: Value, updates: Value, starts: Value | None = None, *, axis: int = -2,
    mode: str = "linear",
) -> Value:  # fmt: skip
    if starts is None:
        starts = call.constant(np.zeros(x.shape[0], np.int64))
    call.choice("mode", mode, ("linear", "circular"))
    axis = call.axis(axis, len(x.shape))
    return call.add(
        scatters.tensor_scatter, x, updates, starts, axis=axis, circular=mode == "circular"
    )


# results whose size is known at run time only
_SIZE = "the size of its result depends on what it reads"


def suppress(
    call: Call, boxes: Value, scores: Value, most: Value | None = None,
    overlap: Value | None = None, least: Value | None = None, *, center_point_box: bool = False,
) -> None:  # fmt: skip
    fits = len(boxes.shape) == len(scores.shape) == 3 and boxes.shape[2] == 4
    if not fits or boxes.shape[:2] != (scores.shape[0], scores.shape[2]):
        call.refuse(f"{boxes} must be (batch, boxes, 4), and {scores} (batch, classes, boxes)")
    raise RunOnHost(_SIZE, partial(host_numpy.non_max_suppression, by_center=center_point_box))


def unique(call: Call, x: Value, *, axis: int | None = None, sorted: bool = True) -> None:
    at = None if axis is None else call.axis(axis, len(x.shape))
    raise RunOnHost(_SIZE, partial(host_numpy.unique, axis=at, is_sorted=sorted))


IMPORTERS: Mapping[str, Importer] = {
    "Compress": compress,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "NonMaxSuppression": suppress,
    "NonZero": OnHost(_SIZE),
    "OneHot": one_hot,
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TensorScatter": tensor_scatter,
    "TopK": top_k,
    "Unique": unique,
}
