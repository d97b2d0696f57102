"""Writes at places that a tensor of indices names: tensors in, one out.

Updates are made in order: of two for one element without a reduction, the last one wins. A negative
index counts from the end; an update outside of the tensor is dropped.
"""

from __future__ import annotations

from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute, updated
from tilesmith.expr.functions import maximum, minimum
from tilesmith.expr.values import Value, cast, where
from tilesmith.ops.arguments import axis_of, fixed, need_equal, need_tensor, operator
from tilesmith.ops.indices import need_indices, need_within, wrapped

REDUCTIONS = ("add", "mul", "max", "min")


def _check(X: Tensor, updates: Tensor, reduction: str) -> None:
    if reduction not in (*REDUCTIONS, "last"):
        raise ExpressionError(
            f"reduction {reduction!r} is unknown; it is one of {(*REDUCTIONS, 'last')}"
        )
    if X.dtype is not updates.dtype or (X.dtype.kind == "b" and reduction != "last"):
        raise ExpressionError(f"X is {X.dtype} and updates {updates.dtype}; they must be "
                              "numbers of one dtype")  # fmt: skip


# along one axis
@operator
def scatter_elements(
    X: Tensor, ids: Tensor, updates: Tensor, axis: int = 0, reduction: str = "add",
    name: str = "scatter",
) -> Tensor:  # fmt: skip
    """X where updates[place] is joined to the element at `place`, but at ids[place] along an
    axis; with the reduction "last" it replaces the element. Updates of rank 0 are one for all.
    """
    _check(X, updates, reduction)
    a = _checked_axis(X, ids, axis)
    if updates.ndim:
        _need_same_shape(ids, updates)

    def body(*index: Value) -> tuple[tuple[Value, ...], Value]:
        place = wrapped(ids[index], X.shape_ints[a])
        return (*index[:a], place, *index[a + 1 :]), updates[index if updates.ndim else ()]

    return updated(X, ids.shape_ints, body, reduction, name=name)


@operator
def last_update(ids: Tensor, X: Tensor, axis: int = 0, name: str = "last_update") -> Tensor:
    """For each element of X the last place along an axis of ids that names it; -1 for none."""
    a = _checked_axis(X, ids, axis)

    def body(*index: Value) -> tuple[tuple[Value, ...], Value]:
        place = wrapped(ids[index], X.shape_ints[a])
        return (*index[:a], place, *index[a + 1 :]), cast(index[a], "int32")

    return updated(_none(X, X.ndim, name), ids.shape_ints, body, "max", name=name)


def _none(X: Tensor, depth: int, name: str) -> Tensor:
    """-1 for each part of X, which the first dimensions name."""
    return compute(X.shape_ints[:depth], lambda *_: cast(-1, "int32"), name=f"{name}_none")


@operator
def put_elements(
    X: Tensor, updates: Tensor, last: Tensor, axis: int = 0, name: str = "scatter"
) -> Tensor:
    """X with the update that `last` names along an axis, where that is not -1."""
    need_within("updates", updates, X, a := axis_of(axis, X.ndim))
    _need_same_shape(X, last)

    def body(*index: Value) -> Value:
        most = [e - 1 for e in updates.shape_ints]
        place = [
            i if updates.shape_ints[d] == X.shape_ints[d] else minimum(i, most[d])
            for d, i in enumerate(index)
        ]
        place[a] = minimum(maximum(last[index], 0), most[a])
        return where(last[index] >= 0, updates[tuple(place)], X[index])

    return compute(X.shape_ints, body, name=name)


def _checked_axis(X: Tensor, ids: Tensor, axis: int) -> int:
    need_indices("ids", ids)
    a = axis_of(axis, X.ndim)
    need_within("ids", ids, X, a)
    return a


def _need_same_shape(A: Tensor, B: Tensor) -> None:
    if A.shape != B.shape:
        raise ExpressionError(f"{A.name} and {B.name} have shapes {A.shape} and {B.shape}; "
                              "they must agree")  # fmt: skip


