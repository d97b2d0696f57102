"""Tests once per vectorized loop whether a guard holds for all of its lanes, so that only partial
vectors are masked.

CPU policy: a branch that is nearly always taken costs less than a mask in every vector, which some
processors carry out lane by lane. Sums that are kept in registers stay as they are: a branch around
them would force them to memory.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.codegen.passes.guards import ends_of
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import For, If, Stmt, Store, rewrite, statements


def full_vectors(func: Function, _: Target) -> Function:
    return replace(func, body=rewrite(func.body, _versions))


def _versions(s: Stmt) -> tuple[Stmt, ...]:
    """for j in 4:  # vectorize          if 255 - i - 3 >= 0:
    if 255 - i - j >= 0: ...    ->       for j in 4: ...
                                       if i + 3 - 255 > 0 and 255 - i >= 0:
                                         for j in 4:
                                           if 255 - i - j >= 0: ...
    """
    if not (isinstance(s, For) and s.kind == "vectorize" and len(s.body) == 1):
        return (s,)
    (guard,) = s.body
    if not isinstance(guard, If) or any(
        isinstance(t, Store) and any(w.accumulates for w in t.writes) for t in statements(s.body)
    ):
        return (s,)
    for p in guard.conds:
        if s.name not in p.names or not p.names - {s.name}:
            continue
        ends = ends_of(p, {s.name: s.extent})
        if len(ends) != 2:
            continue
        low, high = ends
        left = tuple(q for q in guard.conds if q != p)
        full = replace(s, body=(If(left, guard.body),) if left else guard.body)
        return (If((low,), _versions(full)), If((-low - 1, high), (s,)))
    return (s,)
