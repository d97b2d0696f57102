"""NumPy's broadcasting: the joint shape of several shapes, and reads at its indices."""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor
from tilesmith.expr.ints import ONE, Int
from tilesmith.expr.values import Value
from tilesmith.ops.arguments import show_shape


def broadcast_shape(op: str, *shapes: Sequence[Int]) -> tuple[Int, ...]:
    """The shapes are aligned at their ends; an extent of 1 expands. Open sizes must be the same."""
    rank = max(map(len, shapes))
    out = []
    for d in range(-rank, 0):
        extents = [s[d] for s in shapes if len(s) >= -d]
        wide = [e for e in extents if e != ONE]
        if any(e != wide[0] for e in wide):
            raise ExpressionError(
                f"{op}: shapes {' and '.join(map(show_shape, shapes))} do not broadcast: "
                f"dimension {d} is {' and '.join(map(str, wide))}; they must be equal, or 1"
            )
        out.append(wide[0] if wide else ONE)
    return tuple(out)


def read_broadcast(
    x: Tensor, index: Sequence[Value], plain: int = 0, joint: Sequence[Int] = ()
) -> Value:
    """The element of x at `index` of the joint shape; the last `plain` indices stay as given.

    Where the `joint` shape has an extent of 1 too, x is read at the index instead of at 0. Both are
    the same element, but only the first is element for element, and so fused by schedules.
    """
    first = len(index) - x.ndim
    at: list[Value | int] = []
    for d, extent in enumerate(x.shape_ints):
        expands = extent == ONE and not (joint and joint[first + d] == ONE)
        at.append(0 if d < x.ndim - plain and expands else index[first + d])
    return x[tuple(at)]
