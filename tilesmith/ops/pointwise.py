"""What operators on each element are made of: a function of values in, a stage over all elements
out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilesmith.base.errors import ExpressionError
from tilesmith.expr import values
from tilesmith.expr.dsl import Tensor, compute
from tilesmith.expr.values import Number, Value
from tilesmith.ops.arguments import need_tensor
from tilesmith.ops.broadcast import broadcast_shape, read_broadcast
from tilesmith.ops.precision import widen

Term = Tensor | Number


def each(op: str, X: Tensor, f: Callable[[Value], Value], name: str) -> Tensor:
    need_tensor(op, "X", X)
    out: Tensor = compute(X.shape_ints, lambda *i: f(X[i]), name=name)
    return out


def smooth(op: str, X: Tensor, f: Callable[[Value], Value], name: str) -> Tensor:
    """f in float32 at least, brought back to the dtype of X."""

    def g(x: Value) -> Value:
        y = f(widen(x))
        return values.cast(y, x.dtype) if x.dtype.is_float else y

    return each(op, X, g, name)


def joined(op: str, A: Term, B: Term, f: Callable[[Any, Any], Value], name: str) -> Tensor:
    """f of two operands, of which one may be a number, over their joint shape."""
    tensors = [x for x in (A, B) if isinstance(x, Tensor)]
    for what, x in (("A", A), ("B", B)):
        if not isinstance(x, Tensor | int | float) or not tensors:
            raise ExpressionError(
                f"{op}: {what} is of type {type(x).__name__}; one operand must be a tensor, "
                "the other a tensor or a number"
            )
    shape = broadcast_shape(op, *(x.shape_ints for x in tensors))

    def body(*index: Value) -> Value:
        a, b = (
            read_broadcast(x, index, joint=shape) if isinstance(x, Tensor) else x for x in (A, B)
        )
        return f(a, b)

    out: Tensor = compute(shape, body, name=name)
    return out
