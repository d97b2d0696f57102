"""Element-wise operators."""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.frontends.onnx.call import Call, Importer
from tilesmith.graph.graph import Operator, Value
from tilesmith.ops import elementwise


def unary(function: Operator) -> Importer:
    def read(call: Call) -> Value:
        v: Value = call.add(function, call.value(0))
        return v

    return read


def binary(function: Operator) -> Importer:
    def read(call: Call) -> Value:
        v: Value = call.add(function, call.value(0), call.value(1))
        return v

    return read


IMPORTERS: Mapping[str, Importer] = {
    "Add": binary(elementwise.add),
    "Mul": binary(elementwise.multiply),
    "Sub": binary(elementwise.subtract),
    "Relu": unary(elementwise.relu),
    "Sigmoid": unary(elementwise.sigmoid),
    "Tanh": unary(elementwise.tanh),
}
