"""Full tiles and tails: a loop is cut where a guard inside it changes its mind, so that most of its
iterations carry no guard.

A guard `p >= 0` inside loop v is looked at with all loops further in at their worst and at their
best. Where the worst is >= 0
the guard always holds, where the best is < 0 it never does; v is cut at those places. A part of a
single iteration becomes a
number, which lets the loops inside be cut in turn, until a tail is an exact smaller tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from tilesmith.codegen.passes.access import substitute_body, tile_ranges
from tilesmith.codegen.passes.simplify import Ranges, simplify_body
from tilesmith.expr.ints import Int, Unknown, bounds, of, var
from tilesmith.expr.nodes import Expr, Select, children, condition_parts
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import For, If, Stmt, Store

# Statements after unrolling that cutting may lead to in all. Past that a guard stays: code that
# large does not pay.
_LIMIT = 768
_MOST_PARTS = 5


def partition(func: Function) -> Function:
    budget = [_LIMIT]
    return replace(func, body=_body(func.body, {}, budget))


def _body(body: tuple[Stmt, ...], ranges: Ranges, budget: list[int]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, For):
            out.extend(_loop(s, ranges, budget))
        elif isinstance(s, If):
            out.append(replace(s, body=_body(s.body, ranges, budget)))
        else:
            out.append(s)
    return tuple(out)


def _loop(s: For, ranges: Ranges, budget: list[int]) -> tuple[Stmt, ...]:
    n = s.extent.const
    here = {**ranges, s.name: s.extent}
    cuts = _cuts(s) if n is not None else []
    # a loop that is written out anyway costs nothing to cut
    cost = 0 if s.kind in ("unroll", "vectorize") else weight(s.body) * len(cuts)
    if not cuts or len(cuts) + 1 > _MOST_PARTS or cost > budget[0]:
        return (replace(s, body=_body(s.body, here, budget)),)
    assert n is not None
    budget[0] -= cost
    ends = [0, *cuts, n]
    parts: list[tuple[int, int, tuple[Stmt, ...]]] = []
    for a, b in pairwise(ends):
        if s.kind == "parallel":  # one parallel loop stays one: the parts become branches inside it
            value = of(a) if b - a == 1 else var(s.name)
            inner = simplify_body(_assume(s, a, b, value), here, {})
        else:
            value = of(a) if b - a == 1 else var(s.name) + a
            part = {**ranges, s.name: of(b - a)}
            inner = simplify_body(substitute_body(s.body, {s.name: value}), part, {})
            here = part
        if inner:
            parts.append((a, b, _body(inner, here, budget)))
    if s.kind == "parallel":
        branches: list[Stmt] = []
        v = var(s.name)
        for a, b, inner in parts:
            conds = ((v - a,) if a else ()) + ((of(b - 1) - v,) if b < n else ())
            branches.extend((If(conds, inner),) if conds else inner)
        return (replace(s, body=tuple(branches)),) if branches else ()
    out: list[Stmt] = []
    for a, b, inner in parts:
        if b - a == 1:
            out.extend(inner)
        else:
            out.append(replace(s, extent=of(b - a), body=inner))
    return tuple(out)


def _assume(s: For, a: int, b: int, value: Int) -> tuple[Stmt, ...]:
    """The body with the guards that a <= v < b decides left out. v itself stays the same loop."""
    if b - a == 1:
        return substitute_body(s.body, {s.name: value})
    shifted = f"{s.name}.at"
    moved = substitute_body(s.body, {s.name: var(shifted) + a})
    decided = simplify_body(moved, {shifted: of(b - a)}, {})
    return substitute_body(decided, {shifted: var(s.name) - a})


def _cuts(s: For) -> list[int]:
    """Where some guard inside starts or stops to hold for good, strictly inside [0, extent)."""
    n = s.extent.const
    assert n is not None
    found: set[int] = set()
    for p, inner in _guards(s.body, {}):
        if s.name not in p.names:
            continue
        try:
            ends = bounds(p, inner)
        except Unknown:
            continue
        for end in ends:
            c, d = (
                end.coefficient(s.name).const,
                (end - end.coefficient(s.name) * var(s.name)).const,
            )
            if c is None or d is None or c == 0:
                continue
            # c*v + d >= 0 begins, or ends, to hold at v = cut
            cut = -(d // c) if c > 0 else d // -c + 1
            if 0 < cut < n:
                found.add(cut)
    return sorted(found)


def _guards(body: tuple[Stmt, ...], inner: Ranges) -> Iterator[tuple[Int, Ranges]]:
    for s in body:
        match s:
            case For():
                yield from _guards(s.body, {**inner, s.name: s.extent})
            case If():
                around = {**inner, **tile_ranges(s.body)}
                for p in s.conds:
                    yield p, around
                yield from _guards(s.body, inner)
            case Store():
                here = {**inner, **dict(s.tile)}
                for w in s.writes:
                    for p in _select_conditions(w.value):
                        yield p, here


def _select_conditions(e: Expr) -> Iterator[Int]:
    if isinstance(e, Select):
        yield from condition_parts(e.cond)[0]
    for x in children(e):
        yield from _select_conditions(x)


def weight(body: tuple[Stmt, ...]) -> int:
    """Statements after unrolling."""
    total = 0
    for s in body:
        if isinstance(s, For):
            n = s.extent.const or 1
            times = n if s.kind == "unroll" else max(1, n // 8) if s.kind == "vectorize" else 1
            total += times * weight(s.body)
        elif isinstance(s, If):
            total += weight(s.body)
        else:
            total += 1
    return total
