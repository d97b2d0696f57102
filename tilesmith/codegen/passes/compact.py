"""Shrinks intermediate buffers to what one iteration of the innermost loop around all their uses
needs, and allocates them there.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import Access, accesses, map_access
from tilesmith.expr.ints import ZERO, Int, is_size
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, Buffer, For, Stmt, Store, rewrite
from tilesmith.ir.regions import THREAD_LOOPS, Box, box_of, extent, union


def compact(func: Function, _: Target) -> Function:
    body = func.body
    uses: dict[str, list[Access]] = {b.name: [] for b in func.buffers}
    for a in accesses(body):
        if a.buffer in uses:
            uses[a.buffer].append(a)
    shift: dict[str, tuple[Int, ...]] = {}
    homes: dict[str | None, list[Buffer]] = {}
    for b in func.buffers:
        if not uses[b.name]:
            continue
        home = _home(b, uses[b.name])
        small, low = _shrink(b, uses[b.name], home, func)
        shift[b.name] = low
        homes.setdefault(home, []).append(small)

    def move(name: str, index: tuple[Int, ...]) -> tuple[Int, ...]:
        if name not in shift:
            return index
        return tuple(p - lo for p, lo in zip(index, shift[name], strict=True))

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Store):
            return (map_access(s, move),)
        if isinstance(s, For) and s.name in homes:
            return (replace(s, body=(*map(Alloc, homes[s.name]), *s.body)),)
        return (s,)

    body = (*map(Alloc, homes.get(None, ())), *rewrite(body, go))
    return replace(func, body=body, buffers=())


def _home(b: Buffer, uses: list[Access]) -> str | None:
    """The innermost loop around all uses. Shared memory is allocated outside of the loops over the
    threads of a block, which share it.
    """
    depth = 0
    shared = THREAD_LOOPS.get(b.scope, ())
    first = uses[0].path
    while all(len(a.path) > depth and a.path[depth].name == first[depth].name for a in uses):
        if first[depth].kind in shared:
            break
        depth += 1
    return first[depth - 1].name if depth else None


def _shrink(
    b: Buffer, uses: list[Access], home: str | None, func: Function
) -> tuple[Buffer, tuple[Int, ...]]:
    zero = tuple(ZERO for _ in b.shape)
    if home is None:
        return b, zero
    box: Box | None = None
    for a in uses:
        names = [f.name for f in a.path]
        inner = {f.name: f.extent for f in a.path[names.index(home) + 1 :]} | dict(a.tile)
        box = union(box, box_of(a.index, b.shape, inner, func.rules))
    assert box is not None
    low, shape = [], []
    for span, whole in zip(box, b.shape, strict=True):
        e = extent(span, func.rules)
        n, m = e.const, whole.const
        fits = all(map(is_size, e.names)) and not (n is not None and m is not None and n >= m)
        low.append(span[0] if fits else ZERO)
        shape.append(e if fits else whole)
    return replace(b, shape=tuple(shape)), tuple(low)
