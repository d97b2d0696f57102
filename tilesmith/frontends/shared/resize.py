"""Resizing of images: one axis after the other, by tables of positions and weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import FLOAT32
from tilesmith.frontends.shared.building import Building
from tilesmith.graph.graph import Array, Value
from tilesmith.ops.elementwise import cast, where
from tilesmith.ops.resize import Steps, interpolate, resize_nearest, rounded
from tilesmith.ops.transform import take

COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_crop_and_resize", "tf_half_pixel_for_nn",
)  # fmt: skip
_ROUNDED: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
ROUNDINGS = tuple(_ROUNDED)


@dataclass(frozen=True, slots=True)
class Rule:
    """How positions of the output become positions of the input, and what is read there."""

    mode: str  # nearest, linear or cubic
    coordinates: str
    rounding: str = "round_prefer_floor"
    antialias: bool = False
    exclude_outside: bool = False
    cubic: float = -0.75


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis, from `old` to `new` elements. `start` and `end` crop it, in parts of it."""

    axis: int
    old: int
    new: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    @property
    def is_exact(self) -> bool:
        """Whether the scale is that of the extents. Then whole numbers take its place, so that what
        should be a whole position is one.
        """
        return self.scale == self.new / self.old

    def unscaled(self, x: Array) -> Array:
        return x * self.old / self.new if self.is_exact else x / self.scale


@dataclass(frozen=True, slots=True)
class Table:
    ids: Array  # (new, taps), within the axis
    weights: Array  # of the same shape
    outside: Array  # (new,) bool: outputs beyond the input, where the rule crops

    @property
    def is_copy(self) -> bool:
        """Whether each output is one element."""
        return bool(self.ids.shape[1] == 1)


def positions(rule: Rule, a: Axis) -> Array:
    """Where in the input each output lies."""
    i = np.arange(a.new, dtype=np.float64)
    # Of the output, before it is made a whole number.
    length = float(a.new) if a.is_exact else a.scale * a.old
    match rule.coordinates:
        case "align_corners":
            return i * 0 if length == 1 else i * (a.old - 1) / (length - 1)
        case "asymmetric":
            return a.unscaled(i)
        case "tf_half_pixel_for_nn":
            return a.unscaled(i + 0.5)
        case "tf_crop_and_resize":
            if length == 1:
                return i * 0 + 0.5 * (a.start + a.end) * (a.old - 1)
            step = (a.end - a.start) * (a.old - 1) / (length - 1)
            return a.start * (a.old - 1) + i * step
        case "half_pixel_symmetric":
            offset = a.old / 2 * (1 - a.new / length)
            return offset + a.unscaled(i + 0.5) - 0.5
        case "pytorch_half_pixel" if length == 1:
            return i * 0
        case _:
            return a.unscaled(i + 0.5) - 0.5


def table(rule: Rule, a: Axis) -> Table:
    x = positions(rule, a)
    outside = np.zeros(a.new, bool)
    if rule.coordinates == "tf_crop_and_resize":
        outside = (x < 0) | (x > a.old - 1)
    if rule.mode == "nearest":
        ids = _ROUNDED[rule.rounding](x).astype(np.int64)[:, None]
        return Table(np.clip(ids, 0, a.old - 1), np.ones_like(ids, np.float64), outside)
    # Antialiasing: each output reads all elements that it covers, not just its neighbours.
    shrink = min(a.scale, 1.0) if rule.antialias else 1.0
    reach = int(np.ceil((1 if rule.mode == "linear" else 2) / shrink))
    ids = np.floor(x).astype(np.int64)[:, None] + np.arange(1 - reach, reach + 1)
    distance = np.abs(ids - x[:, None]) * shrink
    weights = np.maximum(1 - distance, 0) if rule.mode == "linear" else _keys(distance, rule.cubic)
    if rule.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    if rule.exclude_outside:
        weights = np.where((ids >= 0) & (ids < a.old), weights, 0)
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    used = np.flatnonzero(weights.any(axis=0))  # by no output else
    used = used if used.size else np.arange(1)
    ids, weights = np.clip(ids[:, used], 0, a.old - 1), weights[:, used]
    single = np.argmax(weights, axis=1)[:, None]
    if np.all(np.take_along_axis(weights, single, 1) == 1) and np.all((weights != 0).sum(1) == 1):
        ids, weights = (np.take_along_axis(t, single, 1) for t in (ids, weights))
    return Table(ids, weights, outside)


def _keys(d: Array, a: float) -> Array:
    """The cubic kernel of Keys at distances d >= 0."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def steps_of(a: Axis, ids: Array) -> Steps | None:
    """The positions as a rule of whole numbers, where they have one: then no table is read."""
    if not 0 < len(ids) < 1 << 20:
        return None
    i = np.arange(len(ids), dtype=np.int64)
    ratios = {Fraction(a.old, a.new), Fraction(1 / a.scale).limit_denominator(1 << 10)}
    if len(ids) > 1:  # a crop, or corners that are aligned
        ratios.add(Fraction(int(ids[-1] - ids[0]), len(ids) - 1))
    for ratio in sorted(ratios, key=lambda r: r.denominator):
        for finer in (1, 2):
            times, per = ratio.numerator * finer, ratio.denominator * finer
            least = int((ids * per - i * times).max())
            most = int(((ids + 1) * per - i * times).min()) - 1
            if least <= most:
                return Steps(a.axis, a.new, times, min(max(0, least), most), per)
    return None


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
