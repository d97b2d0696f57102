"""Resizing of images, and sampling at given positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from tilesmith.frontends.shared.resize import Axis, Rule, copied, resized
from tilesmith.frontends.torch.call import Call, Importer, named
from tilesmith.graph.graph import Array, Value
from tilesmith.ops.sample import MODES, PADDINGS
from tilesmith.ops.sample import grid_sample as grid_sample_op

Scales = Sequence[float | None] | float | None


def _resized(call: Call, x: Value, rule: Rule, scales: Sequence[float | None]) -> Value:
    """PyTorch computes positions with the scale that it is given, else with that of the sizes."""
    axes = []
    for d, (old, new) in enumerate(zip(x.shape[2:], call.shape[2:], strict=True)):
        given = scales[d] if d < len(scales) and rule.coordinates != "align_corners" else None
        if old == new and (rule.mode == "linear" or rule.antialias):  # copied, whatever the scale
            given = None
        axes.append(Axis(2 + d, old, new, given or new / old))
    return resized(call, x, axes, rule)


def mixing(mode: str, antialias: bool = False) -> Importer:
    """With antialiasing each output is the mean of what it covers of the image, weighted by a
    filter. Corners that are aligned then change the scale only: PyTorch does not move the outputs.
    """

    def read(
        call: Call, x: Value, output_size: Sequence[int] | None, align_corners: bool,
        *scales: Scales,
    ) -> Value:  # fmt: skip
        if not x.dtype.is_float:
            call.leave(f"its images are {x.dtype}")
        given = _flat(scales)
        if not antialias:
            coordinates = "align_corners" if align_corners else "half_pixel"
            return _resized(call, x, Rule(mode, coordinates), given)
        if call.shape[3] == 1 and call.shape[2] != x.shape[2]:
            call.leave("PyTorch resizes columns of one element in its own way")
        if align_corners:
            sizes = zip(x.shape[2:], call.shape[2:], strict=True)
            given = [(new - 1) / (old - 1) if min(old, new) > 1 else inf for old, new in sizes]
        rule = Rule(mode, "half_pixel", antialias=True, exclude_outside=True, cubic=-0.5)
        return _resized(call, x, rule, given)

    return read


def nearest(call: Call, x: Value, output_size: Sequence[int] | None, *scales: Scales) -> Value:
    """Each output reads the element at floor(place / scale), computed in float32."""
    given = _flat(scales)
    copies = []
    for d, (old, new) in enumerate(zip(x.shape[2:], call.shape[2:], strict=True)):
        if not old:
            call.leave("its images are empty")
        scale = given[d] if d < len(given) else None
        step = np.float32(1 / scale) if scale else np.float32(old) / np.float32(new)
        places = np.arange(new)
        ids = np.minimum(np.floor(places.astype(np.float32) * step).astype(np.int64), old - 1)
        copies.append((Axis(2 + d, old, new, scale or new / old), _doubled(call, x, d, ids)))
    return copied(call, x, [(a, ids) for a, ids in copies if not _is_whole(a, ids)])


def _is_whole(a: Axis, ids: Array) -> bool:
    return a.old == a.new and bool((ids == np.arange(a.new)).all())


def _doubled(call: Call, x: Value, d: int, ids: Array) -> Array:
    """One kernel of PyTorch ignores a scale that makes as many elements or twice as many: that for
    small images, or if channels are last and more than 3.
    """
    old, new = x.shape[2 + d], call.shape[2 + d]
    if new not in (old, 2 * old):
        return ids
    exact: Array = np.arange(new) * old // new
    if np.array_equal(ids, exact) or (len(x.shape) == 4 and sum(call.shape[2:]) <= 128):
        return exact
    if len(x.shape) > 3 and x.shape[1] > 3:
        call.leave("its scale is not that of its sizes")
    return ids


def _flat(scales: Sequence[Scales]) -> list[float | None]:
    """The scales come as one list or one by one."""
    found: list[float | None] = []
    for s in scales:
        found += list(s) if isinstance(s, Sequence) else [s]
    return found


def grid_sample(
    call: Call, x: Value, grid: Value, interpolation_mode: int, padding_mode: int,
    align_corners: bool,
) -> Value:  # fmt: skip
    return call.add(
        grid_sample_op, x, grid, mode=MODES[interpolation_mode],
        padding_mode=PADDINGS[padding_mode], align_corners=align_corners,
    )  # fmt: skip


IMPORTERS: Mapping[str, Importer] = {
    **named("_upsample_bicubic2d_aa", mixing("cubic", antialias=True), "default", "vec"),
    **named("_upsample_bilinear2d_aa", mixing("linear", antialias=True), "default", "vec"),
    "aten.grid_sampler_2d.default": grid_sample,
    "aten.grid_sampler_3d.default": grid_sample,
    **named("upsample_bicubic2d", mixing("cubic"), "default", "vec"),
    **named("upsample_bilinear2d", mixing("linear"), "default", "vec"),
    **named("upsample_linear1d", mixing("linear"), "default", "vec"),
    **named("upsample_nearest1d", nearest, "default", "vec"),
    **named("upsample_nearest2d", nearest, "default", "vec"),
    **named("upsample_nearest3d", nearest, "default", "vec"),
    **named("upsample_trilinear3d", mixing("linear"), "default", "vec"),
}
