"""Activations: element-wise functions with a few numbers as attributes."""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.frontends.onnx.call import Call, Importer
from tilesmith.frontends.onnx.elementwise import unary
from tilesmith.graph.graph import Operator, Value
from tilesmith.ops import activation, elementwise


def with_numbers(function: Operator, **defaults: float) -> Importer:
    """Attributes that are numbers and have the names of the function's settings."""

    def read(call: Call) -> Value:
        given = {name: float(call.attribute(name, d)) for name, d in defaults.items()}
        v: Value = call.add(function, call.value(0), **given)
        return v

    return read


def gelu(call: Call) -> Value:
    v: Value = call.add(
        elementwise.gelu, call.value(0), approximate=call.attribute("approximate", "none")
    )
    return v


def swish(call: Call) -> Value:
    alpha = call.attribute("alpha", 1.0)
    v: Value
    if alpha == 1:
        v = call.add(elementwise.silu, call.value(0))
    else:
        v = call.add(activation.swish, call.value(0), alpha=alpha)
    return v


def prelu(call: Call) -> Value:
    v: Value = call.add(activation.prelu, call.value(0), call.value(1))
    return v


IMPORTERS: Mapping[str, Importer] = {
    "Celu": with_numbers(activation.celu, alpha=1.0),
    "Elu": with_numbers(activation.elu, alpha=1.0),
    "Gelu": gelu,
    "HardSigmoid": with_numbers(activation.hard_sigmoid, alpha=0.2, beta=0.5),
    "HardSwish": unary(activation.hard_swish),
    "LeakyRelu": with_numbers(elementwise.leaky_relu, alpha=0.01),
    "Mish": unary(activation.mish),
    "PRelu": prelu,
    "Relu": unary(elementwise.relu),
    "Selu": with_numbers(activation.selu, alpha=1.6732631921768188, gamma=1.0507010221481323),
    "Shrink": with_numbers(activation.shrink, lambd=0.5, bias=0.0),
    "Sigmoid": unary(elementwise.sigmoid),
    "Softplus": unary(activation.softplus),
    "Softsign": unary(activation.softsign),
    "Swish": swish,
    "ThresholdedRelu": with_numbers(activation.thresholded_relu, alpha=1.0),
}
