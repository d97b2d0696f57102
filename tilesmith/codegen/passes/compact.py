"""Shrinks intermediate buffers to what one iteration of the innermost loop around all their uses
needs, and allocates them there.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import Access, accesses, common_loops, map_access
from tilesmith.expr.ints import ZERO, Int, is_size
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, Buffer, For, Join, Path, Stmt, Store, rewrite
from tilesmith.ir.notes import Cluster
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
        depth = len(common_loops(uses[b.name]))
        small, low = _shrink(b, uses[b.name], depth, func)
        shift[b.name] = low
        homes.setdefault(_home(b, uses[b.name][0].path[:depth]), []).append(small)

    def move(name: str, index: tuple[Int, ...]) -> tuple[Int, ...]:
        if name not in shift:
            return index
        return tuple(p - lo for p, lo in zip(index, shift[name], strict=True))

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Store | Join):
            return (map_access(s, move),)
        if isinstance(s, For) and s.name in homes:
            return (replace(s, body=(*map(Alloc, homes[s.name]), *s.body)),)
        return (s,)

    body = (*map(Alloc, homes.get(None, ())), *rewrite(body, go))
    return replace(func, body=body, buffers=())


def _home(b: Buffer, around: Path) -> str | None:
    """The loop where the buffer is allocated, the innermost one of `around`. Shared memory is
    allocated outside of the loops over the threads of a block.
    """
    threads = THREAD_LOOPS.get(b.scope, ())
    outer = list(takewhile(lambda f: f.kind not in threads, around))
    return outer[-1].name if outer else None


def _shrink(
    b: Buffer, uses: list[Access], depth: int, func: Function
) -> tuple[Buffer, tuple[Int, ...]]:
    zero = tuple(ZERO for _ in b.shape)
    if depth == 0 or (b.scope == "global" and _launched(uses[0].path[:depth])):
        return b, zero
    threads = THREAD_LOOPS.get(b.scope, ())
    box: Box | None = None
    for a in uses:
        inner = {
            f.name: f.extent
            for k, f in enumerate(a.path)
            if k >= depth or f.kind in threads or _is_shared_by(f, b)
        }
        inner |= dict(a.tile)
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


def _is_shared_by(f: For, b: Buffer) -> bool:
    """Whether the blocks that a loop counts have the buffer together."""
    return b.scope == "cluster" and f.note(Cluster) is not None


def _launched(around: Path) -> bool:
    """Whether the loops are part of a GPU launch, whose threads share global memory."""
    return any("Idx" in f.kind for f in around)
