"""Losses of classification: scores of classes and the right classes in, a loss per place out."""

from __future__ import annotations

from tilesmith.base.dtype import DType
from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute
from tilesmith.expr.functions import maximum, minimum
from tilesmith.expr.ints import Int
from tilesmith.expr.values import Value, cast, where
from tilesmith.ops.arguments import need_equal, need_tensor, operator


def _class(target: Tensor, index: tuple[Value, ...], count: Int) -> Value:
    """The class at a place, brought among those that exist."""
    return maximum(minimum(cast(target[index], "int64"), count - 1), 0)


def _kept(target: Tensor, index: tuple[Value, ...], ignore: int | None, value: Value) -> Value:
    if ignore is None:
        return value
    return where(cast(target[index], "int64") == ignore, cast(0, value.dtype), value)


def _need_target(target: Tensor) -> None:
    if not target.dtype.is_int:
        raise ExpressionError(f"target is {target.dtype}; classes are whole numbers")


@operator
def nll_loss(
    X: Tensor, target: Tensor, *weight: Tensor, ignore: int | None = None, name: str = "nll_loss"
) -> Tensor:
    """-X[n, target[n, ...], ...], times the weight of that class: of X (N, C, ...) and a target
    (N, ...). It is 0 where the target is `ignore`.
    """
    _need_target(target)
    shape = (*X.shape_ints[:1], *X.shape_ints[2:])
    if X.ndim < 2 or target.shape_ints != shape or X.shape_ints[1].const == 0:
        raise ExpressionError(
            f"X is {X!r} and the target {target!r}; they must be (N, C, ...) and (N, ...)"
        )
    for w in weight:
        need_tensor("weight", w, "C")
        need_equal("the extent of weight", w.shape_ints[0], X.shape_ints[1], "X has")

    def body(*i: Value) -> Value:
        c = _class(target, i, X.shape_ints[1])
        loss = -X[(i[0], c, *i[1:])]
        if weight:
            loss = loss * weight[0][c]
        return _kept(target, i, ignore, loss)

    return compute(shape, body, name=name)


@operator
def class_weights(
    target: Tensor, *weight: Tensor, ignore: int | None = None,
    dtype: str | DType = "float32", name: str = "class_weights",
) -> Tensor:  # fmt: skip
    """The weight of each target's class, or 1; 0 where the target is `ignore`."""
    _need_target(target)
    for w in weight:
        need_tensor("weight", w, "C")

    def body(*i: Value) -> Value:
        one = weight[0][_class(target, i, weight[0].shape_ints[0])] if weight else cast(1, dtype)
        return _kept(target, i, ignore, cast(one, dtype_named(dtype)))

    return compute(target.shape_ints, body, name=name)
