"""GPU: puts the steps of an unrolled sum outside of the tile that they add to.

The text of an unrolled nest has a load wherever it has a use. With the steps outside, all uses of
an element are in one step, which loads it once (load_fragments.py). The order in which an element's
terms are added stays the same.

    for i in 4:  # unroll                           for k in 8:  # unroll, a step
      for k in 8:  # unroll                   ->      for i in 4:  # unroll
        for j in 4:  # unroll                           for j in 4:  # unroll
          C[i, j] += A.shared[i, k] * B.shared[k, j]      C[i, j] += ...

NVRTC compares every load with all loads before it, which takes most of its time, and the assembler
does that once more. So the innermost step gets the note STEP: the C text tells the compiler to keep
the loads of steps apart.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.expr.dynamic import loads_of
from tilesmith.expr.linear import linear
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, Buffer, For, Stmt, Store, rewrite, statements

STEP = "step"


def steps_outside(func: Function, _: Target) -> Function:
    """Takes launch form."""
    buffers = {s.buffer.name: s.buffer for s in statements(func.body) if isinstance(s, Alloc)}

    def go(s: Stmt) -> tuple[Stmt, ...]:
        return (_reordered(s, buffers),) if isinstance(s, For) else (s,)

    return replace(func, body=rewrite(func.body, go))


def _reordered(s: For, buffers: dict[str, Buffer]) -> For:
    """`rewrite` comes from inside, so what is around the nest is added to it loop by loop."""
    loops: list[For] = []
    inner: Stmt = s
    while isinstance(inner, For) and len(inner.body) == 1:
        loops.append(inner)
        inner = inner.body[0]
    if not isinstance(inner, Store) or len(inner.writes) != 1 or inner.intrinsic is not None:
        return s
    (write,) = inner.writes
    held = buffers.get(write.buffer)
    if held is None or held.scope != "local" or not all(p.plain for p in write.index):
        return s
    loads = dict.fromkeys(loads_of(write.value))
    if any(x.buffer == write.buffer and x.index != write.index for x in loads):
        return s
    place = linear(write.index, held.strides)
    tile = [f for f in loops if f.name in place.names]
    steps = [f for f in loops if f.name not in place.names]
    # Loops over registers are unrolled in any case.
    unrolled = all(f.kind == "unroll" for f in steps)
    unrolled = unrolled and all(f.kind in ("unroll", "serial") for f in tile)
    moves = [(place.coefficient(f.name).const, f.extent.const) for f in tile]
    if not steps or not unrolled or not _distinct(moves):
        return s
    scopes = {buffers[x.buffer].scope if x.buffer in buffers else "global" for x in loads}
    apart = "shared" in scopes and scopes <= {"shared", "local"}
    if loops == steps + tile and not apart:
        return s
    stmt: Stmt = inner
    for f in reversed(steps + tile):
        notes = tuple((key, x) for key, x in f.notes if key != STEP)
        if apart and f is steps[-1]:
            notes = (*notes, (STEP, True))
        stmt = replace(f, body=(stmt,), notes=notes)
    assert isinstance(stmt, For)
    return stmt


def _distinct(moves: list[tuple[int | None, int | None]]) -> bool:
    """Whether no two iterations write the same element: each loop moves it by more than all that
    move it by less.
    """
    reach = 0
    for step, extent in sorted((abs(m or 0), n or 0) for m, n in moves):
        if step <= reach or not extent:
            return False
        reach += step * (extent - 1)
    return True
