"""Counts the operations of one instance of a block by kind: multiply-adds, additions,
multiplications, divisions, comparisons and functions, of floats and of integers.

A model learns from these counts. ir/count.py counts the arithmetic of a program, and `code_cost` of
expr/code_cost.py estimates the size of its code.
"""

from __future__ import annotations

from tilesmith.base.dtype import BOOL
from tilesmith.expr.ints import FloorDiv, opaque_atoms
from tilesmith.expr.nodes import (
    COMPARISONS,
    FLOAT_FUNCTIONS,
    Binary,
    Expr,
    Load,
    Select,
    Unary,
    children,
)
from tilesmith.expr.walk import preorder
from tilesmith.ir.nodes import Block, joined

ARITHMETIC = ("mad", "addsub", "mul", "divmod", "compare", "math", "other")
OPERATIONS = (
    *(f"float {kind}" for kind in ARITHMETIC), *(f"int {kind}" for kind in ARITHMETIC),
    "bool", "select",
)  # fmt: skip

_KIND = {
    "add": "addsub", "sub": "addsub", "neg": "addsub", "mul": "mul", "div": "divmod",
    "floordiv": "divmod", "mod": "divmod", "truncdiv": "divmod", "fmod": "divmod",
    "max": "compare", "min": "compare", "pow": "math",
    **dict.fromkeys(COMPARISONS, "compare"), **dict.fromkeys(FLOAT_FUNCTIONS, "math"),
}  # fmt: skip


def operations(b: Block) -> dict[str, int]:
    """How often each of OPERATIONS occurs, including the step that accumulates a reduction."""
    counts = dict.fromkeys(OPERATIONS, 0)
    for w in b.writes if b.combiner is None else joined(b.writes, b.combiner):
        _count(w.value, counts)
    return counts


def _count(value: Expr, counts: dict[str, int]) -> None:
    for e in preorder(value, _apart):
        if isinstance(e, Load):
            divisions = sum(isinstance(a, FloorDiv) for p in e.index for a in opaque_atoms(p))
            counts["int divmod"] += divisions
        elif isinstance(e, Select):
            counts["select"] += 1
        elif isinstance(e, Unary | Binary):
            operand = children(e)[0].dtype
            family = "float" if operand.is_float else "int"
            if e.op in ("and", "or", "not") or operand is BOOL:
                counts["bool"] += 1
            elif _product(e) is not None:
                counts[f"{family} mad"] += 1  # one instruction
            else:
                counts[f"{family} {_KIND.get(e.op, 'other')}"] += 1


def _apart(e: Expr) -> tuple[Expr, ...]:
    """The operands computed separately from e; the product in a multiply-add is not."""
    product = _product(e)
    if product is None:
        return children(e)
    return (*children(product), *(x for x in children(e) if x is not product))


def _product(e: Expr) -> Binary | None:
    if not isinstance(e, Binary) or e.op != "add":
        return None
    for x in (e.b, e.a):
        if isinstance(x, Binary) and x.op == "mul":
            return x
    return None
