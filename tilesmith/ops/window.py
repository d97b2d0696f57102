"""Sliding windows: the number of their positions, and the padded tensor they read."""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute
from tilesmith.expr.ints import Int, IntLike
from tilesmith.expr.values import Number, Value, where
from tilesmith.ops.arguments import operator


def output_extent(
    letter: str, size: int, kernel: int, stride: int, pad: tuple[int, int], dilation: int
) -> int:
    """The number of positions of a window."""
    if kernel < 1:
        raise ExpressionError(f"the kernel has extent {kernel} in {letter}; at least 1")
    reach = dilation * (kernel - 1) + 1
    room = size + sum(pad)
    if reach > room:
        raise ExpressionError(
            f"in {letter} the kernel reaches over {reach} elements but the padded input has "
            f"{room}; make the kernel smaller or the padding larger"
        )
    return (room - reach) // stride + 1


def open_output_extent(
    letter: str, size: Int, kernel: int, stride: int, pad: tuple[int, int], dilation: int
) -> IntLike:
    """The same where the size may be open. A window that does not fit is an error of the call."""
    if (n := size.const) is not None:
        return output_extent(letter, n, kernel, stride, pad, dilation)
    if kernel < 1:
        raise ExpressionError(f"the kernel has extent {kernel} in {letter}; at least 1")
    return (size + (sum(pad) - dilation * (kernel - 1) - 1)) // stride + 1


@operator
def padded(
    X: Tensor, pads: Mapping[int, tuple[int, int]], value: Number | Value, name: str = "pad"
) -> Tensor:
    """X with (before, after) elements of `value` along the given dimensions; X if there is none."""
    moved = {d: p for d, p in pads.items() if p != (0, 0)}
    if not moved:
        return X
    shape = [n + sum(pads.get(d, (0, 0))) for d, n in enumerate(X.shape_ints)]

    def body(*index: Value) -> Value:
        at = list(index)
        inside: Value | None = None
        for d, (before, after) in moved.items():
            at[d] = index[d] - before
            for side, cond in (
                (before, index[d] >= before),
                (after, index[d] < X.shape_ints[d] + before),
            ):
                if side:
                    inside = cond if inside is None else inside & cond
        assert inside is not None
        return where(inside, X[tuple(at)], value)

    return compute(shape, body, name=name)
