"""Reductions over any axes: a tensor and axes in, a tensor without them (or with 1 in their place)
out.

`axes` is None for all of them; with () each element is alone, and only what is done to the elements
and to the sum remains. Half precision is summed in float32. The sum of no elements is 0, their
product 1, their maximum the lowest value of the dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

from tilesmith.base.dtype import FLOAT64
from tilesmith.base.errors import ExpressionError
from tilesmith.expr import reductions
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.functions import absolute, exp, log, sqrt, trunc_divide
from tilesmith.expr.ints import ONE, Int, product
from tilesmith.expr.values import Axis, Value, cast, where
from tilesmith.ops.arguments import accumulator, axis_of, operator, stated, widen

Axes = int | Sequence[int] | None
Join = Callable[[Value, list[Axis]], Value]


class _Span:
    """The axes that go, and how an element of the result finds those of X."""

    def __init__(self, X: Tensor, axes: Axes, keepdims: bool) -> None:
        wanted = range(X.ndim) if axes is None else (axes,) if isinstance(axes, int) else axes
        self.axes = sorted(axis_of(a, X.ndim) for a in wanted)
        if len(set(self.axes)) != len(self.axes):
            raise ExpressionError(f"axes {axes!r} name an axis twice; name each one once")
        self.X, self.keepdims = X, keepdims
        self.shape: list[Int] = [
            ONE if d in self.axes else n
            for d, n in enumerate(X.shape_ints)
            if keepdims or d not in self.axes
        ]
        self.count = product([ONE, *(X.shape_ints[d] for d in self.axes)])

    def stage(
        self, value: Callable[[Value, tuple[Value, ...]], Value], join: Join,
        after: Callable[[Value, tuple[Value, ...]], Value], name: str,
    ) -> Tensor:  # fmt: skip
        """`value` of (an element, place in the result), joined, and what is done with that."""

        keepdims = self.keepdims

        def body(*index: Value) -> Value:
            over = {d: reduce_axis(self.X.shape_ints[d], name="k") for d in self.axes}
            kept = iter([v for d, v in enumerate(index) if not keepdims or d not in over])
            at = [over[d] if d in over else next(kept) for d in range(self.X.ndim)]
            x = value(self.X[tuple(at)], index)
            return after(join(x, list(over.values())) if over else x, index)

        return compute(self.shape, body, name=name)


def _real(x: Value) -> Value:
    """x in the dtype in which roots and logarithms of it are computed."""
    return widen(x) if x.dtype.is_float else cast(x, FLOAT64)


def _number(x: Value) -> Value:
    """x in the dtype in which it is summed."""
    return cast(x, accumulator(x.dtype)) if x.dtype.kind != "b" else x


def _squared(x: Value) -> Value:
    return x * x


def _mean(total: Value, count: Int) -> Value:
    return total / count if total.dtype.is_float else trunc_divide(total, count)


class Reduction(Protocol):
    def __call__(
        self, X: Tensor, axes: Axes = ..., keepdims: bool = ..., name: str = ...
    ) -> Tensor: ...


def _reduction(
    name: str, doc: str, join: Join, before: Callable[[Value], Value] = lambda x: x,
    after: Callable[[Value, Int], Value] = lambda y, count: y,
) -> Reduction:  # fmt: skip
    """What is done to each element, how they are joined, and what is done to that."""
    label = name

    def made(X: Tensor, axes: Axes = None, keepdims: bool = False, name: str = label) -> Tensor:
        span = _Span(X, axes, keepdims)
        return span.stage(
            lambda x, at: before(x), join, lambda y, at: cast(after(y, span.count), X.dtype), name
        )

    return stated(made, label, doc)


reduce_sum = _reduction(
    "reduce_sum", "The sum over some axes, by default over all; `keepdims` keeps them with "
    "extent 1.", reductions.sum, _number,
)  # fmt: skip
reduce_prod = _reduction(
    "reduce_prod", "The product over some axes, by default over all; `keepdims` keeps them with "
    "extent 1.", reductions.prod, _number,
)  # fmt: skip
reduce_max = _reduction("reduce_max", "The maximum; of bool, whether any holds.", reductions.amax)
reduce_min = _reduction("reduce_min", "The minimum; of bool, whether all hold.", reductions.amin)
reduce_mean = _reduction(
    "reduce_mean", "The mean; of integers an integer, rounded towards 0.", reductions.sum, _number,
    _mean,
)  # fmt: skip
reduce_sum_square = _reduction(
    "reduce_sum_square", "The sum of x * x.", reductions.sum, lambda x: _squared(_number(x))
)
reduce_l1 = _reduction(
    "reduce_l1", "The sum of |x|.", reductions.sum, lambda x: absolute(_number(x))
)
reduce_l2 = _reduction(
    "reduce_l2", "The root of the sum of x * x.", reductions.sum, lambda x: _squared(_real(x)),
    lambda y, count: sqrt(y),
)  # fmt: skip
reduce_log_sum = _reduction(
    "reduce_log_sum", "The logarithm of the sum.", reductions.sum, _real, lambda y, count: log(y)
)


@operator
def reduce_log_sum_exp(
    X: Tensor, axes: Axes = None, keepdims: bool = False, name: str = "reduce_log_sum_exp"
) -> Tensor:
    """log(sum(exp(x))), without its overflow: the maximum is taken off first, and put back."""
    span = _Span(X, axes, keepdims)
    # Off an infinite maximum nothing is taken: inf - inf is no number.
    top = span.stage(
        lambda x, at: _real(x), reductions.amax,
        lambda y, at: where(absolute(y) < inf, y, 0), f"{name}_top",
    )  # fmt: skip
    return span.stage(
        lambda x, at: exp(_real(x) - top[at]), reductions.sum,
        lambda y, at: cast(log(y) + top[at], X.dtype), name,
    )  # fmt: skip
