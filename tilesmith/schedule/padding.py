"""What a term of a sum is where operands are padded by zeros: padding is legal only if it is 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilesmith.expr.nodes import Arg, Binary, Cast, Const, Expr, IntValue, Load, Select, children
from tilesmith.expr.walk import postorder
from tilesmith.ir.evaluators import operation
from tilesmith.ir.nodes import Block


def vanishes(b: Block, zero: Callable[[Load], bool]) -> bool:
    """Whether the block is a sum, whose terms are 0 wherever the loads that `zero` names are 0,
    whatever its other operands are. 0 * x is not, if x may be infinite.
    """
    if b.combiner is None or b.combiner.op != "add":
        return False
    values = (_value(w.value, zero) for w in b.writes)
    return all(v is not None and v == 0 for v in values)


def _value(e: Expr, zero: Callable[[Load], bool]) -> Any:
    """The value of an expression in which some loads are 0; None if it depends on others."""
    values: dict[int, Any] = {}
    with np.errstate(all="ignore"):
        for x in postorder(e, children):
            values[id(x)] = _node(x, values, zero)
    return values[id(e)]


def _node(e: Expr, values: dict[int, Any], zero: Callable[[Load], bool]) -> Any:
    match e:
        case Load():
            return e.dtype.numpy.type(0) if zero(e) else None
        case IntValue() | Arg():
            return None
        case Select(cond=c, a=a, b=b):
            cond, left, right = (values[id(x)] for x in (c, a, b))
            if cond is not None:
                return left if cond else right
            return left if left is not None and left == right else None
        case Const():
            return operation(e, values)
        case Binary(op="mul", a=a, b=b) if values[id(a)] is None or values[id(b)] is None:
            known = values[id(b)] if values[id(a)] is None else values[id(a)]
            other = a if values[id(a)] is None else b
            return known if known is not None and known == 0 and _is_finite(other) else None
        case _:
            return None if any(values[id(x)] is None for x in children(e)) else operation(e, values)


def _is_finite(e: Expr) -> bool:
    """Whether a value that is not known is a number: an integer, or a float that holds one."""
    if not e.dtype.is_float or isinstance(e, IntValue):
        return True
    if not isinstance(e, Cast):
        return False
    inner = e.x.dtype
    return not inner.is_float and inner.highest() <= e.dtype.highest()
