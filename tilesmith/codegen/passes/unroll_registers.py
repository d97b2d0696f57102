"""GPU: unrolls every loop that indexes a private buffer, since registers have no addresses."""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import accesses
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, For, Stmt, rewrite, statements


def unroll_registers(func: Function, _: Target) -> Function:
    private = {
        s.buffer.name
        for s in statements(func.body)
        if isinstance(s, Alloc) and s.buffer.scope == "local"
    }
    indexed = {
        n for a in accesses(func.body) if a.buffer in private for p in a.index for n in p.names
    }

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, For) and s.kind == "serial" and s.name in indexed:
            return (replace(s, kind="unroll"),)
        return (s,)

    return replace(func, body=rewrite(func.body, go))
