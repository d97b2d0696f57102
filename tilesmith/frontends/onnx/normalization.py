"""Normalisations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilesmith.frontends.onnx.call import Call, Importer
from tilesmith.frontends.onnx.windows import positive
from tilesmith.frontends.shared.building import shaped
from tilesmith.graph.graph import Value
from tilesmith.ops.elementwise import add, multiply
from tilesmith.ops.group_norm import (
    batch_norm_training,
    group_norm,
    instance_norm,
    local_response_norm,
    lp_normalize,
    rms_norm,
)
from tilesmith.ops.norm import batch_norm, layer_norm, layer_norm_with_statistics
from tilesmith.ops.transform import take


def _fits(call: Call, v: Value, x: Value) -> None:
    """Whether v is broadcast to the shape of x without changing it."""
    tail = x.shape[len(x.shape) - len(v.shape) :]
    if len(v.shape) > len(x.shape) or any(
        a not in (1, b) for a, b in zip(v.shape, tail, strict=True)
    ):
        call.refuse(f"{v} does not broadcast to the shape of {x}")


def layer_normalization(
    call: Call, x: Value, gamma: Value, beta: Value | None = None, *, axis: int = -1,
    epsilon: float = 1e-5, stash_type: int = 1,
) -> Any:  # fmt: skip
    first = call.axis(axis, len(x.shape))
    settings = {"axis": tuple(range(first, len(x.shape))), "epsilon": epsilon}
    affine = [v for v in (gamma, beta) if v is not None]
    inside = all(v.shape == x.shape[first:] for v in affine)
    given = affine if inside else []
    wide = call.wants(1) or call.wants(2)
    norm = layer_norm_with_statistics if wide else layer_norm
    y, *both = call.add_several(norm, x, *given, **settings)
    shape = (*x.shape[:first], *(1,) * (len(x.shape) - first))
    stash = call.element_type(stash_type, "stash_type") if wide else x.dtype
    if not inside:
        for function, v in zip((multiply, add), affine, strict=False):
            _fits(call, v, x)
            y = call.add(function, y, v)
    return y, *(call.cast(shaped(call, v, shape), stash) for v in both)


def rms_normalization(
    call: Call, x: Value, gamma: Value, *, axis: int = -1, epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Value:  # fmt: skip
    first = call.axis(axis, len(x.shape))
    settings = {"axis": first, "epsilon": epsilon}
    if gamma.shape == x.shape[first:]:
        return call.add(rms_norm, x, gamma, **settings)
    _fits(call, gamma, x)
    return call.add(multiply, call.add(rms_norm, x, **settings), gamma)


def group_normalization(
    call: Call, x: Value, gamma: Value, beta: Value, *, num_groups: int, epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Value:  # fmt: skip
    groups = positive(call, "num_groups", num_groups)
    channels = x.shape[1] if len(x.shape) > 1 else 0
    if call.version < 21 and gamma.shape == beta.shape == (groups,) and channels % groups == 0:
        # Opset 18 gave one number for each group.
        ids = call.constant(np.repeat(np.arange(groups), channels // groups))
        gamma, beta = (call.add(take, v, ids, axis=0) for v in (gamma, beta))
    return call.add(group_norm, x, gamma, beta, groups=groups, epsilon=epsilon)


def batch_normalization(
    call: Call, x: Value, gamma: Value, beta: Value, mean: Value, variance: Value, *,
    epsilon: float = 1e-5, momentum: float = 0.9, training_mode: bool = False,
    spatial: bool = True, is_test: bool = False,
) -> Any:  # fmt: skip
    """`spatial` and `is_test` are of old opsets."""
    values = (x, gamma, beta, mean, variance)
    if training_mode:
        return call.add_several(batch_norm_training, *values, epsilon=epsilon, momentum=momentum)
    if call.wants(1):
        call.refuse("it has outputs for statistics, but is not in training mode")
    if not spatial:
        call.refuse("spatial is 0, statistics of each place, which is not supported")
    return call.add(batch_norm, *values, axis=1, epsilon=epsilon)


def lp_normalization(call: Call, x: Value, *, axis: int = -1, p: int = 2) -> Value:
    return call.add(lp_normalize, x, axis=call.axis(axis, len(x.shape)), p=p)


def mean_variance_normalization(
    call: Call, x: Value, *, axes: tuple[int, ...] = (0, 2, 3)
) -> Value:
    along = tuple(call.axis(a, len(x.shape)) for a in axes)
    # ONNX adds 1e-9 to the deviation; its square to the variance is the same but for a deviation
    # as small as that.
    return call.add(layer_norm, x, axis=along, epsilon=1e-18)


IMPORTERS: Mapping[str, Importer] = {
    "BatchNormalization": batch_normalization,
    "GroupNormalization": group_normalization,
    "InstanceNormalization": instance_norm,
    "LRN": local_response_norm,
    "LayerNormalization": layer_normalization,
    "LpNormalization": lp_normalization,
    "MeanVarianceNormalization": mean_variance_normalization,
    "RMSNormalization": rms_normalization,
}
