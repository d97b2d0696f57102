"""A tensor seen as rows along some of its axes, as norms and softmax see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.ints import ONE, product
from tilesmith.expr.values import Axis, Value
from tilesmith.ops.arguments import need_equal, need_tensor, show_shape


def need_float(op: str, X: Tensor) -> None:
    need_tensor(op, "X", X)
    if not X.dtype.is_float:
        raise ExpressionError(f"{op}: X is {X.dtype}; it must be a float: cast it first")


def need_vector(op: str, what: str, x: Tensor, X: Tensor, axis: int) -> None:
    need_tensor(op, what, x, "C")
    need_equal(op, f"the extent of {what}", x.shape_ints[0], X.shape_ints[axis],
               f"axis {axis} of X {show_shape(X.shape)} is")  # fmt: skip


class Rows:
    """A tensor seen as rows along some of its axes: what is summed, and what is kept."""

    def __init__(self, X: Tensor, axes: Sequence[int]) -> None:
        self.tensor, self.axes = X, tuple(axes)
        self.kept = [d for d in range(X.ndim) if d not in self.axes]
        self.shape = [X.shape_ints[d] for d in self.kept]
        self.count = product([ONE, *(X.shape_ints[d] for d in self.axes)])

    def fold(
        self, join: Callable[[Value, list[Axis]], Value],
        value: Callable[[tuple[Value, ...], tuple[Value, ...]], Value], name: str,
    ) -> Tensor:  # fmt: skip
        """One result per row: `value` at (place in the tensor, row), joined over the row."""
        over = [reduce_axis(self.tensor.shape_ints[d], name="k") for d in self.axes]

        def body(*row: Value) -> Value:
            at: list[Value] = [*over, *row]
            for d, v in [*zip(self.axes, over, strict=True), *zip(self.kept, row, strict=True)]:
                at[d] = v
            return join(value(tuple(at), row), over)

        out: Tensor = compute(self.shape, body, name=name)
        return out

    def row(self, index: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(index[d] for d in self.kept)
