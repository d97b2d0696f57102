"""Losses and determinants."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from tilesmith.frontends.onnx.call import Call, Importer, RunOnHost
from tilesmith.frontends.shared.views import shaped
from tilesmith.graph.graph import Value
from tilesmith.ops.determinant import determinant, eliminate
from tilesmith.ops.elementwise import cast, divide, multiply
from tilesmith.ops.loss import class_weights, nll_loss
from tilesmith.ops.norm import log_softmax
from tilesmith.ops.reduce import reduce_mean, reduce_sum

# Each order is one more step of elimination.
_MAX_ORDER = 16


def _loss(call: Call, x: Value) -> Value:
    """The negative log likelihood of the classes in input 1, reduced as the node says."""
    target, weight = call.value(1), call.optional(2)
    given = [] if weight is None else [weight]
    settings: dict[str, Any] = {}
    if call.has_attribute("ignore_index"):
        settings["ignore"] = call.attribute("ignore_index", 0)
    way = call.attribute("reduction", "mean")
    if way not in ("none", "mean", "sum"):
        call.refuse(f"reduction is {way!r}; it must be none, mean or sum")
    each: Value = call.add(nll_loss, x, target, *given, **settings)
    if way == "none":
        return each
    plain = way == "mean" and not given and not settings
    total: Value = call.add(reduce_mean if plain else reduce_sum, each)
    if plain or way == "sum":
        return total
    weights = call.add(class_weights, target, *given, dtype=x.dtype.name, **settings)
    mean: Value = call.add(divide, total, call.add(reduce_sum, weights))
    return mean


def import_nll_loss(call: Call) -> Value:
    return _loss(call, call.value(0))


def import_cross_entropy(call: Call) -> tuple[Value, ...]:
    if len(call.value(0).shape) < 2:
        call.refuse(f"{call.value(0)} must be (N, C, ...)")
    logs: Value = call.add(log_softmax, call.value(0), axis=1)
    return _loss(call, logs), logs


def import_det(call: Call) -> Value:
    x = call.value(0)
    if len(x.shape) < 2 or x.shape[-1] != x.shape[-2] or not x.dtype.is_float:
        call.refuse(f"{x} must be of square matrices of floats")
    order, lead = x.shape[-1], x.shape[:-2]
    if not 1 <= order <= _MAX_ORDER:
        raise RunOnHost(f"its matrices are of order {order}; kernels are for 1 to {_MAX_ORDER}")
    rest = shaped(call, x, (prod(lead), order, order))
    if x.dtype.bits < 32:
        rest = call.add(cast, rest, dtype="float32")
    factor: Value | None = None
    while rest.shape[1] > 3:
        rest, by = call.add(eliminate, rest)
        factor = by if factor is None else call.add(multiply, factor, by)
    y: Value = call.add(determinant, rest)
    if factor is not None:
        y = call.add(multiply, y, factor)
    if y.dtype is not x.dtype:
        y = call.add(cast, y, dtype=x.dtype.name)
    return shaped(call, y, lead)


IMPORTERS: Mapping[str, Importer] = {
    "Det": import_det,
    "NegativeLogLikelihoodLoss": import_nll_loss,
    "SoftmaxCrossEntropyLoss": import_cross_entropy,
}
