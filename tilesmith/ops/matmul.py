"""Matrix products.

The sum is one stage; a bias or a narrower result dtype is a second stage after it.
"""

from __future__ import annotations

from tilesmith.base.dtype import DType
from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.ints import Int
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Value, cast
from tilesmith.ops.arguments import (
    broadcast_shape,
    need_equal,
    need_tensor,
    operator,
    read_broadcast,
    show_shape,
    sum_dtypes,
)


def _last_two(x: Tensor, transposed: bool) -> tuple[Int, Int]:
    rows, columns = x.shape_ints[-2:]
    return (columns, rows) if transposed else (rows, columns)


def _product(
    A: Tensor, B: Tensor, transpose_a: bool, transpose_b: bool,
    out_dtype: str | DType | None, name: str, labels: tuple[str, ...],
) -> Tensor:  # fmt: skip
    """A @ B over the last two dimensions; leading ones are broadcast."""
    m, k = _last_two(A, transpose_a)
    kb, n = _last_two(B, transpose_b)
    need_equal(f"the inner extent of B {show_shape(B.shape)}", kb, k, "that of A is")
    lead = broadcast_shape(A.shape_ints[:-2], B.shape_ints[:-2])
    acc, result = sum_dtypes(A.dtype, B.dtype, out_dtype)
    r = reduce_axis(k, name="k")

    def body(*index: Value) -> Value:
        *batch, i, j = index
        a = read_broadcast(A, [*batch, r, i] if transpose_a else [*batch, i, r], plain=2)
        b = read_broadcast(B, [*batch, j, r] if transpose_b else [*batch, r, j], plain=2)
        return cast(sum_over(cast(a, acc) * cast(b, acc), axis=r), result)

    return compute((*lead, m, n), body, name=name, axes=(*labels, "i", "j"))


@operator
def matmul(
    A: Tensor, B: Tensor, transpose_a: bool = False, transpose_b: bool = False,
    out_dtype: str | DType | None = None, name: str = "matmul",
) -> Tensor:  # fmt: skip
    """(M, K) times (K, N); an operand with transpose_a or transpose_b is stored transposed."""
    for what, x in (("A", A), ("B", B)):
        if x.ndim != 2:
            raise ExpressionError(
                f"{what} has shape {show_shape(x.shape)}; it must be a matrix of rank 2 "
                "(batch_matmul takes more dimensions, dense a matrix of weights)"
            )
    return _product(A, B, transpose_a, transpose_b, out_dtype, name, ())


@operator
def batch_matmul(
    A: Tensor, B: Tensor, transpose_a: bool = False, transpose_b: bool = False,
    out_dtype: str | DType | None = None, name: str = "batch_matmul",
) -> Tensor:  # fmt: skip
    """(..., M, K) times (..., K, N). Leading dimensions agree, or are 1 or absent on one side."""
    for what, x in (("A", A), ("B", B)):
        if x.ndim < 2:
            raise ExpressionError(
                f"{what} has shape {show_shape(x.shape)}; it must be (batch, rows, columns)"
            )
    rank = max(A.ndim, B.ndim) - 2
    labels = ("b",) if rank == 1 else tuple(f"b{d}" for d in range(rank))
    return _product(A, B, transpose_a, transpose_b, out_dtype, name, labels)


@operator
def dense(
    X: Tensor, W: Tensor, bias: Tensor | None = None,
    out_dtype: str | DType | None = None, name: str = "dense",
) -> Tensor:  # fmt: skip
    """(..., in) times weights (out, in), plus a bias (out)."""
    need_tensor("W", W, "out in")
    if X.ndim < 1:
        raise ExpressionError("X has rank 0; it must be (..., in)")
    n, k = W.shape_ints
    need_equal(f"the last extent of X {show_shape(X.shape)}", X.shape_ints[-1], k,
               f"W {show_shape(W.shape)} (out, in) takes")  # fmt: skip
    if bias is not None:
        need_tensor("bias", bias, "out")
        need_equal("the extent of bias", bias.shape_ints[0], n, "W gives")
    acc, result = sum_dtypes(X.dtype, W.dtype, out_dtype)
    r = reduce_axis(k, name="k")

    def body(*index: Value) -> Value:
        total = sum_over(cast(X[*index[:-1], r], acc) * cast(W[index[-1], r], acc), axis=r)
        if bias is not None:
            total = total + cast(bias[index[-1]], acc)
        return cast(total, result)

    rows = X.ndim - 1
    labels = ("i",) if rows == 1 else tuple(f"i{d}" for d in range(rows))
    return compute((*X.shape_ints[:-1], n), body, name=name, axes=(*labels, "j"))


@operator
def transpose_batch_matmul(
    Q: Tensor, K: Tensor, out_dtype: str | DType | None = None, name: str = "scores"
) -> Tensor:
    """(batch, seq, heads, dim) twice, to (batch, heads, seq, seq): the product Q K^T of each head.

    The batch may be left out of both.
    """
    for what, x in (("Q", Q), ("K", K)):
        if x.ndim not in (3, 4):
            raise ExpressionError(
                f"{what} has shape {show_shape(x.shape)}; "
                "it must be (batch, seq, heads, dim) or (seq, heads, dim)"
            )
    if Q.ndim != K.ndim:
        raise ExpressionError(f"Q has rank {Q.ndim} and K has rank {K.ndim}; they must agree")
    *lead, rows, heads, dim = Q.shape_ints
    for d, what in ((-2, "heads"), (-1, "dim"), (0, "batch")):
        if d != 0 or lead:
            need_equal(f"{what} of K", K.shape_ints[d], Q.shape_ints[d], "Q has")
    acc, result = sum_dtypes(Q.dtype, K.dtype, out_dtype)
    r = reduce_axis(dim, name="k")

    def body(*index: Value) -> Value:
        *b, h, i, j = index
        return cast(sum_over(cast(Q[*b, i, h, r], acc) * cast(K[*b, j, h, r], acc), axis=r), result)

    shape = (*lead, heads, rows, K.shape_ints[-3])
    return compute(shape, body, name=name, axes=(*("b" for _ in lead), "h", "i", "j"))
