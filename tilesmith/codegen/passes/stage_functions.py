"""Computes a function such as exp or erf for several short rows at once, by way of a small buffer.

CPU policy: on some processors such a function is fast if each step of it is issued for a group of
registers (`lanes_at_once`). The tile of a product that a function follows has shorter rows.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.dtype import FLOAT32, FLOAT64
from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import substitute_body
from tilesmith.codegen.passes.strip_vectors import function_in, lanes_at_once, lanes_of
from tilesmith.expr.dynamic import loads_of
from tilesmith.expr.ints import of, var
from tilesmith.expr.nodes import Expr, Load, Select, children, rewrite
from tilesmith.expr.walk import preorder
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, Buffer, For, Stmt, Store, Write
from tilesmith.ir.nodes import rewrite as rewrite_statements
from tilesmith.ir.notes import UnrollDepth

_MOST_ROWS = 8  # which are written out


def stage_functions(func: Function, target: Target) -> Function:
    """for i in 64:                                for i.group in 8:
    for j in 12:  # vectorize                      staged = local float32[96]
      y[i, j] = a[i, j] * erf(b[i, j])    ->       for i in 8:  # unroll
                                                     for j in 12:  # vectorize
                                                       staged[12*i + j] = b[8*i.group + i, j]
                                                   for l in 96:  # vectorize
                                                     staged[l] = erf(staged[l])
                                                   for i in 8:  # unroll
                                                     for j in 12:  # vectorize
                                                       y[...] = a[...] * staged[12*i + j]
    """
    if target.machine.function_vectors == 1:
        return func

    def go(s: Stmt) -> tuple[Stmt, ...]:
        found = _short_rows(s, target)
        return (s,) if found is None else _staged(*found, target)

    return replace(func, body=rewrite_statements(func.body, go))


def _short_rows(s: Stmt, target: Target) -> tuple[For, For] | None:
    """A loop over rows, and that over the lanes of a row, if they compute just one function."""
    if not (isinstance(s, For) and s.kind in ("serial", "unroll") and len(s.body) == 1):
        return None
    (lanes,) = s.body
    if not (isinstance(lanes, For) and lanes.kind == "vectorize" and len(lanes.body) == 1):
        return None
    (store,) = lanes.body
    if not isinstance(store, Store) or store.intrinsic is not None or len(store.writes) != 1:
        return None
    (w,) = store.writes
    if s.extent.const is None:  # how many rows are computed together depends on their number
        return None
    n = lanes.trips
    least = lanes_of(lanes.body, target)
    if lanes.notes or not all(isinstance(n, UnrollDepth) for n in s.notes):
        return None
    if not least <= n < lanes_at_once(lanes.body, target):
        return None
    function = function_in(w.value)
    if function is None or function.dtype not in (FLOAT32, FLOAT64) or s.likely_trips < 2:
        return None
    # a row may be computed from the one before, and a condition may protect what is loaded
    sure = {e for e in preorder(w.value, _unguarded) if isinstance(e, Load)}
    if any(load.buffer == w.buffer for load in loads_of(w.value)):
        return None
    return (s, lanes) if sure.issuperset(loads_of(function.x)) else None


def _unguarded(e: Expr) -> tuple[Expr, ...]:
    """The operands that are computed whenever e is."""
    return (e.cond,) if isinstance(e, Select) else children(e)


def _staged(rows: For, lanes: For, target: Target) -> tuple[Stmt, ...]:
    n, count = lanes.trips, rows.trips
    together = _together(n, count, lanes_at_once(lanes.body, target))
    group, row, flat = (f"{rows.name}.{part}" for part in ("group", "row", "lane"))
    env = {rows.name: var(group) * together + var(row)}
    (store,) = substitute_body(lanes.body, env)
    assert isinstance(store, Store)
    (w,) = store.writes
    function = function_in(w.value)
    assert function is not None
    staged = Buffer(f"{rows.name}.staged", (of(together * n),), function.dtype, "local")
    at = (var(row) * n + var(lanes.name),)

    def each(write: Write) -> For:
        return For(row, of(together), (replace(lanes, body=(Store((write,)),)),), "unroll")

    def put(e: Expr) -> Expr:
        return Load(staged.name, at, e.dtype) if e == function else e

    computed = replace(function, x=Load(staged.name, (var(flat),), function.dtype))
    all_rows = Store((Write(staged.name, (var(flat),), computed),))
    body = (
        Alloc(staged),
        each(Write(staged.name, at, function.x)),
        For(flat, of(together * n), (all_rows,), "vectorize"),
        each(replace(w, value=rewrite(w.value, put))),
    )
    groups = replace(rows, name=group, extent=of(count // together), body=body)
    rest = count % together
    if not rest:
        return (groups,)
    tail = substitute_body(rows.body, {rows.name: var(rows.name) + (count - rest)})
    return (groups, replace(rows, extent=of(rest), body=tail))


def _together(n: int, count: int, lanes: int) -> int:
    """How many rows of n fill whole groups of lanes best; the fewest such."""

    def filled(k: int) -> float:
        return k * n // lanes * lanes / (k * n) if k * n >= lanes else k / count

    return max(range(2, min(_MOST_ROWS, count) + 1), key=lambda k: (filled(k), -k))
