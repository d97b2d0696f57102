"""Converts logical to physical indices: applies each buffer's layout to all its accesses, and gives
the buffer the shape that it has in memory.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import map_access
from tilesmith.expr.ints import Int
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, Buffer, Join, Stmt, Store, rewrite, statements
from tilesmith.ir.prepare import Merge


def apply_layouts(func: Function, _: Target) -> Function:
    buffers = {b.name: b for b in func.params}
    buffers |= {s.buffer.name: s.buffer for s in statements(func.body) if isinstance(s, Alloc)}
    if all(b.is_as_given for b in buffers.values()):
        return func

    def move(name: str, index: tuple[Int, ...]) -> tuple[Int, ...]:
        layout = buffers[name].layout
        if layout is None:
            return index
        env = {f"d{k}": p for k, p in enumerate(index)}
        return tuple(p.substitute(env) for p in layout)

    def flat(b: Buffer) -> Buffer:
        merged = tuple(s for s in b.prepared if isinstance(s, Merge))
        return replace(b, shape=b.physical_shape, layout=None, prepared=merged)

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Store | Join):
            return (map_access(s, move),)
        return (Alloc(flat(s.buffer)),) if isinstance(s, Alloc) else (s,)

    return replace(func, params=tuple(map(flat, func.params)), body=rewrite(func.body, go))
