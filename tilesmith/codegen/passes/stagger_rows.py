"""Pads the rows of intermediate buffers whose pitch is a multiple of a large power of two. Such
rows map to the same few cache sets and evict each other.

CPU policy: it is about set-associative caches.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.expr.ints import of
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, Buffer, Stmt, Store, rewrite, statements

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
