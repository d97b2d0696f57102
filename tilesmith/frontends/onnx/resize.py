"""Resize and Upsample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilesmith.frontends.onnx.call import Call, Importer
from tilesmith.frontends.shared.interpolation import (
    COORDINATES,
    ROUNDINGS,
    Axis,
    Rule,
)
from tilesmith.frontends.shared.resize import resized
from tilesmith.graph.graph import Value


def resize(call: Call) -> Value:
    if call.version < 11:
        return upsample(call)
    rule = Rule(
        _choice(call, "mode", ("nearest", "linear", "cubic")),
        _choice(call, "coordinate_transformation_mode", COORDINATES),
        _choice(call, "nearest_mode", ROUNDINGS),
        bool(call.attribute("antialias", 0)), bool(call.attribute("exclude_outside", 0)),
        call.attribute("cubic_coeff_a", -0.75),
    )  # fmt: skip
    return resized(
        call, call.value(0), _axes(call, rule), rule, call.attribute("extrapolation_value", 0.0)
    )


def upsample(call: Call) -> Value:
    """Also Resize of opset 10."""
    x, mode = call.value(0), _choice(call, "mode", ("nearest", "linear", "bilinear"))
    scales: Sequence[float] = (
        call.required("scales") if call.has_attribute("scales") else _numbers(call, 1)
    )
    if len(scales) != len(x.shape):
        call.refuse(f"it has {len(scales)} scales for {x}; there must be one for each dimension")
    rule = Rule("nearest" if mode == "nearest" else "linear", "asymmetric", "floor")
    axes = [_scaled(call, d, n, s) for d, (n, s) in enumerate(zip(x.shape, scales, strict=True))]
    return resized(call, x, axes, rule, 0.0)


def _choice(call: Call, name: str, choices: Sequence[str]) -> str:
    value = call.attribute(name, choices[0])
    if value not in choices:
        call.refuse(f"attribute {name!r} is {value!r}; it must be one of {', '.join(choices)}")
    return value


def _numbers(call: Call, k: int) -> list[float]:
    a = call.array(k)
    if a.ndim != 1 or a.dtype.kind not in "iuf":
        call.refuse(f"input {k} is {a.dtype}{list(a.shape)}; it must be a vector of numbers")
    return [float(v) for v in a]


def _scaled(call: Call, axis: int, old: int, scale: float) -> Axis:
    if not scale > 0 or not np.isfinite(scale):
        call.refuse(f"the scale of dimension {axis} is {scale}; it must be above 0")
    return Axis(axis, old, int(np.floor(np.float32(old) * np.float32(scale))), scale)


def _axes(call: Call, rule: Rule) -> list[Axis]:
    """What becomes of each axis that is named; all are where none is."""
    x = call.value(0)
    rank = len(x.shape)
    named = [call.axis(a, rank) for a in call.attribute("axes", tuple(range(rank)))]
    has_sizes = call.has(3) and (call.value(3).size > 0 or rank == 0)
    if has_sizes:
        wanted = call.ints(3)
        axes = _sized(call, named, wanted)
    else:
        scales = _numbers(call, 2)
        if len(scales) != len(named):
            call.refuse(f"it has {len(scales)} scales for {len(named)} axes; they must agree")
        axes = [_scaled(call, d, x.shape[d], s) for d, s in zip(named, scales, strict=True)]
    if rule.coordinates != "tf_crop_and_resize":
        return axes
    roi = _numbers(call, 1)
    if len(roi) != 2 * len(named):
        call.refuse(f"roi has {len(roi)} numbers for {len(named)} axes; it must have two for each")
    return [
        Axis(a.axis, a.old, a.new, a.scale, roi[k], roi[len(named) + k]) for k, a in enumerate(axes)
    ]


def _sized(call: Call, named: Sequence[int], wanted: Sequence[int]) -> list[Axis]:
    shape = call.value(0).shape
    if len(wanted) != len(named) or any(n < 0 for n in wanted):
        call.refuse(f"sizes are {list(wanted)}; there must be one of at least 0 for each axis")
    if any(shape[d] == 0 for d in named):
        call.refuse(f"{call.value(0)} is empty along an axis that is to be resized")
    scales = [n / shape[d] for d, n in zip(named, wanted, strict=True)]
    policy = _choice(
        call, "keep_aspect_ratio_policy", ("stretch", "not_larger", "not_smaller")
    )  # fmt: skip
    if policy != "stretch" and scales:
        one = min(scales) if policy == "not_larger" else max(scales)
        scales = [one] * len(named)
        wanted = [int(np.floor(one * shape[d] + 0.5)) for d in named]
    return [
        Axis(d, shape[d], n, s if s else 1.0) for d, n, s in zip(named, wanted, scales, strict=True)
    ]


IMPORTERS: Mapping[str, Importer] = {"Resize": resize, "Upsample": upsample}
