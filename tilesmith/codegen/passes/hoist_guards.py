"""Moves a guard out of loops that it does not depend on. It is then tested once, and the loops
inside have no branch.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import For, If, Stmt, Store, rewrite, statements


def hoist_guards(func: Function, _: Target) -> Function:
    # A guard that depends on an instruction's own loops must stay with the instruction.
    tiles = {n for s in statements(func.body) if isinstance(s, Store) for n, _ in s.tile}

    def go(s: Stmt) -> tuple[Stmt, ...]:
        """Inner statements come first, so that a guard moves out as far as possible."""
        if not (isinstance(s, For) and len(s.body) == 1 and isinstance(guard := s.body[0], If)):
            return (s,)
        free = tuple(p for p in guard.conds if not p.names & (tiles | {s.name}))
        if not free:
            return (s,)
        bound = tuple(p for p in guard.conds if p not in free)
        body = (If(bound, guard.body),) if bound else guard.body
        return (If(free, (replace(s, body=body),)),)

    return replace(func, body=rewrite(func.body, go))
