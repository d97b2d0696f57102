"""Checks the arguments of operators and expands settings to one value per dimension.

Every error starts with the operator's name, then says which argument is wrong and what is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor
from tilesmith.expr.ints import Int

PerDim = int | Sequence[int]
Padding = int | Sequence[int | Sequence[int]]


def show_shape(shape: Sequence[Any]) -> str:
    return f"({', '.join(map(str, shape))})"


def need_tensor(op: str, what: str, x: Any, dims: str = "") -> None:
    """Raises unless x is a tensor. `dims` names its dimensions, "N C H W"; empty for any rank."""
    if not isinstance(x, Tensor):
        raise ExpressionError(
            f"{op}: {what} is of type {type(x).__name__}; "
            "it must be a tensor, such as a placeholder"
        )
    words = dims.split()
    if words and x.ndim != len(words):
        raise ExpressionError(
            f"{op}: {what} has shape {show_shape(x.shape)}, which is of rank {x.ndim}; "
            f"it must be of rank {len(words)}: ({', '.join(words)})"
        )


def need_equal(op: str, what: str, extent: Int, expected: Int, because: str) -> None:
    """Raises unless two extents agree: the same number, or the same size variables."""
    if extent != expected:
        raise ExpressionError(
            f"{op}: {what} is {extent}, but {because} {expected}; they must agree"
        )


def fixed(op: str, what: str, extent: Int) -> int:
    """An extent as a number; raises if it is an open size."""
    n = extent.const
    if n is None:
        raise ExpressionError(
            f"{op}: {what} is the open size {extent}; it must be a number here, "
            "so state the operator once per size"
        )
    return n


def axis_of(op: str, axis: int, rank: int) -> int:
    """An axis counted from 0; negative ones count from the end."""
    if isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank:
        raise ExpressionError(
            f"{op}: axis {axis!r} does not exist in a tensor of rank {rank}; "
            f"it must be a whole number from {-rank} to {rank - 1}"
        )
    return axis % rank


def _whole(op: str, what: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ExpressionError(f"{op}: {what} is {value!r}; it must be a whole number")
    n = int(value.__index__())
    if n < least:
        raise ExpressionError(f"{op}: {what} is {n}; it must be at least {least}")
    return n


def per_dim(op: str, what: str, value: PerDim, count: int, least: int = 1) -> tuple[int, ...]:
    """One whole number per spatial dimension; a single number stands for all of them."""
    items: Sequence[Any] = value if isinstance(value, Sequence) else (value,) * count
    if len(items) != count:
        raise ExpressionError(
            f"{op}: {what} {value!r} has {len(items)} entries for {count} spatial "
            f"dimension{'s' if count > 1 else ''}; give one number, or one for each"
        )
    return tuple(_whole(op, what, v, least) for v in items)


def pad_pairs(op: str, padding: Padding, count: int) -> tuple[tuple[int, int], ...]:
    """(before, after) per spatial dimension; one number stands for both sides."""
    items: Sequence[Any] = padding if isinstance(padding, Sequence) else (padding,) * count
    if len(items) != count:
        raise ExpressionError(
            f"{op}: padding {padding!r} has {len(items)} entries for {count} spatial "
            f"dimension{'s' if count > 1 else ''}; give one number, one for each, "
            "or one (before, after) for each"
        )
    out = []
    for item in items:
        sides: Sequence[Any] = item if isinstance(item, Sequence) else (item, item)
        if len(sides) != 2:
            raise ExpressionError(
                f"{op}: padding {item!r} must be a number or a pair (before, after)"
            )
        before, after = (_whole(op, "padding", side, 0) for side in sides)
        out.append((before, after))
    return tuple(out)


def layout_axes(op: str, layout: str, count: int) -> tuple[int, tuple[int, ...]]:
    """The positions of the channel dimension and of the `count` spatial dimensions."""
    letters = "DHW"[3 - count :]
    first, last = f"NC{letters}", f"N{letters}C"
    if layout == first:
        return 1, tuple(range(2, 2 + count))
    if layout == last:
        return 1 + count, tuple(range(1, 1 + count))
    raise ExpressionError(f"{op}: unknown layout {layout!r}; it must be {first!r} or {last!r}")


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """What the dimensions of a batch of images, of any rank, stand for."""

    words: tuple[str, ...]  # one per dimension: N, C, and H, W or others
    channel: int
    spatial: tuple[int, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names for the axes of a stage."""
        return tuple(w.lower() for w in self.words)

    @property
    def window_labels(self) -> tuple[str, ...]:
        """Names for the axes of a window."""
        return tuple(f"r{self.words[d].lower()}" for d in self.spatial)


def image_layout(op: str, X: Tensor, layout: str | None, count: int | None = None) -> ImageLayout:
    """The layout that a name means; without one, channels first at the rank of X. `count` is the
    number of spatial dimensions, where an operator has just one.
    """
    need_tensor(op, "X", X)
    if layout is None:
        n = count or X.ndim - 2
        if n < 1:
            raise ExpressionError(
                f"{op}: X has shape {show_shape(X.shape)}; it must be (N, C, ...), with at least "
                "one spatial dimension"
            )
        letters = list("DHW"[3 - n :]) if n <= 3 else [f"S{k}" for k in range(n)]
        out = ImageLayout(("N", "C", *letters), 1, tuple(range(2, 2 + n)))
    else:
        n = count or min(max(len(layout) - 2, 1), 3)
        channel, spatial = layout_axes(op, layout, n)
        out = ImageLayout(tuple(layout), channel, spatial)
    need_tensor(op, "X", X, " ".join(out.words))
    return out
