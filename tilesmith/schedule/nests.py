"""Builds and edits loop nests, for the primitives that move or add blocks: fresh names, the loops
of a block, and statements put in or taken out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import ZERO, Int, is_size, var
from tilesmith.ir.function import Function
from tilesmith.ir.lookup import all_loops
from tilesmith.ir.nodes import Block, For, Stmt, rewrite, walk

Span = tuple[Int, Int]  # first value, number of values


def loop_names(func: Function) -> set[str]:
    """The names that a new loop must not have."""
    return {f.name for f in all_loops(func.body)} | {
        n for _, b in walk(func.body) for n, _ in b.tile
    }


def fresh(name: str, taken: set[str]) -> str:
    """`name`, or `name_1`, `name_2`, ... if it is taken."""
    unique, n = name, 1
    while unique in taken:
        unique, n = f"{name}_{n}", n + 1
    taken.add(unique)
    return unique


def nest(func: Function, b: Block, spans: Mapping[str, Span] | None = None) -> Stmt:
    """The block in a new loop nest of its own. A loop runs over the span given for its iterator,
    or over the whole extent.
    """
    spans = spans or {}
    taken = loop_names(func)
    loops, iters = [], []
    for i in b.iters:
        first, count = spans.get(i.name, (ZERO, i.extent))
        name = fresh(f"{b.name}.{i.name}", taken)
        loops.append((name, count))
        iters.append(replace(i, bind=first + var(name)))
    stmt: Stmt = replace(b, iters=tuple(iters))
    for name, count in reversed(loops):
        stmt = For(name, count, (stmt,), owner=b.name)
    return stmt


def drop(func: Function, name: str) -> Function:
    """Removes a block, and the loops that contained nothing else."""
    return replace(
        func,
        body=rewrite(func.body, lambda s: () if isinstance(s, Block) and s.name == name else (s,)),
    )


def trivial_index(b: Block, why: str) -> tuple[str, ...]:
    """The iterators that index the block's writes, one per dimension."""
    spatial = {i.name for i in b.spatial}
    out = []
    for p in b.writes[0].index:
        if p.name is None or p.name not in spatial:
            raise ScheduleError(
                f"cannot {why} {b.name}: it writes at {p}, which is not one of its iterators"
            )
        out.append(p.name)
    if len(set(out)) != len(out) or any(w.index != b.writes[0].index for w in b.writes):
        raise ScheduleError(f"cannot {why} {b.name}: its writes do not share one plain index")
    return tuple(out)


def place(
    func: Function, b: Block, spans: dict[str, Span], guards: frozenset[Int], loop: str, at: int
) -> Function:
    """Puts `b` in a new loop nest over the spans, as statement number `at` of the loop's body."""
    for name, (_, count) in spans.items():
        if not all(map(is_size, count.names)):
            raise ScheduleError(
                f"cannot place {b.name} at loop {loop}: how much of {name} it needs, {count}, "
                "differs from one iteration to the next"
            )
    stmt = nest(func, replace(b, where=frozenset()), spans)
    (placed,) = (o for _, o in walk((stmt,)))
    inside = {p for i in placed.iters if i.name in spans for p in (i.bind, i.extent - 1 - i.bind)}

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Block) and s is placed:
            return (replace(placed, where=guards | inside),)
        return (s,)

    guarded = rewrite((stmt,), go)

    def insert(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, For) and s.name == loop:
            return (replace(s, body=(*s.body[:at], *guarded, *s.body[at:])),)
        return (s,)

    return replace(func, body=rewrite(func.body, insert))
