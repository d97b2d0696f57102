"""Vectorized loops over open sizes: whole strips of vectors, whole vectors, and one with a mask."""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.dtype import BOOL, INT64
from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import substitute_body
from tilesmith.codegen.passes.open_loops import is_open
from tilesmith.codegen.passes.strip_vectors import (
    joined,
    kept_in_lanes,
    lanes_at_once,
    lanes_of,
    strip_of,
    strips,
)
from tilesmith.expr.ints import ZERO, Int, of, var
from tilesmith.expr.nodes import Binary, IntValue, Select, plain_combiner
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import For, If, Stmt, Store, rewrite


def strip_open_vectors(func: Function, target: Target) -> Function:
    """Turns a vectorized loop over an open size into a loop over strips of several vectors, one
    over single vectors, and a vector of which some lanes are masked.

    for j in n:  # vectorize             for j.strip in n // 16:
      B[j] = A[j]                          for j.lane in 16: ...    # vectorize
                                   ->    for j.vector in n % 16 // 4:
                                           for j.lane in 4: ...     # vectorize
                                         for j in 4:                # vectorize
                                           if n % 4 - 1 - j >= 0: ...
    """

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if not (isinstance(s, For) and s.kind == "vectorize") or s.extent.const is not None:
            return (s,)
        strip, lanes = strip_of(s.body, target), lanes_of(s.body, target)
        if strip == 1:
            return (replace(s, kind="serial"),)
        whole, w = s.extent // strip * strip, joined(s)
        out = [strips(s, strip)]
        rest = s.extent - whole
        single = max(1, min(lanes, lanes_at_once(s.body, target)))
        if 1 < single < strip:
            vector, lane = f"{s.name}.vector", f"{s.name}.lane"
            at = whole + var(vector) * single + var(lane)
            inner = replace(
                s, name=lane, extent=of(single), body=substitute_body(s.body, {s.name: at})
            )
            out.append(For(vector, rest // single, (inner,)))
            whole = whole + rest // single * single
        tail = substitute_body(s.body, {s.name: whole + var(s.name)})
        inside = s.extent - whole - 1 - var(s.name)
        lanes_left = replace(s, extent=of(single), body=(If((inside,), tail),))
        if w is None:
            return (*out, If((s.extent - whole - 1,), (lanes_left,)))
        masked = replace(lanes_left, body=(_with_neutral(tail, inside),))
        return kept_in_lanes([*out, masked], w)

    return replace(func, body=rewrite(func.body, go)) if is_open(func) else func


def _with_neutral(body: tuple[Stmt, ...], inside: Int) -> Store:
    """A step of a sum that changes nothing unless `inside` is at least 0."""
    (store,) = body
    assert isinstance(store, Store)
    (w,) = store.writes
    e = w.value
    assert isinstance(e, Binary)
    test = Binary("ge", IntValue(inside, INT64), IntValue(ZERO, INT64), BOOL)
    neutral = plain_combiner(e.op, e.dtype).identity[0]
    return Store((replace(w, value=replace(e, b=Select(test, e.b, neutral, e.dtype))),))
