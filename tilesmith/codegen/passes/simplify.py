"""Folds what is constant once all sizes are numbers: loops of one iteration, guards that always or
never hold, divisions and selects with a known result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import map_access, tile_ranges
from tilesmith.expr.dynamic import condition_parts
from tilesmith.expr.intervals import Unknown, bounds
from tilesmith.expr.ints import (
    ZERO,
    FloorDiv,
    Int,
    Maximum,
    Opaque,
    atom,
    is_size,
    nonnegative,
    of,
    opaque_atoms,
)
from tilesmith.expr.nodes import Binary, Expr, Select, map_own_ints, rewrite
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, For, If, Join, Stmt, Store, Write, map_operands

Ranges = dict[str, Int]
Index = tuple[Int, ...]


def simplify(func: Function, _: Target) -> Function:
    return replace(func, body=simplify_body(func.body, {}, {}))


def simplify_body(body: tuple[Stmt, ...], ranges: Ranges, env: dict[str, Int]) -> tuple[Stmt, ...]:
    """`ranges` are the loops around; `env` gives the values of loops that were removed."""
    out: list[Stmt] = []
    for s in body:
        match s:
            case For():
                if s.extent.const == 0:
                    continue
                if s.extent.const == 1:
                    inner = simplify_body(s.body, ranges, {**env, s.name: ZERO})
                    # a GPU launch keeps its loops over blocks and threads
                    launch = s.kind in ("blockIdx.x", "threadIdx.x")
                    out.extend((replace(s, body=inner),) if launch else inner)
                    continue
                inner = simplify_body(s.body, {**ranges, s.name: s.extent}, env)
                if not idle(inner):
                    out.append(For(s.name, s.extent, inner, s.kind, s.notes))
            case If():
                around = {**ranges, **tile_ranges(s.body)}
                conds = _conditions(tuple(p.substitute(env) for p in s.conds), around)
                if conds is None:
                    continue
                inner = simplify_body(s.body, ranges, env)
                if not conds:
                    out.extend(inner)
                elif not idle(inner):
                    out.append(If(conds, inner))
            case Store():
                out.append(_store(s, ranges, env))
            case Join():
                out.append(map_access(s, _cleaning(ranges, env)))
            case _:
                out.append(s)
    return tuple(out)


def idle(body: tuple[Stmt, ...]) -> bool:
    """Whether the body only allocates buffers."""
    return all(isinstance(s, Alloc) for s in body)


def _cleaning(ranges: Ranges, env: dict[str, Int]) -> Callable[[str, Index], Index]:
    return lambda _, index: tuple(clean(p.substitute(env), ranges) for p in index)


def _store(s: Store, ranges: Ranges, env: dict[str, Int]) -> Store:
    inside = {**ranges, **dict(s.tile)} if s.tile else ranges

    def put(p: Int) -> Int:
        return clean(p.substitute(env), inside)

    def value(e: Expr) -> Expr:
        return rewrite(e, lambda x: _decided(map_own_ints(x, put), inside))

    writes = tuple(Write(w.buffer, tuple(map(put, w.index)), value(w.value)) for w in s.writes)
    return Store(writes, s.tile, s.intrinsic, map_operands(s.operands, put))


def _conditions(conds: tuple[Int, ...], ranges: Ranges) -> tuple[Int, ...] | None:
    """The conditions that remain to be tested; None if one of them never holds."""
    keep: list[Int] = []
    for p in conds:
        p = coarse(clean(p, ranges), ranges)
        truth = decide(p, ranges)
        if truth is False:
            return None
        if truth is None and p not in keep:
            keep.append(p)
    return tuple(
        p for k, p in enumerate(keep)
        if not any(
            q is not p and decide(p - q, ranges) is True
            and (j < k or decide(q - p, ranges) is not True)
            for j, q in enumerate(keep)
        )
    )  # fmt: skip


def _decided(e: Expr, ranges: Ranges) -> Expr:
    """A select whose condition is constant, replaced by the side that is taken; a conjunction
    without the part that always holds, so that what is known of one loop is not lost while another
    one is still to be split.
    """
    match e:
        case Binary(op="and"):
            return e.b if _holds(e.a, ranges) else e.a if _holds(e.b, ranges) else e
        case Select():
            parts, rest = condition_parts(e.cond)
            truths = [decide(p, ranges) for p in parts]
            if any(t is False for t in truths):
                return e.b
            if not rest and all(t is True for t in truths):
                return e.a
    return e


def _holds(e: Expr, ranges: Ranges) -> bool:
    """Whether a part of a conjunction, not one itself, is a comparison that always holds."""
    if isinstance(e, Binary) and e.op == "and":
        return False
    parts, rest = condition_parts(e)
    return not rest and all(decide(p, ranges) is True for p in parts)


def decide(p: Int, ranges: Ranges) -> bool | None:
    """True if p >= 0 always, False if never, None if it depends."""
    try:
        low, high = bounds(p, ranges)
    except Unknown:
        return None
    lo, hi = low.const, high.const
    if lo is not None and lo >= 0:
        return True
    if hi is not None:
        return False if hi < 0 else None
    if any(map(is_size, low.names)) and nonnegative(low):
        return True
    return False if any(map(is_size, high.names)) and nonnegative(-high - 1) else None


def coarse(p: Int, ranges: Ranges) -> Int:
    """A condition equivalent to p >= 0 without the terms that are too small to change it: with j in
    4, `59 - 4*i - j >= 0` is `14 - i >= 0`.
    """
    steps = {abs(c) for m, c in p.terms.items() if m}
    for step in sorted(steps - {1}, reverse=True):
        large = Int({m: c for m, c in p.terms.items() if m and c % step == 0})
        try:
            low, high = bounds(p - large, ranges)
        except Unknown:
            continue
        lo, hi = low.const, high.const
        if lo is not None and hi is not None and lo // step == hi // step:
            return Int({m: c // step for m, c in large.terms.items()}) + lo // step
    return p


def clean(p: Int, ranges: Ranges) -> Int:
    """Replaces floor divisions and maxima that are constant within the ranges by numbers."""
    if p.plain:
        return p
    env: dict[Opaque, Int] = {}
    for a in opaque_atoms(p):
        if isinstance(a, FloorDiv):
            new = _fixed_quotient(a, ranges)
            if new is not None:
                env[a] = new
        elif isinstance(a, Maximum):
            if decide(a.a - a.b, ranges) is True:
                env[a] = a.a
            elif decide(a.b - a.a, ranges) is True:
                env[a] = a.b
    if not env:
        return p
    out = ZERO
    for m, c in p.terms.items():
        term = of(c)
        for part in m:
            is_replaced = isinstance(part, Opaque) and part in env
            term = term * (env[part] if is_replaced else atom(part))  # type: ignore[index]
        out = out + term
    return out


def _fixed_quotient(a: FloorDiv, ranges: Ranges) -> Int | None:
    try:
        low, high = bounds(a.a, ranges)
    except Unknown:
        return None
    lo, hi, n = low.const, high.const, a.b.const
    if lo is None or hi is None or n is None:
        return None
    return of(lo // n) if lo // n == hi // n else None
