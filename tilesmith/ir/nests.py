"""Nests of loops and conditions, which passes take apart and replace from outside in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilesmith.expr.ints import Int
from tilesmith.ir.nodes import Alloc, Buffer, For, If, Path, Stmt, Store, statements


def rewrite_outer(
    body: tuple[Stmt, ...],
    f: Callable[[Stmt, Path], tuple[Stmt, ...] | None],
    path: Path = (),
) -> tuple[Stmt, ...]:
    """Replaces statements by what f gives for them and the loops around them, outer before inner.
    Where that is None, a statement stays, and what is inside of it is replaced.
    """
    out: list[Stmt] = []
    for s in body:
        new = f(s, path)
        if new is None and isinstance(s, For | If):
            around = (*path, s) if isinstance(s, For) else path
            s = replace(s, body=rewrite_outer(s.body, f, around))
        out += (s,) if new is None else new
    return tuple(out)


def perfect_nest(
    body: tuple[Stmt, ...], kinds: Sequence[str] | None = None
) -> tuple[list[For], tuple[Stmt, ...]]:
    """The loops (of these kinds) that stand alone, each directly in the one before, and what is
    inside of the last one.
    """
    loops: list[For] = []
    while len(body) == 1 and isinstance(f := body[0], For) and (kinds is None or f.kind in kinds):
        loops.append(f)
        body = f.body
    return loops, body


def only_store(s: Stmt) -> tuple[list[For | If], Store] | None:
    """The one store of which a statement consists, and the loops and conditions around it."""
    around: list[For | If] = []
    while isinstance(s, For | If):
        if len(s.body) != 1:
            return None
        around.append(s)
        s = s.body[0]
    return (around, s) if isinstance(s, Store) else None


def unguarded(body: tuple[Stmt, ...]) -> tuple[tuple[Stmt, ...], tuple[Int, ...]]:
    """The statements without conditions around all of them, and these."""
    conds: tuple[Int, ...] = ()
    while len(body) == 1 and isinstance(guard := body[0], If):
        body, conds = guard.body, (*conds, *guard.conds)
    return body, conds


def allocated(body: tuple[Stmt, ...]) -> dict[str, Buffer]:
    """The buffers that statements allocate, by name."""
    return {s.buffer.name: s.buffer for s in statements(body) if isinstance(s, Alloc)}
