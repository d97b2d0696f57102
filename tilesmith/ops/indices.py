"""Reads at places that a tensor of indices names: tensors in, one out.

A negative index counts from the end. One outside of the tensor reads its nearest element, as a
kernel must not leave its memory.
"""

from __future__ import annotations

from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute
from tilesmith.expr.functions import maximum, minimum
from tilesmith.expr.ints import Int, IntLike, of
from tilesmith.expr.values import Value, as_value, cast, where
from tilesmith.ops.arguments import axis_of, fixed, need_equal, need_tensor, operator


def wrapped(index: Value, extent: Int) -> Value:
    """An index with negative ones counted from the end, as int64."""
    i = cast(index, "int64")
    return where(i < 0, i + extent, i) if index.dtype.kind == "i" else i


def inside(index: Value, extent: Int) -> Value:
    """A wrapped index that is within a dimension whatever it is."""
    return minimum(maximum(wrapped(index, extent), 0), as_value(extent - 1))


def need_indices(what: str, x: Tensor) -> None:
    need_tensor(what, x)
    if not x.dtype.is_int:
        raise ExpressionError(f"{what} is {x.dtype}; it must be of an integer dtype")


def _need_elements(X: Tensor, axes: range, ids: Tensor) -> None:
    for d in axes:
        if X.shape_ints[d].const == 0 and all(e.const != 0 for e in ids.shape_ints):
            raise ExpressionError(f"dimension {d} of X is empty, so no index is right")


@operator
def gather(X: Tensor, ids: Tensor, axis: int = 0, name: str = "gather") -> Tensor:
    """X at the places `ids` of an axis; the dimensions of ids take its stead."""
    need_indices("ids", ids)
    a = axis_of(axis, X.ndim)
    _need_elements(X, range(a, a + 1), ids)

    def body(*index: Value) -> Value:
        place = inside(ids[index[a : a + ids.ndim]], X.shape_ints[a])
        return X[(*index[:a], place, *index[a + ids.ndim :])]

    shape = (*X.shape_ints[:a], *ids.shape_ints, *X.shape_ints[a + 1 :])
    return compute(shape, body, name=name)


@operator
def gather_elements(X: Tensor, ids: Tensor, axis: int = 0, name: str = "gather_elements") -> Tensor:
    """X at its own place, but at ids[place] along an axis; of the shape of ids."""
    need_indices("ids", ids)
    a = axis_of(axis, X.ndim)
    need_within("ids", ids, X, a)
    _need_elements(X, range(a, a + 1), ids)

    def body(*index: Value) -> Value:
        place = inside(ids[index], X.shape_ints[a])
        return X[(*index[:a], place, *index[a + 1 :])]

    return compute(ids.shape_ints, body, name=name)


def need_within(what: str, ids: Tensor, X: Tensor, axis: int) -> None:
    """`ids` has the rank of X, and is no larger beside the axis."""
    if ids.ndim != X.ndim:
        raise ExpressionError(f"{what} has rank {ids.ndim}; it must have that of X, {X.ndim}")
    for d in range(X.ndim):
        have, most = (fixed(f"dimension {d}", t.shape_ints[d]) for t in (ids, X))
        if d != axis and have > most:
            raise ExpressionError(
                f"dimension {d} of {what} is {have}; it must not be larger than {most}, that of X"
            )


@operator
def gather_nd(X: Tensor, ids: Tensor, batch_dims: int = 0, name: str = "gather_nd") -> Tensor:
    """X at the places that the rows of ids, its last dimension, name: each row has an index for
    every dimension behind the `batch_dims` first ones, or for some of them, and what is left of X
    is read as a whole.
    """
    need_indices("ids", ids)
    if ids.ndim == 0:
        raise ExpressionError("ids has rank 0; its last dimension must hold the indices")
    b = batch_dims
    if not 0 <= b < ids.ndim or b > X.ndim:
        raise ExpressionError(f"batch_dims is {b}; X has rank {X.ndim}, ids {ids.ndim}")
    for d in range(b):
        need_equal(f"dimension {d} of ids", ids.shape_ints[d], X.shape_ints[d], "that of X is")
    depth = fixed("the last dimension of ids", ids.shape_ints[-1])
    if not 1 <= depth <= X.ndim - b:
        raise ExpressionError(
            f"the last dimension of ids is {depth}; it must be 1 to {X.ndim - b}, the "
            "dimensions of X behind the batch"
        )
    _need_elements(X, range(b, b + depth), ids)
    rows = ids.ndim - 1

    def body(*index: Value) -> Value:
        place = [inside(ids[(*index[:rows], j)], X.shape_ints[b + j]) for j in range(depth)]
        return X[(*index[:b], *place, *index[rows:])]

    shape = (*ids.shape_ints[:-1], *X.shape_ints[b + depth :])
    return compute(shape, body, name=name)


@operator
def one_hot(
    ids: Tensor, values: Tensor, depth: IntLike, axis: int = -1, name: str = "one_hot"
) -> Tensor:
    """A new axis of extent `depth`: values[1] at the index, values[0] elsewhere, and everywhere
    for an index outside of it.
    """
    need_tensor("values", values, "2")
    need_equal("the extent of values", values.shape_ints[0], of(2), "there must be")
    a = axis_of(axis, ids.ndim + 1)
    extent = of(depth)

    def body(*index: Value) -> Value:
        at = cast(ids[(*index[:a], *index[a + 1 :])], "int64")
        return where(where(at < 0, at + extent, at) == index[a], values[1], values[0])

    shape = (*ids.shape_ints[:a], extent, *ids.shape_ints[a:])
    return compute(shape, body, name=name)
