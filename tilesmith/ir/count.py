"""The work of a Function: arithmetic operations, and the bytes that must be moved at least once."""

from __future__ import annotations

from math import prod

from tilesmith.base.errors import ArgumentError
from tilesmith.expr.ints import Int
from tilesmith.expr.nodes import ARITHMETIC, FLOAT_FUNCTIONS, Binary, Expr, Select, Unary, children
from tilesmith.expr.walk import postorder, preorder
from tilesmith.ir.nodes import walk
from tilesmith.ir.program import Program

_UNARY = frozenset({*FLOAT_FUNCTIONS, "neg"})  # each call counts as one operation


def operations(e: Expr) -> int:
    """The number of arithmetic operations. Index arithmetic, comparisons, selects and casts are
    free, a shared node counts once, and of the two sides of a select the longer one counts.
    """
    longest: dict[int, int] = {}  # operations of each node as a tree, by id
    for x in postorder(e, children):
        inner = [longest[id(y)] for y in children(x)]
        longest[id(x)] = max(inner[1:]) if isinstance(x, Select) else _counts(x) + sum(inner)

    def counted(x: Expr) -> tuple[Expr, ...]:
        if isinstance(x, Select):
            return (x.a if longest[id(x.a)] >= longest[id(x.b)] else x.b,)
        return children(x)

    return sum(map(_counts, preorder(e, counted)))


def _counts(e: Expr) -> bool:
    return (isinstance(e, Binary) and e.op in ARITHMETIC) or (
        isinstance(e, Unary) and e.op in _UNARY
    )


def flops(func: Program) -> int:
    """Operations of all blocks over their iteration domains."""
    total = 0
    for _, b in walk(func.body):
        points = prod(_number(i.extent, func) for i in b.iters)
        each = sum(operations(w.value) for w in b.writes)
        if b.combiner is not None:
            each += sum(map(operations, b.combiner.values))
        total += points * each
    return total


def nbytes(func: Program) -> int:
    """Bytes of all parameters, each counted once."""
    return sum(prod(_number(n, func) for n in b.shape) * b.dtype.nbytes for b in func.params)


def _number(p: Int, func: Program) -> int:
    n = p.const
    if n is None:
        raise ArgumentError(
            f"{func.name} has the open size {p}; put in a number with instantiate()"
        )
    return n
