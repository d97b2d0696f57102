"""Determinants of small matrices, by elimination with the largest pivot of each column."""

from __future__ import annotations

from tilesmith.base.errors import ExpressionError
from tilesmith.expr import reductions
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.functions import absolute
from tilesmith.expr.values import Value, cast, where
from tilesmith.ops.arguments import fixed, need_tensor, operator, widen


def _order(X: Tensor) -> int:
    need_tensor("X", X, "batch rows columns")
    n = fixed("the rows of X", X.shape_ints[1])
    if X.shape_ints[1] != X.shape_ints[2] or not X.dtype.is_float or n < 1:
        raise ExpressionError(f"X is {X!r}; it must be of square matrices of floats")
    return n


@operator
def determinant(X: Tensor, name: str = "determinant") -> Tensor:
    """Of matrices (batch, n, n) with n of 1 to 3, by the formula."""
    n = _order(X)
    if n > 3:
        raise ExpressionError(f"X is {X!r}; its order must be at most 3")

    def body(b: Value) -> Value:
        def x(i: int, j: int) -> Value:
            return widen(X[b, i, j])

        def minor(j: int, k: int) -> Value:
            return x(n - 2, j) * x(n - 1, k) - x(n - 2, k) * x(n - 1, j)

        if n == 1:
            d = x(0, 0)
        elif n == 2:
            d = minor(0, 1)
        else:
            d = x(0, 0) * minor(1, 2) - x(0, 1) * minor(0, 2) + x(0, 2) * minor(0, 1)
        return cast(d, X.dtype)

    return compute(X.shape_ints[:1], body, name=name)


@operator
def eliminate(X: Tensor, name: str = "eliminate") -> tuple[Tensor, Tensor]:
    """One step of elimination of matrices (batch, n, n): what is left, (batch, n-1, n-1), and the
    factor by which its determinant is that of X.
    """
    n = _order(X)
    if n < 2:
        raise ExpressionError(f"X is {X!r}; its order must be at least 2")
    k = reduce_axis(n, name="k")
    place = compute(
        X.shape_ints[:1],
        lambda b: reductions.argmax(absolute(X[b, k, 0]), axis=k),
        name=f"{name}_pivot",
        axes=("b",),
    )[0]

    def factor(b: Value) -> Value:
        pivot = X[b, place[b], 0]
        return where(place[b] == 0, pivot, -pivot)  # exchanging rows turns the sign

    def left(b: Value, i: Value, j: Value) -> Value:
        row = where(cast(i + 1, "int64") == place[b], 0, i + 1)
        pivot = X[b, place[b], 0]
        share = where(pivot == 0.0, 0.0, X[b, row, 0] / pivot)
        return X[b, row, j + 1] - share * X[b, place[b], j + 1]

    rest = compute((X.shape_ints[0], n - 1, n - 1), left, name=f"{name}_left")
    by = compute(X.shape_ints[:1], factor, name=name)
    return rest, by
