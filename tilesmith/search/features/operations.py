"""Counts the operations of one instance of a block by kind: multiply-adds, additions,
multiplications, divisions, comparisons and functions, of floats and of integers.

A model learns from these counts. ir/count.py counts the arithmetic of a program, and `code_cost` of
expr/dynamic.py estimates the size of its code.
"""

from __future__ import annotations

from collections.abc import Iterator

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
        for e in preorder(w.value, apart):
            if (kind := operation_of(e)) is not None:
                counts[kind] += 1
            elif isinstance(e, Load):
                counts["int divmod"] += sum(1 for _ in divisions_of(e))
    return counts


def operation_of(e: Expr) -> str | None:
    """Which of OPERATIONS it is, without its operands."""
    if isinstance(e, Select):
        return "select"
    if not isinstance(e, Unary | Binary):
        return None
    operand = children(e)[0].dtype
    family = "float" if operand.is_float else "int"
    if e.op in ("and", "or", "not") or operand is BOOL:
        return "bool"
    if _product(e) is not None:
        return f"{family} mad"  # one instruction
    return f"{family} {_KIND.get(e.op, 'other')}"


def divisions_of(e: Load) -> Iterator[FloorDiv]:
    """The divisions in the index of a load."""
    return (a for p in e.index for a in opaque_atoms(p) if isinstance(a, FloorDiv))


def apart(e: Expr) -> tuple[Expr, ...]:
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
