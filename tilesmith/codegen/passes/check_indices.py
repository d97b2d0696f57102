"""Bounds checks for debugging: marks every index that is loaded from a tensor for a check, and
lists the checks that the marks refer to.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.dtype import INT64
from tilesmith.codegen.artifact import Check
from tilesmith.expr.dynamic import Dynamic, as_index, map_loads
from tilesmith.expr.ints import Int, opaque_atoms
from tilesmith.expr.nodes import Expr, IntValue, Load, Unary
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, Stmt, rewrite

_MARK = "check "


def check_indices(func: Function) -> tuple[Function, tuple[Check, ...]]:
    """Must run before layouts are applied, so that indices are those that the user wrote."""
    checks: dict[Check, int] = {}

    def mark(load: Load) -> Expr:
        shape = func.all_buffers[load.buffer].shape
        index = list(load.index)
        for k, (p, n) in enumerate(zip(load.index, shape, strict=True)):
            if _reads_data(p):
                check = Check(load.buffer, k, n.number)
                number = checks.setdefault(check, len(checks))
                index[k] = as_index(Unary(f"{_MARK}{number}", IntValue(p, INT64), INT64))
        return replace(load, index=tuple(index))

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(s, Block):
            return (s,)
        return (replace(s, writes=tuple(replace(w, value=map_loads(w.value, mark))
                                        for w in s.writes)),)  # fmt: skip

    return replace(func, body=rewrite(func.body, go)), tuple(checks)


def _reads_data(p: Int) -> bool:
    return any(isinstance(a, Dynamic) for a in opaque_atoms(p))


def number_of(op: str) -> int | None:
    """The number of the check that an operation marks, if it is one."""
    return int(op.removeprefix(_MARK)) if op.startswith(_MARK) else None
