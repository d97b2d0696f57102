"""argmax and argmin: the position of an extreme value along an axis."""

from __future__ import annotations

from tilesmith.base.errors import ExpressionError
from tilesmith.expr import reductions
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
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
    find = reductions.argmax if op == "argmax" else reductions.argmin

    def body(*index: Value) -> tuple[Value, ...]:
        rest = list(index)
        if keepdims:
            rest = [] if whole else [v for d, v in enumerate(rest) if d != at]
        place = (*rest[:at], extent - 1 - k if last else k, *rest[at:])
        v = X[place]
        return find(cast(v, "uint8") if v.dtype.kind == "b" else v, axis=k)

    names = [f"i{d}" for d in range(len(shape))]
    label = f"{name}_turned" if last else name
    position = compute(shape, body, name=label, axes=names)[0]
    position.name = label
    if last:  # counted from the end
        turned = position
        position = compute(shape, lambda *i: extent - 1 - turned[i], name=name)
    return position


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
