"""What the evaluators of a Function share (evaluate.py, interpreter.py, simt.py): the check of the
arrays of a call, the values of integers and of an operation, and where the value of a node is
needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tilesmith.base.dtype import INT64
from tilesmith.base.errors import ArgumentError, VerifyError
from tilesmith.expr import semantics
from tilesmith.expr.dynamic import Dynamic, below
from tilesmith.expr.ints import FloorDiv, Int, Maximum, Opaque
from tilesmith.expr.nodes import Binary, Cast, Const, Expr, Select, Unary
from tilesmith.ir.function import Function, numbers
from tilesmith.ir.nodes import Buffer

Array = np.ndarray[Any, Any]
Values = Mapping[int, Any]  # values of the nodes evaluated so far, by id
NO_VALUES: Values = {}


def input_arrays(func: Function, arrays: Sequence[Any]) -> list[Array]:
    """The arrays of a call. Their number and shapes must be those of the inputs."""
    if len(arrays) != len(func.inputs):
        names = ", ".join(b.name for b in func.inputs)
        raise ArgumentError(
            f"{func.name} takes {len(func.inputs)} arrays ({names}), got {len(arrays)}"
        )
    out = [np.asarray(a) for a in arrays]
    for b, a in zip(func.inputs, out, strict=True):
        if a.shape != (shape := numbers(b.given_shape)):
            raise ArgumentError(
                f"{b.name} has shape {list(a.shape)}, {func.name} wants {list(shape)}"
            )
    return out


def as_given(b: Buffer, a: Array) -> Array:
    """An output in the shape that the caller knows."""
    return a.reshape([n.number for n in b.given_shape]) if b.prepared else a


def result_of(func: Function, arrays: Iterable[Array]) -> Any:
    """The outputs of a call, in the shapes that the caller knows; one as it is, several as a
    tuple.
    """
    outs = tuple(as_given(b, a) for b, a in zip(func.outputs, arrays, strict=True))
    return outs if len(outs) > 1 else outs[0]


def shape_of(b: Buffer) -> tuple[int, ...]:
    if any(e.const is None for e in b.shape):
        raise VerifyError(f"{b.name} has an open size; put in numbers with instantiate()")
    return tuple(e.number for e in b.shape)


def garbage(b: Buffer, shape: int | tuple[int, ...]) -> Array:
    """What nobody has written: NaN, or an odd number."""
    return np.full(shape, np.nan if b.dtype.is_float else 77, b.dtype.numpy)


def axes_over(ranges: Mapping[str, range]) -> dict[str, Array]:
    """The values of each loop or iterator, along an axis of its own."""
    rank = len(ranges)
    return {
        name: np.arange(r.start, r.stop).reshape([-1 if k == d else 1 for k in range(rank)])
        for d, (name, r) in enumerate(ranges.items())
    }


def integer(p: Int, env: Mapping[str, Any], values: Values = NO_VALUES) -> Any:
    """The value of p at all points at once: names stand for numbers or arrays, and `values` has the
    elements that p reads. An integer divided by zero is 0.
    """
    total: Any = 0
    for m, c in p.terms.items():
        v: Any = c
        for a in m:
            x = env[a] if isinstance(a, str) else _atom(a, env, values)
            v = x if type(v) is int and v == 1 else v * x
        total = v if type(total) is int and total == 0 else total + v
    return total


def _atom(a: Opaque, env: Mapping[str, Any], values: Values) -> Any:
    if isinstance(a, Dynamic):
        return np.asarray(values[id(a.expr)]).astype(np.int64)
    assert isinstance(a, FloorDiv | Maximum)
    x, y = integer(a.a, env, values), integer(a.b, env, values)
    whole = type(x) is int and type(y) is int
    if isinstance(a, Maximum):
        return max(x, y) if whole else np.maximum(x, y)
    if whole:
        return x // y if y else 0
    return semantics.binary("floordiv", x, y, INT64)


def operation(e: Const | Unary | Binary | Cast, values: Values) -> Any:
    """The value of a node that neither loads nor chooses, from those of its operands."""
    match e:
        case Const(value=value):
            return semantics.constant(value, e.dtype)
        case Unary(op=op, x=x):
            return semantics.unary(op, values[id(x)], e.dtype)
        case Binary(op=op, a=a, b=b):
            return semantics.binary(op, values[id(a)], values[id(b)], a.dtype)
        case Cast(x=x):
            return semantics.cast(values[id(x)], e.dtype)


def needed(order: Sequence[Expr], values: Values, mask: Array | None) -> dict[int, Array | None]:
    """Where the value of each node is needed, by id; None: everywhere. `order` is a postorder. The
    last node is needed where `mask` holds; of a select, only the side that is taken is.
    """
    out: dict[int, Any] = {id(order[-1]): mask}

    def need(e: Expr, where: Any) -> None:
        if id(e) not in out:
            out[id(e)] = where
        elif out[id(e)] is not where and out[id(e)] is not None:
            out[id(e)] = None if where is None else out[id(e)] | where

    for x in reversed(order):
        here = out[id(x)]
        if isinstance(x, Select):
            cond = np.asarray(values[id(x.cond)])
            need(x.cond, here)
            need(x.a, cond if here is None else here & cond)
            need(x.b, ~cond if here is None else here & ~cond)
        else:
            for y in below(x):
                need(y, here)
    return out


def outside(
    buffer: str, index: Int, dimension: int, value: int, extent: int, verb: str = "read"
) -> str:
    """The text of the error about an index that leaves its buffer."""
    return (
        f"{buffer} is {verb} at index {index} = {value} in dimension {dimension}, "
        f"which has {extent} elements"
    )
