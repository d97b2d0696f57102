"""argmax and argmin: the position of an extreme value along an axis."""

from __future__ import annotations

from tilesmith.base.errors import ExpressionError
from tilesmith.expr import dsl
from tilesmith.expr.dsl import compute, reduce_axis
from tilesmith.expr.ints import product
from tilesmith.expr.values import Tensor, Value, cast
from tilesmith.ops.arguments import axis_of, need_tensor
from tilesmith.ops.transform import reshape


def argmax(
    X: Tensor, axis: int | None = -1, keepdims: bool = False, name: str = "argmax"
) -> Tensor:
    """The position (int64) of the first maximum along an axis; of the first NaN, if there is one.

    With axis=None, the position in the flattened X. `keepdims` keeps the axis with extent 1.
    """
    return _position("argmax", X, axis, keepdims, name)


def argmin(
    X: Tensor, axis: int | None = -1, keepdims: bool = False, name: str = "argmin"
) -> Tensor:
    """The position (int64) of the first minimum along an axis; of the first NaN, if there is one.

    With axis=None, the position in the flattened X. `keepdims` keeps the axis with extent 1.
    """
    return _position("argmin", X, axis, keepdims, name)


def _position(op: str, X: Tensor, axis: int | None, keepdims: bool, name: str) -> Tensor:
    need_tensor(op, "X", X)
    whole = axis is None
    ndim = X.ndim
    if axis is None:
        X, axis = reshape(X, (product(X.shape_ints),), name=f"{name}_row"), 0
    at = axis_of(op, axis, X.ndim)
    if X.shape_ints[at].const == 0:
        raise ExpressionError(f"{op}: axis {axis} of X has no elements, so there is no {op}")
    extent = X.shape_ints[at]
    k = reduce_axis(extent, name="k")
    find = dsl.argmax if op == "argmax" else dsl.argmin

    def body(*index: Value) -> tuple[Value, ...]:
        rest = list(index)
        if keepdims:
            rest = [] if whole else [v for d, v in enumerate(rest) if d != at]
        place = (*rest[:at], k, *rest[at:])
        v = X[place]
        return find(cast(v, "uint8") if v.dtype.kind == "b" else v, axis=k)

    shape = [n for d, n in enumerate(X.shape_ints) if d != at]
    if keepdims:
        shape = [product(())] * ndim if whole else [*shape[:at], product(()), *shape[at:]]
    names = [f"i{d}" for d in range(len(shape))]
    position: Tensor = compute(shape, body, name=name, axes=names)[0]
    position.name = name
    return position
