"""The largest or smallest elements along an axis, in order."""

from __future__ import annotations

from tilesmith.base.errors import ExpressionError
from tilesmith.expr import reductions
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.functions import isnan, maximum, minimum
from tilesmith.expr.values import Value, cast, where
from tilesmith.ops.arguments import axis_of, fixed, operator


@operator
def top_k(
    X: Tensor, k: int, axis: int = -1, largest: bool = True, name: str = "top_k"
) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) elements along an axis in order, and their places (int64). Of
    equals the first one comes first, and NaN is larger than all numbers.

    The place of an element in the order is the number of elements before it, which takes the square
    of the axis; it is meant for axes of up to about a thousand.
    """
    a = axis_of(axis, X.ndim)
    n = fixed(f"axis {axis} of X", X.shape_ints[a])
    if not 0 <= k <= n:
        raise ExpressionError(f"k is {k}; axis {axis} of X has {n} elements")

    def at(index: tuple[Value, ...], place: Value) -> Value:
        return X[(*index[:a], place, *index[a + 1 :])]

    def before(x: Value, y: Value) -> Value:
        """Whether x stands before y, leaving equals aside."""
        if x.dtype.kind == "b":
            x, y = cast(x, "uint8"), cast(y, "uint8")
        if not x.dtype.is_float:
            return x > y if largest else x < y
        if largest:
            return (x > y) | (isnan(x) & ~isnan(y))
        return (x < y) | (isnan(y) & ~isnan(x))

    j = reduce_axis(n, name="j")

    def rank(*index: Value) -> Value:
        x, y = at(index, j), X[index]
        # Of a pair of equals, the one in front stands before the other.
        first = where(j < index[a], ~before(y, x), before(x, y))
        return reductions.sum(cast(first, "int32"), j)

    ranks = compute(X.shape_ints, rank, name=f"{name}_rank")
    i = reduce_axis(n, name="i")

    def place(*index: Value) -> Value:
        here = ranks[(*index[:a], i, *index[a + 1 :])]
        return reductions.sum(where(here == cast(index[a], "int32"), cast(i, "int64"), 0), i)

    shape = (*X.shape_ints[:a], k, *X.shape_ints[a + 1 :])
    places = compute(shape, place, name=f"{name}_places")

    def value(*index: Value) -> Value:
        # It is inside already; the bounds say so.
        return at(index, minimum(maximum(places[index], 0), n - 1))

    values = compute(shape, value, name=name)
    return values, places
