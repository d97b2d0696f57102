"""Operators on images: sampling, regions of interest, blocks, resizing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

import numpy as np

from tilesmith.frontends.onnx.call import Call, Importer, OnHost, RunOnHost
from tilesmith.frontends.onnx.signature import Since
from tilesmith.frontends.onnx.windows import Window, pad_attribute, per_axis, spatial_rank
from tilesmith.frontends.shared.resize import COORDINATES, ROUNDINGS, Axis, Rule, resized
from tilesmith.graph.graph import Operator, Value
from tilesmith.ops.blocks import col2im, crop_or_pad, depth_to_space, space_to_depth
from tilesmith.ops.regions import max_roi_pool, roi_align, roi_align_adaptive
from tilesmith.ops.sample import affine_grid, grid_sample

_SAMPLING = {
    "bilinear": "linear", "linear": "linear", "nearest": "nearest", "bicubic": "cubic",
    "cubic": "cubic",
}  # fmt: skip


def sample(
    call: Call, x: Value, grid: Value, *, mode: str = "linear", padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Value:  # fmt: skip
    spatial_rank(call, x)
    if mode not in _SAMPLING:
        call.refuse(f"attribute 'mode' is {mode!r}; it must be linear, nearest or cubic")
    given = x if x.dtype.is_float else call.cast(x, "float32")
    y = call.add(
        grid_sample, given, grid, mode=_SAMPLING[mode], padding_mode=padding_mode,
        align_corners=align_corners,
    )  # fmt: skip
    return y if x.dtype.is_float else call.cast(y, x.dtype)


def affine(call: Call, theta: Value, size: list[int], *, align_corners: bool = False) -> Value:
    if len(size) not in (4, 5) or theta.shape[1:] != (len(size) - 2, len(size) - 1):
        call.refuse(f"size {size} must be (N, C, H, W) or (N, C, D, H, W), and fit {theta}")
    if theta.shape[0] != size[0]:
        call.refuse(f"size {size} is of {size[0]} images, but {theta} has {theta.shape[0]}")
    return call.add(affine_grid, theta, size=tuple(size[2:]), align_corners=align_corners)


def align_regions(
    call: Call, x: Value, boxes: Value, ids: Value, *, mode: str = "avg", output_height: int = 1,
    output_width: int = 1, sampling_ratio: int = 0, spatial_scale: float = 1.0,
    coordinate_transformation_mode: str = "",
) -> Value:  # fmt: skip
    # Opset 16 brought the attribute, with another default than what was meant before.
    default = "half_pixel" if call.version >= 16 else "output_half_pixel"
    where = coordinate_transformation_mode or default
    call.choice("coordinate_transformation_mode", where, ("half_pixel", "output_half_pixel"))
    settings = {
        "size": (output_height, output_width), "scale": spatial_scale,
        "half_pixel": where == "half_pixel",
    }  # fmt: skip
    if sampling_ratio > 0:
        return call.add(roi_align, x, boxes, ids, samples=sampling_ratio, mode=mode, **settings)
    if mode == "avg":
        return call.add(roi_align_adaptive, x, boxes, ids, **settings)
    if call.version < 16:
        call.refuse("the maxima of as many samples as a box has elements need opset 16")
    raise RunOnHost("how many samples a box has depends on its size, known at run time only")


def pool_regions(
    call: Call, x: Value, boxes: Value, *, pooled_shape: tuple[int, ...], spatial_scale: float = 1.0
) -> Value:
    size = per_axis(call, "pooled_shape", pooled_shape, 2)
    return call.add(max_roi_pool, x, boxes, size=size, scale=spatial_scale)


def blocks(function: Operator) -> Importer:
    def read(call: Call, x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
        call.choice("mode", mode, ("DCR", "CRD"))
        return call.add(function, x, block=blocksize, channel_last=mode == "CRD")

    return read


def columns_to_image(
    call: Call, x: Value, image: list[int], block: list[int], **window: Unpack[Window]
) -> Value:
    count = len(image)
    if len(block) != count or count < 1:
        call.refuse(f"image_shape {image} and block_shape {block} must have one entry each")
    return call.add(
        col2im, x, image=tuple(image), block=tuple(block),
        stride=per_axis(call, "strides", window.get("strides"), count),
        padding=pad_attribute(call, window, count),
        dilation=per_axis(call, "dilations", window.get("dilations"), count),
    )  # fmt: skip


def center(call: Call, x: Value, shape: list[int], *, axes: tuple[int, ...] | None = None) -> Value:
    rank = len(x.shape)
    along = [call.axis(a, rank) for a in (range(rank) if axes is None else axes)]
    if len(shape) != len(along) or any(n < 0 for n in shape):
        call.refuse(f"shape {shape} must have one extent for each of the axes {along}")
    starts, full = [0] * rank, list(x.shape)
    for a, n in zip(along, shape, strict=True):
        full[a] = n
        # The odd element is cut off, or added, behind.
        starts[a] = (x.shape[a] - n) // 2 if n <= x.shape[a] else -((n - x.shape[a]) // 2)
    return call.add(crop_or_pad, x, starts=tuple(starts), shape=tuple(full))


# resizing
def resize(
    call: Call, x: Value, roi: Value | None = None, scales: Value | None = None,
    sizes: Value | None = None, *, mode: str = "nearest",
    coordinate_transformation_mode: str = COORDINATES[0], nearest_mode: str = ROUNDINGS[0],
    antialias: bool = False, exclude_outside: bool = False, cubic_coeff_a: float = -0.75,
    extrapolation_value: float = 0.0, axes: tuple[int, ...] | None = None,
    keep_aspect_ratio_policy: str = "stretch",
) -> Value:  # fmt: skip
    rule = Rule(
        call.choice("mode", mode, ("nearest", "linear", "cubic")),
        call.choice("coordinate_transformation_mode", coordinate_transformation_mode, COORDINATES),
        call.choice("nearest_mode", nearest_mode, ROUNDINGS),
        antialias, exclude_outside, cubic_coeff_a,
    )  # fmt: skip
    rank = len(x.shape)
    named = [call.axis(a, rank) for a in (range(rank) if axes is None else axes)]
    if sizes is not None and (sizes.size > 0 or rank == 0):
        moved = _sized(call, x, named, call.ints(sizes), keep_aspect_ratio_policy)
    else:
        if scales is None:
            call.refuse("input 2 is missing; it needs scales or sizes")
        factors = call.floats(scales)
        if len(factors) != len(named):
            call.refuse(f"it has {len(factors)} scales for {len(named)} axes; they must agree")
        moved = [_scaled(call, d, x.shape[d], s) for d, s in zip(named, factors, strict=True)]
    if rule.coordinates == "tf_crop_and_resize":
        if roi is None:
            call.refuse("input 1 is missing; it needs the region to crop")
        part = call.floats(roi)
        if len(part) != 2 * len(named):
            call.refuse(
                f"roi has {len(part)} numbers for {len(named)} axes; it must have two for each"
            )
        ends = zip(part[: len(named)], part[len(named) :], strict=True)
        moved = [Axis(a.axis, a.old, a.new, a.scale, *e) for a, e in zip(moved, ends, strict=True)]
    return resized(call, x, moved, rule, extrapolation_value)


def upsample(call: Call, x: Value, scales: list[float], *, mode: str = "nearest") -> Value:
    """Also Resize of opset 10."""
    call.choice("mode", mode, ("nearest", "linear", "bilinear"))
    if len(scales) != len(x.shape):
        call.refuse(f"it has {len(scales)} scales for {x}; there must be one for each dimension")
    rule = Rule("nearest" if mode == "nearest" else "linear", "asymmetric", "floor")
    axes = [_scaled(call, d, n, s) for d, (n, s) in enumerate(zip(x.shape, scales, strict=True))]
    return resized(call, x, axes, rule, 0.0)


def _scaled(call: Call, axis: int, old: int, scale: float) -> Axis:
    if not scale > 0 or not np.isfinite(scale):
        call.refuse(f"the scale of dimension {axis} is {scale}; it must be above 0")
    return Axis(axis, old, int(np.floor(np.float32(old) * np.float32(scale))), scale)


def _sized(
    call: Call, x: Value, named: Sequence[int], wanted: Sequence[int], policy: str
) -> list[Axis]:
    shape = x.shape
    if len(wanted) != len(named) or any(n < 0 for n in wanted):
        call.refuse(f"sizes are {list(wanted)}; there must be one of at least 0 for each axis")
    if any(shape[d] == 0 for d in named):
        call.refuse(f"{x} is empty along an axis that is to be resized")
    scales = [n / shape[d] for d, n in zip(named, wanted, strict=True)]
    call.choice("keep_aspect_ratio_policy", policy, ("stretch", "not_larger", "not_smaller"))
    if policy != "stretch" and scales:
        one = min(scales) if policy == "not_larger" else max(scales)
        scales = [one] * len(named)
        wanted = [int(np.floor(one * shape[d] + 0.5)) for d in named]
    return [
        Axis(d, shape[d], n, s if s else 1.0) for d, n, s in zip(named, wanted, scales, strict=True)
    ]


IMPORTERS: Mapping[str, Importer | Since] = {
    "AffineGrid": affine,
    "CenterCropPad": center,
    "Col2Im": columns_to_image,
    "DepthToSpace": blocks(depth_to_space),
    "GridSample": sample,
    "ImageDecoder": OnHost("images are decoded by the host's library"),
    "MaxRoiPool": pool_regions,
    "Resize": Since({10: upsample, 11: resize}),
    "RoiAlign": align_regions,
    "SpaceToDepth": blocks(space_to_depth),
    "Upsample": upsample,
}
