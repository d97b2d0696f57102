"""Resizing of images, and sampling at given positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilesmith.frontends.shared.interpolation import Axis, Rule
from tilesmith.frontends.shared.resize import resized
from tilesmith.frontends.torch.call import Call, Importer
from tilesmith.graph.graph import Value
from tilesmith.ops.sample import MODES, PADDINGS
from tilesmith.ops.sample import grid_sample as grid_sample_op

Scales = Sequence[float | None] | float | None


def _resized(call: Call, x: Value, rule: Rule, scales: Sequence[float | None]) -> Value:
    """PyTorch computes positions with the scale that it is given, else with that of the sizes."""
    axes = []
    for d, (old, new) in enumerate(zip(x.shape[2:], call.shape[2:], strict=True)):
        given = scales[d] if d < len(scales) and rule.coordinates != "align_corners" else None
        axes.append(Axis(2 + d, old, new, given or new / old))
    return resized(call, x, axes, rule)


def nearest(call: Call, x: Value, output_size: Sequence[int] | None, *scales: Scales) -> Value:
    """Each output reads the element at floor(place / scale)."""
    return _resized(call, x, Rule("nearest", "asymmetric", "floor"), _flat(scales))


def _flat(scales: Sequence[Scales]) -> list[float | None]:
    """The scales come as one list or one by one."""
    found: list[float | None] = []
    for s in scales:
        found += list(s) if isinstance(s, Sequence) else [s]
    return found


def mixing(mode: str, antialias: bool = False) -> Importer:
    def read(
        call: Call, x: Value, output_size: Sequence[int] | None, align_corners: bool,
        *scales: Scales,
    ) -> Value:  # fmt: skip
        if not x.dtype.is_float:
            call.leave(f"its images are {x.dtype}")
        coordinates = "align_corners" if align_corners else "half_pixel"
        cubic = -0.5 if antialias else -0.75
        rule = Rule(mode, coordinates, antialias=antialias, cubic=cubic)
        return _resized(call, x, rule, _flat(scales))

    return read


def grid_sample(
    call: Call, x: Value, grid: Value, interpolation_mode: int, padding_mode: int,
    align_corners: bool,
) -> Value:  # fmt: skip
    y: Value = call.add(
        grid_sample_op, x, grid, mode=MODES[interpolation_mode],
        padding_mode=PADDINGS[padding_mode], align_corners=align_corners,
    )  # fmt: skip
    return y


def _all(name: str, importer: Importer) -> dict[str, Importer]:
    return {f"aten.{name}.default": importer, f"aten.{name}.vec": importer}


IMPORTERS: Mapping[str, Importer] = {
    **_all("_upsample_bicubic2d_aa", mixing("cubic", antialias=True)),
    **_all("_upsample_bilinear2d_aa", mixing("linear", antialias=True)),
    "aten.grid_sampler_2d.default": grid_sample,
    "aten.grid_sampler_3d.default": grid_sample,
    **_all("upsample_bicubic2d", mixing("cubic")),
    **_all("upsample_bilinear2d", mixing("linear")),
    **_all("upsample_linear1d", mixing("linear")),
    **_all("upsample_nearest1d", nearest),
    **_all("upsample_nearest2d", nearest),
    **_all("upsample_nearest3d", nearest),
    **_all("upsample_trilinear3d", mixing("linear")),
}
