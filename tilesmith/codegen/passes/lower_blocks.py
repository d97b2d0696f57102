"""Lowers blocks to plain statements: the init of a reduction gets loops of its own, iterators
become loop variables, guards become If.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.expr.ints import Int
from tilesmith.expr.nodes import Load, substitute
from tilesmith.ir.function import Function
from tilesmith.ir.initial import split_init
from tilesmith.ir.nodes import Block, For, If, Stmt, Store, Write, joined, rewrite, walk


def lower_blocks(func: Function, _: Target) -> Function:
    body = func.body
    for path, b in list(walk(body)):
        if b.init:  # the identity is stored before the outermost loop that is reduced over
            reducing = [f for f in path if f.name in b.reducing_loops and f.extent.const != 1]
            first = reducing[0].name if reducing else None
            body = split_init(body, b, path, first)
    return replace(func, body=rewrite(body, lambda s: _lower(s) if isinstance(s, Block) else (s,)))


def _lower(b: Block) -> tuple[Stmt, ...]:
    env = b.binding

    def put(p: Int) -> Int:
        return p.substitute(env)

    writes = []
    for w in b.writes:
        writes.append(Write(w.buffer, tuple(map(put, w.index)), substitute(w.value, env)))
    if b.combiner is not None:
        writes = joined(writes, b.combiner)
    stmt: Stmt
    if b.intrinsic is not None:
        operands = tuple(
            (n, Load(x.buffer, tuple(map(put, x.index)), x.dtype)) for n, x in b.operands
        )
        stmt = Store(tuple(writes), b.tile, b.intrinsic, operands)
    else:
        stmt = Store(tuple(writes))
    conds = tuple(sorted({*b.where, *map(put, b.domain)}, key=str))
    if conds:
        stmt = If(conds, (stmt,))
    if b.intrinsic is None:
        for name, extent in reversed(b.tile):
            stmt = For(name, extent, (stmt,), "unroll")
    return (stmt,)
