"""Convolutions and pooling."""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.frontends.onnx.call import Call, Importer
from tilesmith.graph.graph import Value
from tilesmith.ops.conv import conv1d, conv2d, conv3d
from tilesmith.ops.elementwise import bias_add


def conv(call: Call) -> Value:
    x, w = call.value(0), call.value(1)
    count = len(x.shape) - 2
    function = {1: conv1d, 2: conv2d, 3: conv3d}.get(count)
    if function is None:
        call.refuse(f"its input has {count} spatial dimensions; 1 to 3 are supported")
    pads = call.attribute("pads", (0,) * 2 * count)
    y: Value = call.add(
        function, x, w,
        stride=call.attribute("strides", (1,) * count),
        padding=tuple(zip(pads[:count], pads[count:], strict=True)),
        dilation=call.attribute("dilations", (1,) * count),
        groups=call.attribute("group", 1),
    )  # fmt: skip
    b = call.optional(2)
    return y if b is None else call.add(bias_add, y, b, axis=1)


IMPORTERS: Mapping[str, Importer] = {"Conv": conv}
