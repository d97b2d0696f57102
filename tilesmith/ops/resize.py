"""Images of another size: a tensor in, one whose extent along some axes is another out.

Which elements an output reads, and with which weights, depends on its position along an axis only.
So an interpolation goes axis by axis, and its two tables are tensors, as a rule constants.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DType
from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.functions import round_
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Value, cast
from tilesmith.ops.arguments import (
    accumulator,
    axis_of,
    image_layout,
    need_equal,
    need_tensor,
    operator,
    show_shape,
)

# With more taps than these the sum is a loop, not written out.
_WRITTEN_OUT = 4


@dataclass(frozen=True, slots=True)
class Steps:
    """Output i of an axis is the input at (i * times + plus) // per."""

    axis: int
    extent: int
    times: int
    plus: int
    per: int


@operator
def resize_nearest(
    X: Tensor, steps: Sequence[Steps], layout: str | None = None, name: str = "resize_nearest"
) -> Tensor:
    """Each output is one element of X; axes that no step names stay as they are. With a layout,
    such as NHWC, axes are counted as if the channels were first.
    """
    shape: list[object] = list(X.shape_ints)
    by_axis = {_axis(X, s.axis, layout): s for s in steps}
    for d, s in by_axis.items():
        if s.extent < 0 or s.per < 1:
            raise ExpressionError(f"{s} must have an extent of at least 0 and divide by 1")
        shape[d] = s.extent

    def body(*index: Value) -> Value:
        at = list(index)
        for d, s in by_axis.items():
            at[d] = (index[d] * s.times + s.plus) // s.per
        return X[tuple(at)]

    return compute(shape, body, name=name)


def _axis(X: Tensor, axis: int, layout: str | None) -> int:
    d = axis_of(axis, X.ndim)
    if layout is None:
        return d
    at = image_layout(X, layout)
    return (0, at.channel, *at.spatial)[d]


@operator
def interpolate(
    X: Tensor, ids: Tensor, weights: Tensor, axis: int = -1, layout: str | None = None,
    name: str = "interpolate",
) -> Tensor:  # fmt: skip
    """Output i along an axis is the sum over k of weights[i, k] and X at ids[i, k]; both tables are
    (outputs, taps), and 0 <= id < extent. `layout` as in resize_nearest.
    """
    need_tensor("ids", ids, "outputs taps")
    need_tensor("weights", weights, "outputs taps")
    a = _axis(X, axis, layout)
    if not ids.dtype.is_int or not X.dtype.is_float:
        raise ExpressionError(
            f"ids is {ids.dtype} and X is {X.dtype}; they must be integers and floats"
        )
    for d in range(2):
        need_equal(f"dimension {d} of weights {show_shape(weights.shape)}",
                   weights.shape_ints[d], ids.shape_ints[d], "that of ids is")  # fmt: skip
    taps = ids.shape_ints[1]
    acc = accumulator(X.dtype)

    def term(index: tuple[Value, ...], k: Value | int) -> Value:
        at = (*index[:a], ids[index[a], k], *index[a + 1 :])
        return cast(X[at], acc) * cast(weights[index[a], k], acc)

    def body(*index: Value) -> Value:
        if (n := taps.const) is not None and 1 <= n <= _WRITTEN_OUT:
            total = term(index, 0)
            for k in range(1, n):
                total = total + term(index, k)
        else:
            r = reduce_axis(taps, name="k")
            total = sum_over(term(index, r), axis=r)
        return cast(total, X.dtype)

    shape = (*X.shape_ints[:a], ids.shape_ints[0], *X.shape_ints[a + 1 :])
    return compute(shape, body, name=name)


@operator
def rounded(X: Tensor, dtype: str | DType, name: str = "rounded") -> Tensor:
    """X as the nearest integers, halves to the even one; beyond the type, its last."""
    return compute(X.shape_ints, lambda *i: cast(round_(X[i]), dtype), name=name)
