"""Matrix products."""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.frontends.onnx.call import Call, Importer
from tilesmith.frontends.shared.products import product, scaled
from tilesmith.frontends.shared.views import shaped
from tilesmith.graph.graph import Value
from tilesmith.ops.elementwise import add, bias_add
from tilesmith.ops.matmul import matmul
from tilesmith.ops.transform import transpose


def import_matmul(call: Call) -> Value:
    return product(call, call.value(0), call.value(1))


def import_gemm(call: Call) -> Value:
    a, b, c = call.value(0), call.value(1), call.optional(2)
    turn_a, turn_b = (bool(call.attribute(n, 0)) for n in ("transA", "transB"))
    for x in (a, b):
        if len(x.shape) != 2:
            call.refuse(f"{x} must be a matrix")
    if turn_b and call.known(1) is not None:  # constant weights have one form, whoever exported
        b, turn_b = call.add(transpose, b), False
    settings = {"transpose_a": turn_a} if turn_a else {}
    settings |= {"transpose_b": turn_b} if turn_b else {}
    y: Value = call.add(matmul, a, b, **settings)
    y = scaled(call, y, call.attribute("alpha", 1.0))
    beta = call.attribute("beta", 1.0)
    if c is None or beta == 0:
        return y
    c = scaled(call, c, beta)
    if c.shape and c.size == c.shape[-1] == y.shape[1]:
        total: Value = call.add(bias_add, y, shaped(call, c, (y.shape[1],)), axis=-1)
        return total
    total = call.add(add, y, c)
    if total.shape != y.shape:
        call.refuse(f"{c} does not broadcast to the product, of shape {list(y.shape)}")
    return total


IMPORTERS: Mapping[str, Importer] = {"MatMul": import_matmul, "Gemm": import_gemm}
