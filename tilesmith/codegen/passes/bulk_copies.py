"""GPU: makes a copy to a tile that a matrix instruction reads one statement, which one thread hands
to the copy engine.

    for i in 128:                          A.shared[i, k] = A[...]  # cuda.bulk_copy over i:128 k:64
      for k in 64:                   ->
        A.shared[i, k] = A[...]
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.codegen.passes.simplify import simplify_body
from tilesmith.expr.ints import ZERO, Int
from tilesmith.expr.nodes import Load
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, For, If, Stmt, Store, statements
from tilesmith.ir.tensor_cores import BULK_COPY


def bulk_copies(func: Function, _: Target) -> Function:
    """Takes lowered statements with physical indices."""
    wanted = tiles_of(func.body)
    if not wanted:
        return func
    held = {s.buffer.name for s in statements(func.body) if isinstance(s, Alloc)}
    return replace(func, body=_body(func.body, {}, wanted, frozenset(held)))


def tiles_of(body: tuple[Stmt, ...]) -> frozenset[str]:
    """The buffers that matrix instructions read."""
    return frozenset(
        x.buffer
        for s in statements(body)
        if isinstance(s, Store) and s.intrinsic is not None and s.intrinsic.fragment is not None
        for name, x in s.operands
        if name != s.intrinsic.output
    )


def _body(
    body: tuple[Stmt, ...], ranges: dict[str, Int], wanted: frozenset[str], held: frozenset[str]
) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, For):
            copy = _copy(s, ranges, wanted, held)
            inner = {**ranges, s.name: s.extent}
            out.append(copy or replace(s, body=_body(s.body, inner, wanted, held)))
        elif isinstance(s, If):
            out.append(replace(s, body=_body(s.body, ranges, wanted, held)))
        else:
            out.append(s)
    return tuple(out)


def _copy(
    s: For, ranges: dict[str, Int], wanted: frozenset[str], held: frozenset[str]
) -> Store | None:
    """The nest as one statement, if it is a copy from global memory without conditions."""
    loops: list[For] = []
    inner: tuple[Stmt, ...] = (s,)
    while len(inner) == 1 and isinstance(f := inner[0], For):
        loops.append(f)
        inner = f.body
    around = {**ranges, **{f.name: f.extent for f in loops}}
    single: dict[str, Int] = {f.name: ZERO for f in loops if f.extent.const == 1}
    inner = simplify_body(inner, around, single)
    if len(inner) != 1 or not isinstance(store := inner[0], Store) or len(store.writes) != 1:
        return None
    (write,) = store.writes
    if write.buffer not in wanted or not isinstance(load := write.value, Load):
        return None
    if load.buffer in held or any(not p.plain for p in load.index):
        return None
    tile = tuple((f.name, f.extent) for f in loops if f.name not in single)
    return Store(store.writes, tile, BULK_COPY)
