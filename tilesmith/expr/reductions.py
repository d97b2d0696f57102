"""The reductions of the DSL. Each stands in the body of a compute as an Arg; the frame of the
compute holds what is reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import field

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import BOOL, INT64, DType
from tilesmith.base.errors import ExpressionError
from tilesmith.base.given import checks_given
from tilesmith.expr.nodes import Arg, Combiner, Const, Expr, plain_combiner
from tilesmith.expr.values import (
    Axis,
    Number,
    Operand,
    Value,
    args_of,
    as_value,
    cast,
    fresh,
    where,
)


@dataclass(slots=True)
class Reduction:
    combiner: Combiner
    values: tuple[Expr, ...]
    axes: tuple[Axis, ...]
    op: str


@dataclass(slots=True)
class Frame:
    """The compute() being stated, with its reductions; each stands in the body as an Arg."""

    name: str
    reductions: dict[str, Reduction] = field(default_factory=dict)


current_frame: ContextVar[Frame | None] = ContextVar("frame", default=None)


Axes = Axis | Sequence[Axis]


def _reduce(op: str, values: tuple[Expr, ...], combiner: Combiner, axis: Axes) -> list[Value]:
    frame = current_frame.get()
    if frame is None:
        raise ExpressionError(f"{op}(...) stands outside of ts.compute; state it inside its body")
    axes = tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    for a in axes:
        if not isinstance(a, Axis):
            raise ExpressionError(f"{op}(..., axis={a!r}): an axis comes from ts.reduce_axis")
    if len({a.uid for a in axes}) != len(axes):
        raise ExpressionError(f"{op}(...) in {frame.name} reduces over the same axis twice")
    for v in values:
        if any(a.name in frame.reductions for a in args_of(v)):
            raise ExpressionError(
                f"{op}(...) in {frame.name} contains another reduction; "
                "give the inner one its own ts.compute"
            )
    uid = f"{op}@{next(fresh)}"
    frame.reductions[uid] = Reduction(combiner, values, axes, op)
    return [Value(Arg(f"{uid}", values[0].dtype))] + [
        Value(Arg(f"{uid}.{k}", v.dtype)) for k, v in enumerate(values[1:], 1)
    ]


def _plain(name: str, op: str, x: Operand, axis: Axes) -> Value:
    node = as_value(x).node
    if node.dtype is BOOL and op in ("add", "mul"):
        raise ExpressionError(f"{name}(...) of conditions; cast them to a number first")
    return _reduce(name, (node,), plain_combiner(op, node.dtype), axis)[0]


@checks_given(error=ExpressionError)
def sum(x: Operand, axis: Axes) -> Value:
    """The sum over an axis or a tuple of axes, in the dtype of x. To add up in a wider dtype, cast
    first.

    Example:

        X = ts.placeholder((8, 100), name="X")
        k = ts.reduce_axis(100, name="k")
        S = ts.compute((8,), lambda i: ts.sum(X[i, k], axis=k), name="S")
    """
    return _plain("sum", "add", x, axis)


@checks_given(error=ExpressionError)
def prod(x: Operand, axis: Axes) -> Value:
    """The product over an axis or a tuple of axes, in the dtype of x."""
    return _plain("prod", "mul", x, axis)


@checks_given(error=ExpressionError)
def amax(x: Operand, axis: Axes) -> Value:
    """The maximum over an axis or a tuple of axes; NaN if one of the values is NaN."""
    return _plain("amax", "max", x, axis)


@checks_given(error=ExpressionError)
def amin(x: Operand, axis: Axes) -> Value:
    """The minimum over an axis or a tuple of axes; NaN if one of the values is NaN."""
    return _plain("amin", "min", x, axis)


@checks_given(error=ExpressionError)
def reduce(
    values: Sequence[Operand],
    combine: Callable[[tuple[Value, ...], tuple[Value, ...]], Sequence[Operand]],
    identity: Sequence[Number],
    axis: Axes,
) -> tuple[Value, ...]:
    """A reduction with several results at once, such as argmax or the running maximum and sum of an
    online softmax.

    `combine(x, y)` joins two partial results. It must be associative and commutative, with
    `identity` as its neutral element.
    """
    exprs = tuple(as_value(v).node for v in values)
    if len(identity) != len(exprs):
        raise ExpressionError(
            f"reduce() has {len(exprs)} values but {len(identity)} identities; give one for each"
        )
    x = tuple(Value(Arg(f"x{k}", e.dtype)) for k, e in enumerate(exprs))
    y = tuple(Value(Arg(f"y{k}", e.dtype)) for k, e in enumerate(exprs))
    joined = tuple(combine(x, y))
    if len(joined) != len(exprs):
        raise ExpressionError(
            f"combine() gave {len(joined)} results for {len(exprs)} values; give one for each"
        )
    outs = []
    for k, (j, e) in enumerate(zip(joined, exprs, strict=True)):
        v = as_value(j, e.dtype)
        if v.dtype is not e.dtype:
            raise ExpressionError(f"combine() gives {v.dtype} for value {k}, which is {e.dtype}")
        outs.append(v.node)
    neutral = tuple(Const(e.dtype.wrap(n), e.dtype) for n, e in zip(identity, exprs, strict=True))
    return tuple(_reduce("reduce", exprs, Combiner(tuple(outs), neutral), axis))


def _as_good(a: Value, b: Value, greater: bool) -> Value:
    """Whether a is at least as extreme as b; NaN is the most extreme."""
    is_extreme = a >= b if greater else a <= b
    return is_extreme | (a != a) if a.dtype.is_float else is_extreme


def arg_extreme(
    x: Operand, axis: Axis, greater: bool, position: DType = INT64
) -> tuple[Value, Value]:
    """The position of the first extreme, as a number of this type, and its value."""
    v = as_value(x)
    op = "argmax" if greater else "argmin"
    if not isinstance(axis, Axis):
        raise ExpressionError(f"{op}(..., axis={axis!r}): an axis comes from ts.reduce_axis")

    def combine(p: tuple[Value, ...], q: tuple[Value, ...]) -> tuple[Value, Value]:
        # As in NumPy, NaN beats every number, and the first of equals wins. This is a total order
        # of (position, value), so the result does not depend on the order of the reduction.
        left = _as_good(p[1], q[1], greater) & (~_as_good(q[1], p[1], greater) | (p[0] <= q[0]))
        return where(left, p[0], q[0]), where(left, p[1], q[1])

    if axis.extent.const == 0:
        raise ExpressionError(f"{op}(...) over {axis!r}: of nothing there is no {op}")

    # The identity's position is past the end, so that a real element wins a tie with its value.
    neutral = v.dtype.lowest() if greater else v.dtype.highest()
    place = cast(axis, position)
    found, extreme = reduce((place, v), combine, (position.highest(), neutral), axis)
    return found, extreme


@checks_given(error=ExpressionError)
def argmax(x: Operand, axis: Axis) -> tuple[Value, Value]:
    """Position (int64) and value of the first maximum; of the first NaN, if there is one."""
    return arg_extreme(x, axis, True)


@checks_given(error=ExpressionError)
def argmin(x: Operand, axis: Axis) -> tuple[Value, Value]:
    """Position (int64) and value of the first minimum; of the first NaN, if there is one."""
    return arg_extreme(x, axis, False)
