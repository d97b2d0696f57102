"""Gives a buffer that is allocated inside a vectorized loop, and so is private to each lane, a
dimension for the lanes, and moves its allocation out of the loop.

CPU policy: a vectorized loop is one instruction stream over all lanes.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import map_access
from tilesmith.expr.ints import Int, var
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, Buffer, For, Stmt, Store, rewrite, statements


def widen_private_buffers(func: Function, _: Target) -> Function:
    def go(s: Stmt) -> tuple[Stmt, ...]:
        if not (isinstance(s, For) and s.kind == "vectorize"):
            return (s,)
        inside = {t.buffer.name: t.buffer for t in statements(s.body) if isinstance(t, Alloc)}
        if not inside:
            return (s,)
        lane = var(s.name)

        def move(name: str, index: tuple[Int, ...]) -> tuple[Int, ...]:
            return (*index, lane) if name in inside else index

        def widen(t: Stmt) -> tuple[Stmt, ...]:
            if isinstance(t, Alloc):
                return ()
            return (map_access(t, move),) if isinstance(t, Store) else (t,)

        wide = (Alloc(_with_lanes(b, s.extent)) for b in inside.values())
        return (*wide, replace(s, body=rewrite(s.body, widen)))

    return replace(func, body=rewrite(func.body, go))


def _with_lanes(b: Buffer, lanes: Int) -> Buffer:
    """The buffer with a last dimension for the lanes, which are next to each other in memory."""
    layout = None if b.layout is None else (*b.layout, var(f"d{len(b.shape)}"))
    return replace(b, shape=(*b.shape, lanes), layout=layout, align=None)
