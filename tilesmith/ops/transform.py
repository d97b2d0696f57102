"""Operators that only move elements: transpose, reshape, pad, concatenate, take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute
from tilesmith.expr.intervals import row_major
from tilesmith.expr.ints import ONE, Int, IntLike, exact_quotient, of, product
from tilesmith.expr.values import Number, Value, where
from tilesmith.ops.arguments import (
    axis_of,
    need_equal,
    need_tensor,
    operator,
    pad_pairs,
    show_shape,
)
from tilesmith.ops.window import padded


@operator
def transpose(X: Tensor, axes: Sequence[int] | None = None, name: str = "transpose") -> Tensor:
    """Dimension d of the result is dimension axes[d] of X; by default their order is reversed."""
    order = range(X.ndim)[::-1] if axes is None else axes
    order = [axis_of(a, X.ndim) for a in order]
    if sorted(order) != list(range(X.ndim)):
        raise ExpressionError(f"axes {axes!r} must name each of the {X.ndim} dimensions of X once")

    def body(*index: Value) -> Value:
        return X[tuple(index[order.index(d)] for d in range(X.ndim))]

    return compute([X.shape_ints[d] for d in order], body, name=name)


@operator
def reshape(X: Tensor, shape: Sequence[IntLike], name: str = "reshape") -> Tensor:
    """The elements of X in row-major order under another shape; one extent may be -1."""
    old, new = list(X.shape_ints), _inferred(X, shape)
    # Leading and trailing dimensions that do not change keep their index; the rest is divided.
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    inner = old[head : len(old) - tail]
    empty = any(e.const == 0 for e in old)

    def body(*index: Value) -> Value:
        place: Any = 0
        for i, e in zip(index[head : len(new) - tail], new[head:], strict=False):
            place = place * e + i
        middle: list[Any] = []
        for d, (e, below) in enumerate(zip(inner, row_major(inner), strict=True)):
            if empty or e == ONE:
                middle.append(0)
            else:
                middle.append(place // below % e if d else place // below)
        return X[(*index[:head], *middle, *index[len(new) - tail :])]

    return compute(new, body, name=name)


def _inferred(X: Tensor, shape: Sequence[IntLike]) -> list[Int]:
    """The new shape, with -1 replaced by the extent that fills it."""
    total = product([ONE, *X.shape_ints])
    given = [None if isinstance(e, int) and e == -1 else of(e) for e in shape]
    rest = product([ONE, *(e for e in given if e is not None)])
    if given.count(None) > 1:
        raise ExpressionError(f"shape {show_shape(shape)} has more than one -1")
    left = None if rest.const == 0 else exact_quotient(total, rest)
    new = [left if e is None else e for e in given]
    if left is None if None in given else rest != total:
        raise ExpressionError(
            f"{X.name} of shape {show_shape(X.shape)} has {total} elements, which do not "
            f"fill the shape {show_shape(shape)}"
        )
    return [e for e in new if e is not None]


@operator
def flatten(X: Tensor, name: str = "flatten") -> Tensor:
    """(N, everything else)."""
    if X.ndim == 0:
        raise ExpressionError("X has rank 0; it must have at least one dimension")
    return reshape(X, (X.shape_ints[0], product([ONE, *X.shape_ints[1:]])), name=name)


@operator
def pad(
    X: Tensor, widths: Sequence[int | Sequence[int]] | int, value: Number = 0, name: str = "pad"
) -> Tensor:
    """X with `value` around it: one number, or one number or (before, after) per dimension."""
    out = padded(X, dict(enumerate(pad_pairs(widths, X.ndim))), value, name)
    if out is X:  # the result is a new tensor, even if nothing is added
        out = compute(X.shape_ints, lambda *i: X[i], name=name)
    return out


@operator
def concatenate(
    *given: Tensor | Sequence[Tensor], axis: int = 0, name: str = "concatenate"
) -> Tensor:
    """Tensors, or one list of them, behind each other along an axis; all other extents agree."""
    tensors: list[Any] = []
    for t in given:
        tensors += t if isinstance(t, Sequence) else (t,)
    if not tensors:
        raise ExpressionError("there is nothing to join; give at least one tensor")
    for k, t in enumerate(tensors):
        need_tensor(f"tensor {k}", t)
    first = tensors[0]
    a = axis_of(axis, first.ndim)
    starts: list[Int] = [of(0)]
    for k, t in enumerate(tensors):
        if t.ndim != first.ndim:
            raise ExpressionError(
                f"tensor {k} has rank {t.ndim} and tensor 0 has {first.ndim}; they must agree"
            )
        for d in range(t.ndim):
            if d != a:
                need_equal(f"dimension {d} of tensor {k}", t.shape_ints[d],
                           first.shape_ints[d], "that of tensor 0 is")  # fmt: skip
        starts.append(starts[-1] + t.shape_ints[a])

    def body(*index: Value) -> Value:
        def read(k: int) -> Value:
            t: Tensor = tensors[k]
            return t[(*index[:a], index[a] - starts[k], *index[a + 1 :])]

        # Nothing is read of empty tensors.
        full = [k for k, t in enumerate(tensors) if t.shape_ints[a].const != 0]
        out = read(full[-1] if full else 0)
        for k in reversed(full[:-1]):
            out = where(index[a] < starts[k + 1], read(k), out)
        return out

    shape = (*first.shape_ints[:a], starts[-1], *first.shape_ints[a + 1 :])
    return compute(shape, body, name=name)


@operator
def take(X: Tensor, ids: Tensor, axis: int = 0, name: str = "take") -> Tensor:
    """X at positions `ids` of an axis, which the dimensions of ids replace. 0 <= id < extent."""
    a = axis_of(axis, X.ndim)
    if not ids.dtype.is_int:
        raise ExpressionError(f"ids is {ids.dtype}; it must be of an integer dtype")

    def body(*index: Value) -> Value:
        place = ids[index[a : a + ids.ndim]]
        return X[(*index[:a], place, *index[a + ids.ndim :])]

    shape = (*X.shape_ints[:a], *ids.shape_ints, *X.shape_ints[a + 1 :])
    return compute(shape, body, name=name)


@operator
def embedding(table: Tensor, ids: Tensor, name: str = "embedding") -> Tensor:
    """The rows `ids` of a table (V, D), of shape (..., D)."""
    need_tensor("table", table, "V D")
    return take(table, ids, axis=0, name=name)
