"""Resizing of images: one axis after the other, by tables of positions and weights."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from tilesmith.base.dtype import FLOAT32
from tilesmith.frontends.shared.building import Building
from tilesmith.frontends.shared.interpolation import Axis, Rule, Table, steps_of, table
from tilesmith.graph.graph import Array, Value
from tilesmith.ops.elementwise import cast, where
from tilesmith.ops.resize import interpolate, resize_nearest, rounded
from tilesmith.ops.transform import take


def resized(
    call: Building, x: Value, axes: Sequence[Axis], rule: Rule, extrapolated: float = 0.0
) -> Value:
    crops = rule.coordinates == "tf_crop_and_resize"
    moved = [
        a for a in axes if a.new != a.old or a.scale != 1 or (crops and (a.start, a.end) != (0, 1))
    ]
    if any(a.old == 0 for a in moved):
        if any(a.old == 0 and a.new for a in moved):
            call.refuse(f"{x} is empty along an axis that grows, so there is nothing to read")
        moved = [a for a in moved if a.old]
    shape = dict(enumerate(x.shape)) | {a.axis: a.new for a in moved}
    call.check_room("its result", *shape.values())
    for a in moved:
        taps = 4 / min(a.scale, 1.0) if rule.antialias else 4
        call.check_room(f"the table of axis {a.axis}", a.new, ceil(min(taps, 1e18)))
    # The axis that shrinks most comes first: what follows has less to do.
    moved = sorted(moved, key=lambda a: a.new / max(a.old, 1))
    tables = [table(rule, a) for a in moved]
    copies = [(a, t.ids[:, 0]) for a, t in zip(moved, tables, strict=True) if t.is_copy]
    y = copied(call, x, copies)
    mixed = [(a, t) for a, t in zip(moved, tables, strict=True) if not t.is_copy]
    if mixed and not x.dtype.is_float:
        y = call.add(cast, y, dtype=FLOAT32.name)
    for a, t in mixed:
        weights = call.constant(t.weights.astype(y.dtype.numpy))
        y = call.add(interpolate, y, call.constant(t.ids.astype(np.int32)), weights, axis=a.axis)
    if mixed and not x.dtype.is_float:
        y = call.add(rounded, y, dtype=x.dtype.name)
    for a, t in zip(moved, tables, strict=True):
        if t.outside.any():
            y = _where_outside(call, y, a, t, extrapolated)
    return y


def copied(call: Building, x: Value, copies: Sequence[tuple[Axis, Array]]) -> Value:
    """All axes whose outputs are single elements, with their places, as one view where whole
    numbers say it.
    """
    steps = []
    y = x
    for a, ids in copies:
        found = steps_of(a, ids)
        if found is None:
            y = call.add(take, y, call.constant(ids.astype(np.int64)), axis=a.axis)
        else:
            steps.append(found)
    return call.add(resize_nearest, y, steps=tuple(steps)) if steps else y


def _where_outside(call: Building, y: Value, a: Axis, t: Table, extrapolated: float) -> Value:
    shape = [1] * len(y.shape)
    shape[a.axis] = a.new
    mask = call.constant(t.outside.reshape(shape))
    value = call.constant(np.asarray(extrapolated).astype(y.dtype.numpy))
    return call.add(where, mask, value, y)
