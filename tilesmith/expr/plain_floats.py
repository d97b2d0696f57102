"""Which values are computed by plain arithmetic on floats: one instruction for a node and a vector,
whatever the number of lanes. The analytic score and code generation agree on it.
"""

from __future__ import annotations

from tilesmith.base.dtype import BOOL, FLOAT32, FLOAT64
from tilesmith.expr.nodes import Binary, Const, Expr, IntValue, Load, Unary, children
from tilesmith.expr.walk import preorder

_FLOATS = frozenset({FLOAT32, FLOAT64})
_PLAIN = frozenset(
    {"neg", "abs", "sqrt", "not", "add", "sub", "mul", "div", "max", "min", "and", "or", "lt", "le",
     "gt", "ge", "eq", "ne"}
)  # fmt: skip


def is_plain_arithmetic(value: Expr, lane: str = "") -> bool:
    """Of numbers that do not depend on the loop variable `lane` but by loads."""
    if value.dtype not in _FLOATS:
        return False
    return all(_is_plain(e, lane) for e in preorder(value, children))


def _is_plain(e: Expr, lane: str) -> bool:
    match e:
        case IntValue(value=p):
            return lane not in p.names
        case Unary(op=op) | Binary(op=op):
            return op in _PLAIN and (e.dtype in _FLOATS or e.dtype is BOOL)
        case Load() | Const():
            return e.dtype in _FLOATS
    return e.dtype in _FLOATS or e.dtype is BOOL
