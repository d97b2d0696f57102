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
from tilesmith.expr.conditions import condition_parts
from tilesmith.expr.intervals import proves
from tilesmith.expr.ints import ZERO, Int
from tilesmith.expr.nodes import Const, Expr, Load, Select
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, For, If, Stmt, Store, statements
from tilesmith.ir.tensor_cores import BULK_COPY, WARPGROUP

Shapes = dict[str, tuple[Int, ...]]


def bulk_copies(func: Function, _: Target) -> Function:
    """Takes lowered statements with physical indices."""
    wanted = tiles_of(func.body)
    if not wanted:
        return func
    allocs = [s.buffer for s in statements(func.body) if isinstance(s, Alloc)]
    held = frozenset(b.name for b in allocs if b.scope != "global")
    shapes = {b.name: b.shape for b in (*func.params, *allocs)}
    return replace(func, body=_body(func.body, {}, wanted, held, shapes))


def tiles_of(body: tuple[Stmt, ...]) -> frozenset[str]:
    """The buffers that matrix instructions of several warps read, in tiles of their own kind."""
    return frozenset(
        x.buffer
        for s in statements(body)
        if isinstance(s, Store) and s.intrinsic is not None and s.intrinsic.fragment is not None
        for name, x in s.operands
        if name != s.intrinsic.output and s.intrinsic.fragment.threads == WARPGROUP
    )


def source_of(value: Expr) -> Load | None:
    """What is copied, also where zeros take the place of what lies outside of the tensor."""
    inner = value.a if isinstance(value, Select) else value
    return inner if isinstance(inner, Load) else None


def _fills_zeros(
    value: Expr, load: Load, shape: tuple[Int, ...] | None, ranges: dict[str, Int]
) -> bool:
    """Whether the value is the element, or 0 exactly where the index lies outside: so the copy
    engine does it.
    """
    if not isinstance(value, Select):
        return True
    conds, others = condition_parts(value.cond)
    if shape is None or others or not (isinstance(value.b, Const) and value.b.value == 0):
        return False
    inside = {q for p, n in zip(load.index, shape, strict=True) for q in (p, n - 1 - p)}
    return all(p in inside or proves(p, ranges, {}) for p in conds)


def _body(
    body: tuple[Stmt, ...], ranges: dict[str, Int], wanted: frozenset[str], held: frozenset[str],
    shapes: Shapes,
) -> tuple[Stmt, ...]:  # fmt: skip
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, For):
            copy = _copy(s, ranges, wanted, held, shapes)
            inner = {**ranges, s.name: s.extent}
            out.append(copy or replace(s, body=_body(s.body, inner, wanted, held, shapes)))
        elif isinstance(s, If):
            out.append(replace(s, body=_body(s.body, ranges, wanted, held, shapes)))
        else:
            out.append(s)
    return tuple(out)


def _copy(
    s: For, ranges: dict[str, Int], wanted: frozenset[str], held: frozenset[str], shapes: Shapes
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
    load = source_of(write.value)
    if write.buffer not in wanted or load is None or load.buffer in held:
        return None
    shape = shapes.get(load.buffer)
    if any(not p.plain for p in load.index) or not _fills_zeros(write.value, load, shape, around):
        return None
    tile = tuple((f.name, f.extent) for f in loops if f.name not in single)
    return Store(store.writes, tile, BULK_COPY)
