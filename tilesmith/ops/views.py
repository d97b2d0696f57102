"""Views: tensors in, one out that reads them at other places. Each is a single stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilesmith.base.errors import ExpressionError
from tilesmith.expr import ints
from tilesmith.expr.dsl import Tensor, compute
from tilesmith.expr.functions import maximum, minimum
from tilesmith.expr.ints import ONE, Int, IntLike, nonnegative, of
from tilesmith.expr.nodes import IntValue
from tilesmith.expr.values import Value, cast, where
from tilesmith.ops.arguments import (
    axis_of,
    broadcast_shape,
    need_equal,
    need_tensor,
    operator,
    pad_pairs,
    per_dim,
    read_broadcast,
    show_shape,
)
from tilesmith.ops.window import padded

PAD_MODES = ("reflect", "edge", "wrap")


@operator
def slice_(
    X: Tensor,
    starts: Sequence[IntLike | None],
    stops: Sequence[IntLike | None],
    steps: Sequence[int | None] | None = None,
    name: str = "slice",
) -> Tensor:
    """X[start:stop:step] in each dimension, as Python counts: negative places from the end, places
    outside brought to the border, None for the whole side.
    """
    given = steps or (None,) * X.ndim
    for what, items in (("starts", starts), ("stops", stops), ("steps", given)):
        if len(items) != X.ndim:
            raise ExpressionError(
                f"{what} {tuple(items)!r} has {len(items)} entries; X has rank {X.ndim}"
            )
    shape: list[Int] = []
    firsts: list[tuple[Int, int]] = []
    for d, (start, stop, step) in enumerate(zip(starts, stops, given, strict=True)):
        extent = X.shape_ints[d]
        if step == 0:
            raise ExpressionError(f"the step of dimension {d} is 0")
        if not start and stop is None and step in (None, 1):
            shape.append(extent)
            firsts.append((of(0), 1))
            continue
        by = step or 1
        first, past = _ends(start, stop, by, extent)
        steps_to_end = (past - first + (by - 1)) // by if by > 0 else (first - past - by - 1) // -by
        shape.append(ints.maximum(steps_to_end, of(0)))
        firsts.append((first, by))

    def body(*index: Value) -> Value:
        return X[tuple(i * by + first for i, (first, by) in zip(index, firsts, strict=True))]

    return compute(shape, body, name=name)


def _ends(start: IntLike | None, stop: IntLike | None, step: int, extent: Int) -> tuple[Int, Int]:
    """The first place of a slice and the one behind its last, as `slice.indices` has them."""
    low, high = (of(0), extent) if step > 0 else (of(-1), extent - 1)

    def inside(place: IntLike | None, default: Int) -> Int:
        if place is None:
            return default
        p = of(place)
        if nonnegative(-p - 1):
            p = p + extent
        up = ints.maximum(p, low)
        return up + high - ints.maximum(up, high)

    return inside(start, low if step > 0 else high), inside(stop, high if step > 0 else low)


@operator
def expand(X: Tensor, shape: Sequence[IntLike], name: str = "expand") -> Tensor:
    """X broadcast to `shape`, as NumPy does: its dimensions of 1 are repeated."""
    wanted = tuple(map(of, shape))
    joint = broadcast_shape(X.shape_ints, wanted)
    if joint != wanted:
        raise ExpressionError(
            f"X of shape {show_shape(X.shape)} does not fit into {show_shape(shape)}"
        )
    return compute(wanted, lambda *i: read_broadcast(X, i), name=name)


@operator
def tile(X: Tensor, repeats: Sequence[int], name: str = "tile") -> Tensor:
    """X repeated as a whole, `repeats[d]` times along dimension d."""
    counts = per_dim("repeats", tuple(repeats), X.ndim, 0) if X.ndim else ()

    def place(i: Value, extent: Int, count: int) -> Any:
        if extent == ONE:
            return 0
        return i if count == 1 or extent.const == 0 else i % extent

    def body(*index: Value) -> Value:
        return X[tuple(map(place, index, X.shape_ints, counts))]

    shape = [n * c for n, c in zip(X.shape_ints, counts, strict=True)]
    return compute(shape, body, name=name)


@operator
def pad_with(
    X: Tensor, value: Tensor, widths: Sequence[int | Sequence[int]] | int, name: str = "pad"
) -> Tensor:
    """X with the element of `value`, a tensor of one element, around it."""
    if any(e != ONE for e in value.shape_ints):
        raise ExpressionError(
            f"value has shape {show_shape(value.shape)}; it must have one element"
        )
    pairs = dict(enumerate(pad_pairs(widths, X.ndim)))
    filled = cast(value[(0,) * value.ndim], X.dtype)
    out = padded(X, pairs, filled, name)
    if out is X:
        out = compute(X.shape_ints, lambda *i: X[i], name=name)
    return out


@operator
def pad_mirrored(
    X: Tensor, widths: Sequence[int | Sequence[int]] | int, mode: str = "reflect", name: str = "pad"
) -> Tensor:
    """X with its own elements around it: mode "reflect" mirrors at the border element, "edge"
    repeats that, "wrap" goes on at the other end.
    """
    if mode not in PAD_MODES:
        raise ExpressionError(f"mode {mode!r} is unknown; it is one of {PAD_MODES}")
    pairs = pad_pairs(widths, X.ndim)
    shape = []
    for d, (extent, pair) in enumerate(zip(X.shape_ints, pairs, strict=True)):
        if any(pair) and extent.const == 0:
            raise ExpressionError(f"dimension {d} of X is empty; there is nothing to repeat")
        shape.append(extent + sum(pair))

    def body(*index: Value) -> Value:
        return X[
            tuple(
                _mirrored(i, pair, e, mode) if any(pair) else i
                for i, pair, e in zip(index, pairs, X.shape_ints, strict=True)
            )
        ]

    return compute(shape, body, name=name)


def _mirrored(i: Value, pair: tuple[int, int], n: Int, mode: str) -> Value | Int | int:
    """The place in X of element i of the padded dimension, as an Int whose bounds are exact."""
    if n == ONE:
        return 0
    assert isinstance(i.node, IntValue)
    before, after = pair
    place = i.node.value - before
    last = n - 1
    if mode == "edge":
        return last - ints.maximum(last - ints.maximum(place, of(0)), of(0))
    if mode == "wrap":
        return (place + (before + n - 1) // n * n) % n
    if nonnegative(n - 1 - max(before, after)):
        return last - _distance(last - _distance(place))
    period = 2 * ints.maximum(n - 1, of(1))  # of a single element, too
    return last - _distance(last - (place + (before + period - 1) // period * period) % period)


def _distance(p: Int) -> Int:
    """|p|, whose lower bound is seen to be 0."""
    return ints.maximum(ints.maximum(p, -p), of(0))


@operator
def trilu(X: Tensor, k: int = 0, upper: bool = True, name: str = "trilu") -> Tensor:
    """The upper (or lower) triangles of a stack of matrices: zero below (above) diagonal k."""
    if X.ndim < 2:
        raise ExpressionError(f"X has rank {X.ndim}; it must be a matrix or a stack of them")

    def body(*index: Value) -> Value:
        across = index[-1] - index[-2]
        return where(across >= k if upper else across <= k, X[index], 0)

    return compute(X.shape_ints, body, name=name)


@operator
def reverse_sequence(
    X: Tensor, lengths: Tensor, batch_axis: int = 1, time_axis: int = 0, name: str = "reverse"
) -> Tensor:
    """The first lengths[b] elements along the time axis turned round, for each b of the batch
    axis.
    """
    need_tensor("lengths", lengths, "B")
    b, t = axis_of(batch_axis, X.ndim), axis_of(time_axis, X.ndim)
    if b == t:
        raise ExpressionError(f"batch_axis and time_axis are both {b}; they must differ")
    need_equal("the extent of lengths", lengths.shape_ints[0], X.shape_ints[b],
               f"dimension {b} of X is")  # fmt: skip

    def body(*index: Value) -> Value:
        length = cast(lengths[index[b]], "int64")
        # A length beyond the tensor must not be read with.
        place = minimum(maximum(length - 1 - index[t], 0), X.shape_ints[t] - 1)
        return where(index[t] < length, X[(*index[:t], place, *index[t + 1 :])], X[index])

    return compute(X.shape_ints, body, name=name)
