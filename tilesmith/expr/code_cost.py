"""The size of the code that an expression becomes."""

from __future__ import annotations

from tilesmith.expr.ints import opaque_atoms
from tilesmith.expr.nodes import LEAVES, Expr, Load, children
from tilesmith.expr.walk import preorder


def code_cost(e: Expr) -> int:
    """The approximate number of instructions. An index with a division takes several per lane.
    A computed value that is used several times counts once, a loaded one each time.
    """
    if type(e) in LEAVES:
        return _reading(e)
    total = 0
    for x in preorder(e, _computed):
        total += 1
        for y in children(x):
            if type(y) in LEAVES:
                total += _reading(y)
    return total


def _computed(e: Expr) -> list[Expr]:
    return [x for x in children(e) if type(x) not in LEAVES]


def _reading(leaf: Expr) -> int:
    if not isinstance(leaf, Load):
        return 1
    return 1 + 8 * sum(1 for p in leaf.index if not p.plain for _ in opaque_atoms(p))
