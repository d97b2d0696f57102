"""Operators that create tensors, such as zeros and arange: they become constants of the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilesmith.frontends.torch.call import Call, Importer, Number
from tilesmith.graph.graph import Value


def _filled(call: Call, number: Number) -> Value:
    """A view of one element, whatever its shape."""
    one = np.asarray(number).astype(call.dtype.numpy)
    return call.constant(np.broadcast_to(one, call.shape))


def full(call: Call, size: Sequence[int], fill_value: Number, **_: Any) -> Value:
    return _filled(call, fill_value)


def full_like(call: Call, x: Value, fill_value: Number, **_: Any) -> Value:
    return _filled(call, fill_value)


def filled(number: Number) -> Importer:
    """The first argument is a size or a tensor of that size."""

    def read(call: Call, like: Any, *_: Any, **__: Any) -> Value:
        return _filled(call, number)

    return read


def scalar_tensor(call: Call, number: Number, **_: Any) -> Value:
    return _filled(call, number)


def arange(call: Call, start: Number, end: Number, step: Number = 1, **_: Any) -> Value:
    count = call.shape[0]
    if call.dtype.is_float:
        return call.constant((start + np.arange(count) * step).astype(call.dtype.numpy))
    whole = np.arange(count) * int(step) + int(start)
    return call.constant(whole.astype(call.dtype.numpy))


def up_to(call: Call, end: Number, **_: Any) -> Value:
    return arange(call, 0, end)


IMPORTERS: Mapping[str, Importer] = {
    "aten.arange.default": up_to,
    "aten.arange.start": arange,
    "aten.arange.start_step": arange,
    "aten.empty.memory_format": filled(0),
    "aten.empty_like.default": filled(0),
    "aten.full.default": full,
    "aten.full_like.default": full_like,
    "aten.new_empty.default": filled(0),
    "aten.new_full.default": lambda call, x, size, value, **_: _filled(call, value),
    "aten.new_ones.default": filled(1),
    "aten.new_zeros.default": filled(0),
    "aten.ones.default": filled(1),
    "aten.ones_like.default": filled(1),
    "aten.scalar_tensor.default": scalar_tensor,
    "aten.zeros.default": filled(0),
    "aten.zeros_like.default": filled(0),
}
