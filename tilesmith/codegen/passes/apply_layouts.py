"""Converts logical to physical indices: applies each buffer's layout to all its accesses, and gives
the buffer the shape that it has in memory.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import map_access
from tilesmith.expr.ints import Int, of, var
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, Buffer, For, Join, Stmt, Store, rewrite, statements
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


# Gives a buffer that is allocated inside a vectorized loop, and so is private to each lane, a
# dimension for the lanes, and moves its allocation out of the loop.
#
# CPU policy: a vectorized loop is one instruction stream over all lanes.
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


# Pads the rows of intermediate buffers whose pitch is a multiple of a large power of two. Such
# rows map to the same few cache sets and evict each other.
#
# CPU policy: it is about set-associative caches.
_LINE = 64
# Rows a multiple of this many bytes apart share four sets of an L1 cache with 4 KiB per way. One
# more cache line per row adds at most 1/16 to the buffer.
_MEET = 1024


def stagger_rows(func: Function, _: Target) -> Function:
    """Runs after layouts have been applied: shapes are those in memory."""

    whole = {
        load.buffer
        for s in statements(func.body)
        if isinstance(s, Store) and s.intrinsic is not None and s.intrinsic.by_address
        for name, load in s.operands
        if name not in s.intrinsic.by_address  # its rows are next to each other
    }

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Alloc) and s.buffer.name not in whole:
            return (Alloc(_staggered(s.buffer)),)
        return (s,)

    return replace(func, body=rewrite(func.body, go))


def _staggered(b: Buffer) -> Buffer:
    shape = [n.const for n in b.shape]
    row = b.dtype.nbytes
    for d in range(len(shape) - 1, 0, -1):
        n = shape[d]
        if not n:  # not known, or an array without elements
            return b
        step, row = row, row * n
        if row % _MEET == 0 and n > 1 and any(m != 1 for m in shape[:d]):
            longer = list(b.shape)
            longer[d] = of(n + max(1, _LINE // step))
            return replace(b, shape=tuple(longer))
    return b
