"""What convolutions and pooling share: the attributes that say where a window slides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilesmith.frontends.onnx.call import Call

Pairs = tuple[tuple[int, int], ...]
AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True, slots=True)
class Sliding:
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: Pairs  # (before, after) per spatial dimension


def spatial_rank(call: Call, k: int = 0) -> int:
    """The number of spatial dimensions of an input (N, C, ...)."""
    count = len(call.value(k).shape) - 2
    if count < 1:
        call.refuse(f"input {call.value(k)} must be (N, C, ...), with a spatial dimension")
    return count


def per_axis(call: Call, name: str, count: int, default: int, least: int) -> tuple[int, ...]:
    """An attribute with one whole number per spatial dimension."""
    values = call.attribute(name, (default,) * count)
    if len(values) != count or any(not isinstance(v, int) or v < least for v in values):
        call.refuse(
            f"attribute {name!r} is {list(values)}; it must be {count} whole number"
            f"{'s' if count > 1 else ''}, each at least {least}"
        )
    return tuple(values)


def pad_attribute(call: Call, count: int) -> Pairs:
    pads = call.attribute("pads", (0,) * 2 * count)
    if len(pads) != 2 * count or any(not isinstance(v, int) or v < 0 for v in pads):
        call.refuse(
            f"attribute 'pads' is {list(pads)}; it must be {2 * count} whole numbers of at least 0"
        )
    return tuple(zip(pads[:count], pads[count:], strict=True))


def auto_pad(call: Call) -> str:
    mode = call.attribute("auto_pad", "NOTSET")
    if mode not in AUTO_PADS:
        call.refuse(f"attribute 'auto_pad' is {mode!r}; it must be one of {', '.join(AUTO_PADS)}")
    return mode


def sliding(call: Call, sizes: Sequence[int], kernel: Sequence[int]) -> Sliding:
    """Strides, dilations and padding of a window of `kernel` over `sizes` elements."""
    count = len(sizes)
    stride = per_axis(call, "strides", count, 1, 1)
    dilation = per_axis(call, "dilations", count, 1, 1)
    mode = auto_pad(call)
    if mode == "NOTSET":
        return Sliding(stride, dilation, pad_attribute(call, count))
    if mode == "VALID":
        return Sliding(stride, dilation, ((0, 0),) * count)
    padding = []
    for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True):
        total = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
        padding.append(halves(total, mode == "SAME_UPPER"))
    return Sliding(stride, dilation, tuple(padding))


def halves(total: int, upper: bool) -> tuple[int, int]:
    """Padding on both sides; of an odd number one more behind (upper) or in front."""
    small = total // 2
    return (small, total - small) if upper else (total - small, small)