# at several indices
@operator
def scatter_nd(
    X: Tensor, ids: Tensor, updates: Tensor, reduction: str = "add", name: str = "scatter"
) -> Tensor:
    """X where updates[u] is joined to the part of X at ids[u], a row of indices for the first
    dimensions of X; with the reduction "last" it replaces the part.
    """
    _check(X, updates, reduction)
    depth = _checked_rows(X, ids, updates)

    def body(*index: Value) -> tuple[tuple[Value, ...], Value]:
        u, *rest = index
        row = (wrapped(ids[u, j], X.shape_ints[j]) for j in range(depth))
        return (*row, *rest), updates[index]

    return updated(X, updates.shape_ints, body, reduction, name=name)


@operator
def last_row(ids: Tensor, X: Tensor, name: str = "last_row") -> Tensor:
    """For each part of X the last row of ids that names it; -1 for none."""
    depth = _checked_depth(X, ids)

    def body(u: Value) -> tuple[tuple[Value, ...], Value]:
        row = (wrapped(ids[u, j], X.shape_ints[j]) for j in range(depth))
        return tuple(row), cast(u, "int32")

    return updated(_none(X, depth, name), ids.shape_ints[:1], body, "max", name=name)


@operator
def put_rows(X: Tensor, updates: Tensor, last: Tensor, name: str = "scatter") -> Tensor:
    """X with updates[last] for the parts of X whose `last` is not -1."""
    need_indices("last", last)
    depth = last.ndim

    def body(*index: Value) -> Value:
        row = last[index[:depth]]
        place = minimum(maximum(row, 0), updates.shape_ints[0] - 1)
        return where(row >= 0, updates[(place, *index[depth:])], X[index])

    return compute(X.shape_ints, body, name=name)


def _checked_rows(X: Tensor, ids: Tensor, updates: Tensor) -> int:
    depth = _checked_depth(X, ids)
    want = (ids.shape[0], *X.shape[depth:])
    if updates.shape != want:
        raise ExpressionError(f"updates has shape {updates.shape}; it must be {want}")
    return depth


def _checked_depth(X: Tensor, ids: Tensor) -> int:
    need_indices("ids", ids)
    need_tensor("ids", ids, "U K")
    depth = fixed("the last dimension of ids", ids.shape_ints[1])
    if not 1 <= depth <= X.ndim:
        raise ExpressionError(f"the rows of ids have {depth} indices; X has rank {X.ndim}")
    return depth


# a piece of a cache
@operator
def tensor_scatter(
    X: Tensor, updates: Tensor, starts: Tensor, axis: int = -2, circular: bool = False,
    name: str = "tensor_scatter",
) -> Tensor:  # fmt: skip
    """X with updates along an axis, beginning at starts[b] for each b of the first dimension;
    `circular` goes on at the beginning of the axis.
    """
    need_indices("starts", starts)
    need_tensor("starts", starts, "B")
    a = axis_of(axis, X.ndim)
    if a == 0 or updates.ndim != X.ndim:
        raise ExpressionError(f"the axis is {a} of X {X.shape} and updates {updates.shape}; "
                              "they must have one rank, and the axis must not be 0")  # fmt: skip
    need_equal("the extent of starts", starts.shape_ints[0], X.shape_ints[0], "X begins with")
    for d in range(X.ndim):
        if d != a:
            need_equal(f"dimension {d} of updates", updates.shape_ints[d], X.shape_ints[d],
                       "that of X is")  # fmt: skip
    extent, count = (fixed(f"dimension {a}", t.shape_ints[a]) for t in (X, updates))
    if count > extent:
        raise ExpressionError(f"updates has {count} elements along axis {a}; X has {extent}")

    def body(*index: Value) -> Value:
        t = index[a] - cast(starts[index[0]], "int64")
        if circular:
            t = t % extent
        place = minimum(maximum(t, 0), count - 1)
        new = updates[(*index[:a], place, *index[a + 1 :])]
        return where((t >= 0) & (t < count), new, X[index])

    return compute(X.shape_ints, body, name=name)
