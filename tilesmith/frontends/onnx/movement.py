"""Operators that move elements: shapes, orders, slices, indices."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilesmith.frontends.onnx.call import Call, Importer
from tilesmith.graph.graph import Value
from tilesmith.ops.transform import reshape as reshape_tensor


def reshape(call: Call) -> Value:
    x, wanted = call.value(0), call.ints(1)
    zero_means_empty = bool(call.attribute("allowzero", 0))
    shape = [
        x.shape[d] if n == 0 and not zero_means_empty and d < len(x.shape) else n
        for d, n in enumerate(wanted)
    ]
    if -1 in shape:
        known = int(np.prod([n for n in shape if n != -1]))
        if shape.count(-1) > 1 or known == 0 or x.size % known:
            call.refuse(f"{x} has {x.size} elements, which do not fill the shape {wanted}")
        shape[shape.index(-1)] = x.size // known
    out: Value = call.add(reshape_tensor, x, shape=tuple(shape))
    return out


def identity(call: Call) -> Value:
    return call.value(0)


def constant(call: Call) -> Value:
    return call.constant(call.required("value"))


IMPORTERS: Mapping[str, Importer] = {
    "Reshape": reshape,
    "Identity": identity,
    "Constant": constant,
}
