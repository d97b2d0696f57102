"""The dtype in which an operator accumulates.

Half precision is summed in float32, and the result cast back. Small integers are summed in int32,
which is also the result.
"""

from __future__ import annotations

from tilesmith.base.dtype import BOOL, FLOAT32, INT32, DType, promote
from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.base.errors import ExpressionError
from tilesmith.expr.values import Value, cast


def accumulator(d: DType) -> DType:
    """The dtype to sum values of dtype d in."""
    if d.bits < 32:
        return FLOAT32 if d.is_float else INT32
    return d


def widen(x: Value) -> Value:
    """x cast to the dtype in which sums and functions of it are computed."""
    return cast(x, accumulator(x.dtype)) if x.dtype.is_float else x


def sum_dtypes(a: DType, b: DType, out: str | DType | None) -> tuple[DType, DType]:
    """(dtype of the sum, dtype of the result) for a sum of products."""
    for d in (a, b):
        if d is BOOL:
            raise ExpressionError("an operand is bool; cast it to a number first")
    both = promote(a, b)
    acc = accumulator(both)
    if out is None:
        return acc, (both if both.is_float else acc)
    result = dtype_named(out)
    if result is BOOL:
        raise ExpressionError("out_dtype is bool; a sum of products is a number")
    if result.kind == acc.kind and result.bits > acc.bits:
        acc = result
    return acc, result
