"""Discrete Fourier transforms as sums over a table of cosines and sines, which is a tensor and as a
rule a constant.
"""

from __future__ import annotations

from tilesmith.base.dtype import promote
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.ints import of
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Value, cast
from tilesmith.ops.arguments import (
    accumulator,
    axis_of,
    fixed,
    need_equal,
    need_tensor,
    operator,
    per_dim,
)


@operator
def fourier(X: Tensor, table: Tensor, axis: int = -2, name: str = "fourier") -> Tensor:
    """X (..., parts) transformed along an axis by table (length, parts, outputs, out parts), where
    parts are the real and imaginary one. A shorter table leaves out the end of the axis. Sums are
    carried out in the dtype of the table where that is the wider one.
    """
    need_tensor("table", table, "length parts outputs out_parts")
    a = axis_of(axis, X.ndim)
    length, parts = table.shape_ints[:2]
    need_equal("the last extent of X", X.shape_ints[-1], parts, "table has parts")
    rn, rp = reduce_axis(length, name="rn"), reduce_axis(parts, name="rp")
    acc = accumulator(promote(X.dtype, table.dtype))

    def body(*index: Value) -> Value:
        at = (*index[:a], rn, *index[a + 1 : -1], rp)
        product = cast(X[at], acc) * cast(table[rn, rp, index[a], index[-1]], acc)
        return cast(sum_over(product, axis=(rn, rp)), X.dtype)

    shape = list(X.shape_ints)
    shape[a], shape[-1] = table.shape_ints[2], table.shape_ints[3]
    return compute(shape, body, name=name)


@operator
def fourier_frames(X: Tensor, table: Tensor, step: int = 1, name: str = "fourier_frames") -> Tensor:
    """fourier of the frames of X (N, L, parts) that begin every `step` elements: (N, frames,
    outputs, out parts).
    """
    need_tensor("X", X, "N L parts")
    need_tensor("table", table, "length parts outputs out_parts")
    (step,) = per_dim("step", step, 1)
    length = fixed("the length of table", table.shape_ints[0])
    total = fixed("the length of X", X.shape_ints[1])
    need_equal("the last extent of X", X.shape_ints[2], table.shape_ints[1], "table has parts")
    rn, rp = reduce_axis(length, name="rn"), reduce_axis(table.shape_ints[1], name="rp")
    acc = accumulator(promote(X.dtype, table.dtype))

    def body(n: Value, f: Value, k: Value, p: Value) -> Value:
        product = cast(X[n, f * step + rn, rp], acc) * cast(table[rn, rp, k, p], acc)
        return cast(sum_over(product, axis=(rn, rp)), X.dtype)

    frames = max((total - length) // step + 1, 0)
    shape = (X.shape_ints[0], of(frames), *table.shape_ints[2:])
    return compute(shape, body, name=name)
