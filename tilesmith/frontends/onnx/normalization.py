"""Normalisations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilesmith.frontends.onnx.call import Call, Importer
from tilesmith.frontends.onnx.elementwise import cast_to
from tilesmith.frontends.onnx.types import element_type
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
from tilesmith.ops.transform import reshape, take


def _fits(call: Call, v: Value, x: Value) -> None:
    """Whether v is broadcast to the shape of x without changing it."""
    tail = x.shape[len(x.shape) - len(v.shape) :]
    if len(v.shape) > len(x.shape) or any(
        a not in (1, b) for a, b in zip(v.shape, tail, strict=True)
    ):
        call.refuse(f"{v} does not broadcast to the shape of {x}")


def layer_normalization(call: Call) -> Any:
    x, gamma, beta = call.value(0), call.value(1), call.optional(2)
    first = call.axis(call.attribute("axis", -1), len(x.shape))
    settings = {
        "axis": tuple(range(first, len(x.shape))), "epsilon": call.attribute("epsilon", 1e-5)
    }  # fmt: skip
    affine = [v for v in (gamma, beta) if v is not None]
    inside = all(v.shape == x.shape[first:] for v in affine)
    given = affine if inside else []
    mean: Value | None = None
    scale: Value | None = None
    if call.wants(1) or call.wants(2):
        y, mean, scale = call.add(layer_norm_with_statistics, x, *given, **settings)
        shape = (*x.shape[:first], *(1,) * (len(x.shape) - first))
        stash = element_type(call, call.attribute("stash_type", 1), "stash_type").name
        mean, scale = (
            cast_to(call, call.add(reshape, v, shape=shape), stash) for v in (mean, scale)
        )
    else:
        y = call.add(layer_norm, x, *given, **settings)
    if not inside:
        for function, v in zip((multiply, add), affine, strict=False):
            _fits(call, v, x)
            y = call.add(function, y, v)
    return y, mean, scale


def rms_normalization(call: Call) -> Value:
    x, gamma = call.value(0), call.value(1)
    first = call.axis(call.attribute("axis", -1), len(x.shape))
    settings = {"axis": first, "epsilon": call.attribute("epsilon", 1e-5)}
    y: Value
    if gamma.shape == x.shape[first:]:
        y = call.add(rms_norm, x, gamma, **settings)
        return y
    _fits(call, gamma, x)
    y = call.add(multiply, call.add(rms_norm, x, **settings), gamma)
    return y


def group_normalization(call: Call) -> Value:
    x, gamma, beta = (call.value(k) for k in range(3))
    groups = call.required("num_groups")
    if not isinstance(groups, int) or groups < 1:
        call.refuse(f"num_groups is {groups!r}; it must be a whole number from 1 on")
    channels = x.shape[1] if len(x.shape) > 1 else 0
    if call.version < 21 and gamma.shape == beta.shape == (groups,) and channels % groups == 0:
        # Opset 18 gave one number for each group.
        ids = call.constant(np.repeat(np.arange(groups), channels // groups))
        gamma, beta = (call.add(take, v, ids, axis=0) for v in (gamma, beta))
    y: Value = call.add(
        group_norm, x, gamma, beta, groups=groups,
        epsilon=call.attribute("epsilon", 1e-5),
    )  # fmt: skip
    return y


def instance_normalization(call: Call) -> Value:
    y: Value = call.add(
        instance_norm, *(call.value(k) for k in range(3)),
        epsilon=call.attribute("epsilon", 1e-5),
    )  # fmt: skip
    return y


def batch_normalization(call: Call) -> Any:
    values = [call.value(k) for k in range(5)]
    epsilon = call.attribute("epsilon", 1e-5)
    if call.attribute("training_mode", 0):
        momentum = call.attribute("momentum", 0.9)
        return call.add(batch_norm_training, *values, epsilon=epsilon, momentum=momentum)
    if call.wants(1):
        call.refuse("it has outputs for statistics, but is not in training mode")
    if not call.attribute("spatial", 1):
        call.refuse("spatial is 0, statistics of each place, which is not supported")
    return call.add(batch_norm, *values, axis=1, epsilon=epsilon)


def lrn(call: Call) -> Value:
    size = call.required("size")
    if not isinstance(size, int):
        call.refuse(f"size is {size!r}; it must be a whole number")
    y: Value = call.add(
        local_response_norm, call.value(0), size=size,
        alpha=call.attribute("alpha", 1e-4), beta=call.attribute("beta", 0.75),
        bias=call.attribute("bias", 1.0),
    )  # fmt: skip
    return y


def lp_normalization(call: Call) -> Value:
    x = call.value(0)
    y: Value = call.add(
        lp_normalize, x, axis=call.axis(call.attribute("axis", -1), len(x.shape)),
        p=call.attribute("p", 2),
    )  # fmt: skip
    return y


def mean_variance_normalization(call: Call) -> Value:
    x = call.value(0)
    axes = tuple(call.axis(a, len(x.shape)) for a in call.attribute("axes", (0, 2, 3)))
    # ONNX adds 1e-9 to the deviation; its square to the variance is the same but for a deviation
    # as small as that.
    y: Value = call.add(layer_norm, x, axis=axes, epsilon=1e-18)
    return y


IMPORTERS: Mapping[str, Importer] = {
    "BatchNormalization": batch_normalization,
    "GroupNormalization": group_normalization,
    "InstanceNormalization": instance_normalization,
    "LRN": lrn,
    "LayerNormalization": layer_normalization,
    "LpNormalization": lp_normalization,
    "MeanVarianceNormalization": mean_variance_normalization,
    "RMSNormalization": rms_normalization,
}
