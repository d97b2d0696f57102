"""Lowers blocks to plain statements: the init of a reduction gets loops of its own, iterators
become loop variables, guards become If.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilesmith.base.target import Target
from tilesmith.codegen.passes.running_results import reads_results
from tilesmith.expr.dynamic import is_loaded
from tilesmith.expr.intervals import proves
from tilesmith.expr.ints import Int
from tilesmith.ir.dependence import running_kind
from tilesmith.ir.function import Function, writers
from tilesmith.ir.initial import split_init
from tilesmith.ir.nodes import (
    COPY_LANES,
    Block,
    For,
    If,
    Stmt,
    Store,
    joined,
    map_operands,
    map_writes,
    rewrite,
    statements,
    walk,
)
from tilesmith.ir.notes import UnrollDepth


def lower_blocks(func: Function, target: Target) -> Function:
    """The body with a Store in place of each block.

    for i in 8:                                  for i in 8:
      for k in 16:                         ->      S[i] = 0
        S(i=i, k:R=k): S[i] += X[i, k]             for k in 16: S[i] = S[i] + X[i, k]
    """
    body = func.body
    for path, b in list(walk(body)):
        if target.kind == "cpu" and (own := reads_results(func, path, b)) is not None:
            unused = b.writes[0].buffer
            func = replace(func, buffers=tuple(x for x in func.buffers if x.name != unused))
            body = rewrite(body, partial(_replaced, own))
        elif b.init:  # the identity is stored before the outermost loop that is reduced over
            also = writers(func, b.writes[0].buffer)[1:]  # such as one that repairs it first
            reducing = [
                f for f in path if f.name in b.reducing_loops and (f.extent.const != 1 or also)
            ]
            first = reducing[0].name if reducing else None
            body = split_init(body, b, path, first)
    ranges = {b.name: {f.name: f.extent for f in path} for path, b in walk(body) if b.intrinsic}
    return replace(
        func,
        body=rewrite(
            body, lambda s: _lower(s, ranges.get(s.name)) if isinstance(s, Block) else (s,)
        ),
    )


def _replaced(b: Block, s: Stmt) -> tuple[Stmt, ...]:
    return (b,) if isinstance(s, Block) and s.name == b.name else (s,)


def _lower(b: Block, ranges: dict[str, Int] | None) -> tuple[Stmt, ...]:
    """`ranges` of the loops around an instruction, which carries out its tile as a whole."""
    env = b.binding

    def put(p: Int) -> Int:
        return p.substitute(env)

    writes = map_writes(b.writes, put)
    if b.combiner is not None:
        writes = tuple(joined(writes, b.combiner))
    stmt: Stmt = Store(writes)
    if b.intrinsic is not None:
        stmt = Store(writes, b.tile, b.intrinsic, map_operands(b.operands, put))
    conds = sorted({*b.where, *map(put, b.domain)}, key=str)
    if ranges is not None:
        inside = {n for n, _ in b.tile}
        around = {**ranges, **dict(b.tile)}
        conds = [p for p in conds if not (p.names & inside and proves(p, around, {}))]
    # Those of loops come first: what others load may only be there if they hold.
    for some in (tuple(p for p in conds if is_loaded(p) is late) for late in (True, False)):
        if some:
            stmt = If(some, (stmt,))
    if b.intrinsic is None:
        for name, extent in reversed(b.tile):
            stmt = For(name, extent, (stmt,), "unroll")
    return (stmt,)


def resolve_notes(func: Function, _: Target) -> Function:
    """Turns the notes that a search left on loops into kinds of loops: `parallel_depth` into
    parallel loops, `unroll_depth` into unrolled ones.
    """
    body = rewrite(func.body, _parallel)
    return replace(func, body=tuple(_unroll(s, 0)[0] for s in body))


def _parallel(s: Stmt) -> tuple[Stmt, ...]:
    if isinstance(s, For) and s.kind == "serial" and running_kind(s) == "parallel":
        return (replace(s, kind="parallel"),)
    return (s,)


def _unroll(s: Stmt, depth: int) -> tuple[Stmt, float | None]:
    """`unroll_depth` n on a loop unrolls the loops inside of it, innermost first, and then the loop
    itself, while that makes at most n copies. Returns the copies so far, None if a loop was kept.
    """
    if isinstance(s, If):
        inner = [_unroll(t, depth) for t in s.body]
        return replace(s, body=tuple(t for t, _ in inner)), _total(inner)
    if not isinstance(s, For):
        return s, 1
    here = depth if (own := s.count(UnrollDepth)) is None else own
    inner = [_unroll(t, here) for t in s.body]
    body = tuple(t for t, _ in inner)
    if any(x is not y for x, y in zip(body, s.body, strict=True)):
        s = replace(s, body=body)
    copies = _total(inner)
    if copies is None:
        return s, None
    if s.extent.const is None:
        return s, None
    n = max(1, s.trips)  # a loop without iterations is dropped later
    if s.kind == "vectorize":
        together = 1 if any(map(_is_by_lane, statements(s.body))) else COPY_LANES
        return s, copies * max(n, together) / together
    if s.kind == "unroll":
        return s, copies * n
    if s.kind == "serial" and here and copies * n <= here:
        return replace(s, kind="unroll"), copies * n
    return s, None


def _is_by_lane(s: Stmt) -> bool:
    """Whether its vectors are written lane by lane: each place, or condition, is loaded."""
    if isinstance(s, If):
        return any(map(is_loaded, s.conds))
    if isinstance(s, Block) and any(map(is_loaded, (*s.where, *s.domain))):
        return True
    return isinstance(s, Block | Store) and any(is_loaded(p) for w in s.writes for p in w.index)


def _total(inner: list[tuple[Stmt, float | None]]) -> float | None:
    total = 0.0
    for _, copies in inner:
        if copies is None:
            return None
        total += copies
    return total
