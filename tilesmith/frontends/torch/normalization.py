"""Normalisations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilesmith.base.dtype import FLOAT32
from tilesmith.frontends.shared.building import shaped
from tilesmith.frontends.torch.call import Call, Importer
from tilesmith.graph.graph import Value
from tilesmith.ops.elementwise import add, multiply
from tilesmith.ops.group_norm import group_norm, rms_norm
from tilesmith.ops.norm import batch_norm as batch_norm_op
from tilesmith.ops.norm import layer_norm as layer_norm_op
from tilesmith.ops.norm import layer_norm_with_statistics, scale_shift

Maybe = Value | None


def _vector(call: Call, v: Maybe, x: Value, filled: float) -> Value:
    """One number for each channel."""
    if v is not None:
        return v
    return call.constant(np.full(x.shape[1], filled, x.dtype.numpy))


def _need_parameters(call: Call, x: Value, *given: Maybe) -> None:
    """Of the dtype of x, or of float32 where x is of a narrower one."""
    narrow = x.dtype.is_float and x.dtype.bits < 32
    if not narrow or any(v is not None and v.dtype is not FLOAT32 for v in given):
        call.need_same(x, *given)


def layer_norm(
    call: Call, x: Value, normalized_shape: Sequence[int], weight: Maybe, bias: Maybe, eps: float
) -> tuple[Value, ...]:
    _need_parameters(call, x, weight, bias)
    first = len(x.shape) - len(normalized_shape)
    axes = tuple(range(first, len(x.shape)))
    given = [] if weight is None else [weight] if bias is None else [weight, bias]
    if not axes or not x.size:
        call.leave(f"its input is {x}")
    function = layer_norm_with_statistics if call.wants(1) or call.wants(2) else layer_norm_op
    y, *both = call.add_several(function, x, *given, axis=axes, epsilon=eps)
    if weight is None and bias is not None:
        y = call.add(add, y, bias)
    return y, *(
        call.cast(shaped(call, v, call.type(k).shape), call.type(k).dtype)
        for k, v in enumerate(both, 1)
    )


def group_normalization(
    call: Call, x: Value, weight: Maybe, bias: Maybe, batch: int, channels: int, size: int,
    group: int, eps: float,
) -> tuple[Value, None, None]:  # fmt: skip
    if call.wants(1) or call.wants(2):
        call.leave("its statistics are read")
    _need_parameters(call, x, weight, bias)
    gamma, beta = _vector(call, weight, x, 1.0), _vector(call, bias, x, 0.0)
    return call.add(group_norm, x, gamma, beta, groups=group, epsilon=eps), None, None


def batch_norm(
    call: Call, x: Value, weight: Maybe, bias: Maybe, mean: Value, var: Value, momentum: float,
    eps: float,
) -> tuple[Value, None, None]:  # fmt: skip
    _need_parameters(call, x, weight, bias, mean, var)
    gamma, beta = _vector(call, weight, x, 1.0), _vector(call, bias, x, 0.0)
    return call.add(batch_norm_op, x, gamma, beta, mean, var, axis=1, epsilon=eps), None, None


def batch_norm_of_itself(
    call: Call, x: Value, weight: Maybe, bias: Maybe, training: bool, momentum: float, eps: float
) -> tuple[Value, None, None]:
    """With the statistics of its input: what instance normalisation becomes."""
    if call.wants(1) or call.wants(2) or not training:
        call.leave("its statistics are read")
    _need_parameters(call, x, weight, bias)
    axes = tuple(d for d in range(len(x.shape)) if d != 1)
    y = call.add(layer_norm_op, x, axis=axes, epsilon=eps)
    if weight is not None or bias is not None:
        gamma, beta = _vector(call, weight, x, 1.0), _vector(call, bias, x, 0.0)
        y = call.add(scale_shift, y, gamma, beta, axis=1)
    return y, None, None


def rms(
    call: Call, x: Value, normalized_shape: Sequence[int], weight: Maybe = None,
    eps: float | None = None,
) -> Value:  # fmt: skip
    if eps is None:
        eps = float(np.finfo(np.float32 if x.dtype.bits < 32 else x.dtype.numpy).eps)
    first = len(x.shape) - len(normalized_shape)
    if weight is None or weight.dtype is x.dtype:
        given = [] if weight is None else [weight]
        return call.add(rms_norm, x, *given, axis=first, epsilon=eps)
    y = call.add(rms_norm, x, axis=first, epsilon=eps)
    return call.pair(multiply, y, weight, call.dtype)


def fused_rms(
    call: Call, x: Value, normalized_shape: Sequence[int], weight: Maybe, eps: float | None
) -> tuple[Value, None]:
    if call.wants(1):
        call.leave("its statistics are read")
    return rms(call, x, normalized_shape, weight, eps), None


IMPORTERS: Mapping[str, Importer] = {
    "aten._fused_rms_norm.default": fused_rms,
    "aten._native_batch_norm_legit.no_stats": batch_norm_of_itself,
    "aten._native_batch_norm_legit_no_training.default": batch_norm,
    "aten.native_group_norm.default": group_normalization,
    "aten.native_layer_norm.default": layer_norm,
    "aten.rms_norm.default": rms,
}
