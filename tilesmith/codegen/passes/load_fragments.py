"""GPU: loads what a register tile uses from shared memory once, into registers of its own.

Without this, each statement of the tile loads its operands; with it, a row and a column are loaded,
several elements at once, and the tile is their product.

    for i in 4:  # unroll                          for i in 4: A.part[i] = A.shared[i, k]
      for j in 4:  # unroll                  ->    for j in 4: B.part[j] = B.shared[k, j]
        C[i, j] += A.shared[i, k] * B.shared[k, j]   for i in 4:
                                                     for j in 4: C[i, j] += A.part[i] * B.part[j]
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import accesses, substitute_body
from tilesmith.expr.dynamic import loads_of, map_loads
from tilesmith.expr.ints import Int, of, var
from tilesmith.expr.linear import linear, row_major
from tilesmith.expr.nodes import Expr, Load
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, Buffer, For, If, Stmt, Store, Write, statements

_MOST = 64  # registers for the operands of a tile


def load_fragments(func: Function, _: Target) -> Function:
    """Takes launch form."""
    buffers = {s.buffer.name: s.buffer for s in statements(func.body) if isinstance(s, Alloc)}
    return replace(func, body=_Fragments(buffers).body(func.body))


class _Fragments:
    def __init__(self, buffers: dict[str, Buffer]) -> None:
        self.buffers = buffers
        self.count = 0

    def body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            tile = _tile(s) if isinstance(s, For) else None
            if tile is not None:
                out += self._loaded(s, *tile)
            elif isinstance(s, For | If):
                out.append(replace(s, body=self.body(s.body)))
            else:
                out.append(s)
        return tuple(out)

    def _loaded(self, s: Stmt, loops: list[For], store: Store) -> tuple[Stmt, ...]:
        (write,) = store.writes
        if not self._is(write.buffer, "local") or write.value in loads_of(write.value):
            return (s,)
        names = {f.name for f in loops}
        first: list[Stmt] = []
        parts: dict[Load, Load] = {}
        for load in dict.fromkeys(loads_of(write.value)):
            used = [f for f in loops if any(f.name in p.names for p in load.index)]
            again = prod(f.trips for f in loops if f not in used)
            size = prod(f.trips for f in used)
            if not self._is(load.buffer, "shared") or again == 1 or size > _MOST:
                continue
            if any(not p.plain and p.names & names for p in load.index):
                continue
            self.count += 1
            name = f"{load.buffer}.part{self.count}"
            part = Buffer(name, (of(size),), load.dtype, "local")
            place = linear((var(f.name) for f in used), row_major(tuple(f.extent for f in used)))
            parts[load] = Load(name, (place,), load.dtype)
            first += [Alloc(part), _filled(load, part, used)]
        if not parts:
            return (s,)

        def put(load: Load) -> Expr:
            return parts.get(load, load)

        new = Store((replace(write, value=map_loads(write.value, put)),))
        stmt: Stmt = new
        for f in reversed(loops):
            stmt = replace(f, body=(stmt,))
        return (*first, stmt)

    def _is(self, name: str, scope: str) -> bool:
        return name in self.buffers and self.buffers[name].scope == scope


def _filled(load: Load, part: Buffer, used: list[For]) -> Stmt:
    """The loop nest that loads a fragment."""
    names: dict[str, Int] = {f.name: var(f"{f.name}.{part.name}") for f in used}
    place = linear(names.values(), row_major(tuple(f.extent for f in used)))
    (stmt,) = substitute_body((Store((Write(part.name, (place,), load),)),), names)
    for f in reversed(used):
        stmt = For(f"{f.name}.{part.name}", f.extent, (stmt,), "unroll")
    return stmt


def _tile(s: For) -> tuple[list[For], Store] | None:
    """The loops of a register tile and its statement, if this is the outermost of them: loops
    directly inside one another, each of which moves the element that is written.
    """
    loops: list[For] = []
    inner: Stmt = s
    while isinstance(inner, For):
        if len(inner.body) != 1 or inner.kind not in ("serial", "unroll"):
            return None
        loops.append(inner)
        inner = inner.body[0]
    if not isinstance(inner, Store) or len(inner.writes) != 1 or inner.intrinsic is not None:
        return None
    moved = {n for a in accesses((inner,)) if a.write for p in a.index for n in p.names}
    return (loops, inner) if all(f.name in moved for f in loops) else None
