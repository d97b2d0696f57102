"""Separates the init of a reduction into statements of its own, for decompose_reduction and for
lowering.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilesmith.expr.ints import ZERO, Int, var
from tilesmith.ir.nodes import Block, For, Stmt, walk


def split_init(
    body: tuple[Stmt, ...],
    b: Block,
    path: tuple[For, ...],
    loop: str | None,
    taken: Collection[str] = (),
) -> tuple[Stmt, ...]:
    """`body` with the init of `b` in a loop nest of its own, directly before `loop` (None: before
    the block itself). New loops avoid the names in `taken`.
    """
    assert b.combiner is not None
    at = len(path) if loop is None else [f.name for f in path].index(loop)
    reducing = b.reducing_loops
    inner = [(f.name, f.extent, f.kind) for f in path[at:]] + _tile_loops(b)
    keep = [
        (n, e, k)
        for n, e, k in inner
        if n not in reducing and any(n in i.bind.names for i in b.spatial)
    ]
    names = {n: f"{n}.init" for n, _, _ in keep}
    for n, new in names.items():
        number = 1
        while names[n] in taken:
            names[n], number = f"{new}_{number}", number + 1
    env: dict[str, Int] = {n: var(new) for n, new in names.items()}
    env |= {n: ZERO for n, _, _ in inner if n not in env}
    where = {p.substitute(env) for p in b.where if not p.names & reducing}
    spatial = {i.name for i in b.spatial}
    init = Block(
        f"{b.name}.init",
        tuple(replace(i, bind=i.bind.substitute(env)) for i in b.spatial),
        tuple(
            replace(w, value=c)
            for w, c, kept in zip(b.writes, b.combiner.identity, b.keeps_partial, strict=True)
            if not kept
        ),
        where=frozenset(where),
        domain=frozenset(
            p for p in b.domain if p.names <= spatial | {n for n in p.names if n[0] == "#"}
        ),
    )
    stmt: Stmt = init
    for n, e, kind in reversed(keep):
        stmt = For(names[n], e, (stmt,), kind, owner=b.name)
    rest = replace(b, init=False)

    def go(stmts: tuple[Stmt, ...], depth: int) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in stmts:
            here = depth == at and _holds(s, b.name)
            if here:
                out.append(stmt)
            if isinstance(s, For) and _holds(s, b.name):
                out.append(replace(s, body=go(s.body, depth + 1)))
            elif isinstance(s, Block) and s.name == b.name:
                out.append(rest)
            else:
                out.append(s)
        return tuple(out)

    return go(body, 0)


def _tile_loops(b: Block) -> list[tuple[str, Int, str]]:
    """The loops of a unit's tile. A hardware instruction reads the result as a vector, so it is
    initialised as one: a load right behind stores of its parts would wait for them.
    """
    last = {n for p in b.writes[0].index[-1:] for n in p.substitute(b.binding).names}
    innermost = [n for n, _ in b.tile if n in last][-1:] if b.intrinsic is not None else []
    return [(n, e, "vectorize" if n in innermost else "serial") for n, e in b.tile]


def _holds(s: Stmt, block: str) -> bool:
    return any(b.name == block for _, b in walk((s,)))
