"""argmax, argmin and top_k: the positions of extreme values along an axis, and the values."""

from __future__ import annotations

from tilesmith.base.dtype import INT32, INT64
from tilesmith.base.errors import ExpressionError
from tilesmith.expr import reductions
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.functions import isnan, maximum, minimum
from tilesmith.expr.ints import product
from tilesmith.expr.values import Value, cast, where
from tilesmith.ops.arguments import axis_of, operator
from tilesmith.ops.transform import reshape


@operator
def argmax(
    X: Tensor, axis: int | None = -1, keepdims: bool = False, last: bool = False,
    name: str = "argmax",
) -> Tensor:  # fmt: skip
    """The position (int64) of the first maximum along an axis; of the first NaN, if there is one.

    With axis=None, the position in X laid out as one row. `keepdims` keeps the axis, as one of 1.
    `last` gives the last of equal ones instead of the first.
    """
    return _position("argmax", X, axis, keepdims, last, name)


@operator
def argmin(
    X: Tensor, axis: int | None = -1, keepdims: bool = False, last: bool = False,
    name: str = "argmin",
) -> Tensor:  # fmt: skip
    """The position (int64) of the first minimum along an axis; of the first NaN, if there is one.

    With axis=None, the position in X laid out as one row. `keepdims` keeps the axis, as one of 1.
    `last` gives the last of equal ones instead of the first.
    """
    return _position("argmin", X, axis, keepdims, last, name)


def _position(
    op: str, X: Tensor, axis: int | None, keepdims: bool, last: bool, name: str
) -> Tensor:
    whole = axis is None
    ndim = X.ndim
    if axis is None:
        X, axis = reshape(X, (product(X.shape_ints),), name=f"{name}_row"), 0
    at = axis_of(axis, X.ndim)
    extent = X.shape_ints[at]
    shape = [n for d, n in enumerate(X.shape_ints) if d != at]
    is_empty = any(n.const == 0 for n in shape)
    if keepdims:
        shape = [product(())] * ndim if whole else [*shape[:at], product(()), *shape[at:]]
    if extent.const == 0 and is_empty:
        return compute(shape, lambda *i: cast(0, "int64"), name=name)
    if extent.const == 0:
        raise ExpressionError(f"axis {axis} of X has no elements, so there is no {op}")
    k = reduce_axis(extent, name="k")
    # Positions of 32 bits fill vectors with as many lanes as values of 32 bits.
    short = extent.const is not None and extent.const <= INT32.highest()
    kind = INT32 if short else INT64

    def body(*index: Value) -> tuple[Value, ...]:
        rest = list(index)
        if keepdims:
            rest = [] if whole else [v for d, v in enumerate(rest) if d != at]
        place = (*rest[:at], extent - 1 - k if last else k, *rest[at:])
        v = X[place]
        v = cast(v, "uint8") if v.dtype.kind == "b" else v
        return reductions.arg_extreme(v, k, op == "argmax", kind)

    names = [f"i{d}" for d in range(len(shape))]
    label = f"{name}_place" if last or short else name
    position = compute(shape, body, name=label, axes=names)[0]
    position.name = label
    if label == name:
        return position

    def counted(*i: Value) -> Value:
        place = cast(position[i], "int64")
        return extent - 1 - place if last else place  # `last` counts from the end

    return compute(shape, counted, name=name)


@operator
def hardmax(X: Tensor, axis: int = -1, name: str = "hardmax") -> Tensor:
    """1 at the first maximum along an axis, 0 elsewhere."""
    at = axis_of(axis, X.ndim)
    if X.shape_ints[at].const == 0:
        return compute(X.shape_ints, lambda *i: X[i], name=name)
    place = argmax(X, axis, name=f"{name}_place")

    def body(*i: Value) -> Value:
        return cast(where(i[at] == place[(*i[:at], *i[at + 1 :])], 1, 0), X.dtype)

    return compute(X.shape_ints, body, name=name)


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
    n = X.shape_ints[a]
    if k < 0 or ((most := n.const) is not None and k > most):
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
