"""Operators on images: sampling, regions of interest, blocks."""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.frontends.onnx.call import Call, Importer, OnHost, RunOnHost
from tilesmith.frontends.onnx.windows import pad_attribute, per_axis, spatial_rank
from tilesmith.graph.graph import Value
from tilesmith.ops.blocks import col2im, crop_or_pad, depth_to_space, space_to_depth
from tilesmith.ops.elementwise import cast
from tilesmith.ops.regions import max_roi_pool, roi_align, roi_align_adaptive
from tilesmith.ops.sample import affine_grid, grid_sample

_SAMPLING = {
    "bilinear": "linear", "linear": "linear", "nearest": "nearest", "bicubic": "cubic",
    "cubic": "cubic",
}  # fmt: skip


def sample(call: Call) -> Value:
    x, grid = call.value(0), call.value(1)
    spatial_rank(call)
    mode = call.attribute("mode", "linear")
    if mode not in _SAMPLING:
        call.refuse(f"attribute 'mode' is {mode!r}; it must be linear, nearest or cubic")
    given = x
    if not x.dtype.is_float:
        given = call.add(cast, x, dtype="float32")
    y: Value = call.add(
        grid_sample, given, grid, mode=_SAMPLING[mode],
        padding_mode=call.attribute("padding_mode", "zeros"),
        align_corners=bool(call.attribute("align_corners", 0)),
    )  # fmt: skip
    return y if x.dtype.is_float else call.add(cast, y, dtype=x.dtype.name)


def affine(call: Call) -> Value:
    theta, size = call.value(0), call.ints(1)
    if len(size) not in (4, 5) or theta.shape[1:] != (len(size) - 2, len(size) - 1):
        call.refuse(f"size {size} must be (N, C, H, W) or (N, C, D, H, W), and fit {theta}")
    if theta.shape[0] != size[0]:
        call.refuse(f"size {size} is of {size[0]} images, but {theta} has {theta.shape[0]}")
    align = bool(call.attribute("align_corners", 0))
    y: Value = call.add(affine_grid, theta, size=tuple(size[2:]), align_corners=align)
    return y


def align_regions(call: Call) -> Value:
    # Opset 16 brought the attribute, with another default than what was meant before.
    default = "half_pixel" if call.version >= 16 else "output_half_pixel"
    where = call.attribute("coordinate_transformation_mode", default)
    if where not in ("half_pixel", "output_half_pixel"):
        call.refuse(
            f"attribute 'coordinate_transformation_mode' is {where!r}; it must be half_pixel or "
            "output_half_pixel"
        )
    samples, mode = call.attribute("sampling_ratio", 0), call.attribute("mode", "avg")
    settings = {
        "size": (call.attribute("output_height", 1), call.attribute("output_width", 1)),
        "scale": call.attribute("spatial_scale", 1.0), "half_pixel": where == "half_pixel",
    }  # fmt: skip
    y: Value
    if samples > 0:
        y = call.add(roi_align, *call.values, samples=samples, mode=mode, **settings)
    elif mode == "avg":
        y = call.add(roi_align_adaptive, *call.values, **settings)
    elif call.version < 16:
        call.refuse("the maxima of as many samples as a box has elements need opset 16")
    else:
        raise RunOnHost("how many samples a box has depends on its size, known at run time only")
    return y


def pool_regions(call: Call) -> Value:
    call.required("pooled_shape")
    y: Value = call.add(
        max_roi_pool, call.value(0), call.value(1), size=per_axis(call, "pooled_shape", 2, 1, 1),
        scale=call.attribute("spatial_scale", 1.0),
    )  # fmt: skip
    return y


def to_space(call: Call) -> Value:
    mode = _block_mode(call)
    block = call.required("blocksize")
    y: Value = call.add(depth_to_space, call.value(0), block=block, channel_last=mode == "CRD")
    return y


def to_depth(call: Call) -> Value:
    mode = _block_mode(call)
    block = call.required("blocksize")
    y: Value = call.add(space_to_depth, call.value(0), block=block, channel_last=mode == "CRD")
    return y


def _block_mode(call: Call) -> str:
    mode = call.attribute("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        call.refuse(f"attribute 'mode' is {mode!r}; it must be DCR or CRD")
    return mode


def columns_to_image(call: Call) -> Value:
    image, block = call.ints(1), call.ints(2)
    count = len(image)
    if len(block) != count or count < 1:
        call.refuse(f"image_shape {image} and block_shape {block} must have one entry each")
    y: Value = call.add(
        col2im, call.value(0), image=tuple(image), block=tuple(block),
        stride=per_axis(call, "strides", count, 1, 1), padding=pad_attribute(call, count),
        dilation=per_axis(call, "dilations", count, 1, 1),
    )  # fmt: skip
    return y


def center(call: Call) -> Value:
    x, wanted = call.value(0), call.ints(1)
    rank = len(x.shape)
    axes = [call.axis(a, rank) for a in call.attribute("axes", tuple(range(rank)))]
    if len(wanted) != len(axes) or any(n < 0 for n in wanted):
        call.refuse(f"shape {wanted} must have one extent for each of the axes {axes}")
    starts, shape = [0] * rank, list(x.shape)
    for a, n in zip(axes, wanted, strict=True):
        shape[a] = n
        # The odd element is cut off, or added, behind.
        starts[a] = (x.shape[a] - n) // 2 if n <= x.shape[a] else -((n - x.shape[a]) // 2)
    y: Value = call.add(crop_or_pad, x, starts=tuple(starts), shape=tuple(shape))
    return y


IMPORTERS: Mapping[str, Importer] = {
    "AffineGrid": affine,
    "CenterCropPad": center,
    "Col2Im": columns_to_image,
    "DepthToSpace": to_space,
    "GridSample": sample,
    "ImageDecoder": OnHost("images are decoded by the host's library"),
    "MaxRoiPool": pool_regions,
    "RoiAlign": align_regions,
    "SpaceToDepth": to_depth,
}
