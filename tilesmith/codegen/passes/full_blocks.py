"""GPU: of a launch with open sizes, blocks whose tile lies inside of all axes run code without the
tests of where an axis ends. The others, at the ends, run the code with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.codegen.passes.guards import (
    decided,
    ends_of,
    guards_of,
    is_open_guard,
    weight,
)
from tilesmith.codegen.passes.mask_tiles import is_matrix_product
from tilesmith.codegen.passes.open_loops import is_open
from tilesmith.codegen.passes.simplify import Ranges, simplify_body
from tilesmith.expr.ints import Int, maximum
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, For, If, Join, Stmt, statements

_LAUNCH = ("blockIdx.x", "threadIdx.x")
_MOST_OPERATIONS = 16384  # of a body of which there are two versions


def full_blocks(func: Function, _: Target) -> Function:
    """for i.0 in (n + 63) // 64:  # blockIdx.x       for i.0 in (n + 63) // 64:  # blockIdx.x
    for t in 64:  # threadIdx.x                       for t in 64:  # threadIdx.x
      if n - 1 - 64*i.0 - t >= 0: ...           ->      if n - 64 - 64*i.0 >= 0: ...
                                                        if 63 - n + 64*i.0 >= 0:
                                                          if n - 1 - 64*i.0 - t >= 0: ...
    """
    if not is_open(func):
        return func
    return replace(func, body=tuple(_launch(s, {}) for s in func.body))


def _launch(s: Stmt, threads: Ranges) -> Stmt:
    if not isinstance(s, For) or s.kind not in _LAUNCH:
        return s
    if s.kind == "threadIdx.x":
        threads = {**threads, s.name: s.extent}
    if any(isinstance(t, For) and t.kind in _LAUNCH for t in s.body):
        return replace(s, body=tuple(_launch(t, threads) for t in s.body))
    own = tuple(t for t in s.body if isinstance(t, Alloc))
    rest = tuple(t for t in s.body if not isinstance(t, Alloc))
    return replace(s, body=(*own, *_versions(rest, threads)))


def _versions(body: tuple[Stmt, ...], threads: Ranges) -> tuple[Stmt, ...]:
    """The conditions depend on the block alone, so that barriers may stand below them."""
    loops = {s.name for s in statements(body) if isinstance(s, For)} | threads.keys()
    work: dict[Int, int] = {}
    for g in guards_of(body):
        ends = ends_of(g.cond, {**threads, **g.inner})
        low = ends[0] if is_open_guard(g) and ends else None
        if low is not None and low.const is None and low.plain and not low.names & loops:
            work[low] = work.get(low, 0) + g.work
    lows = _weighty(work)
    whole = any(isinstance(s, Join) or is_matrix_product(s) for s in statements(body))
    if not lows or whole or weight(body) > _MOST_OPERATIONS:
        return body

    def holds(p: Int, inner: Ranges) -> bool:
        ends = ends_of(p, inner)
        return bool(ends) and any(
            (more := (ends[0] - f).const) is not None and more >= 0 for f in lows
        )

    full = simplify_body(decided(body, holds, threads), threads, {})
    first, *others = lows
    least = first
    for low in others:
        least = least + low - maximum(least, low)
    return (If(tuple(lows), full), If((-least - 1,), body))


def _weighty(work: Mapping[Int, int]) -> list[Int]:
    """Of conditions that differ by numbers, the one that most work depends on: threads that copy a
    tile go beyond its end where their number does not divide it, and test that themselves.
    """
    found: list[Int] = []
    for low in sorted(work, key=lambda p: -work[p]):
        if all((low - other).const is None for other in found):
            found.append(low)
    return found
