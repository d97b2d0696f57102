"""Accesses of lowered statements: lists the loads and writes of a body with the loops around them,
and rewrites their indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from tilesmith.expr.dynamic import loads_of, map_loads
from tilesmith.expr.ints import Int
from tilesmith.expr.nodes import Load, map_ints
from tilesmith.ir.nodes import For, If, Join, Path, Stmt, Store, Write


@dataclass(frozen=True, slots=True)
class Access:
    path: Path
    buffer: str
    index: tuple[Int, ...]
    write: bool
    tile: tuple[tuple[str, Int], ...] = ()


def accesses(body: tuple[Stmt, ...], path: Path = ()) -> Iterator[Access]:
    for s in body:
        if isinstance(s, For):
            yield from accesses(s.body, (*path, s))
        elif isinstance(s, If):
            yield from accesses(s.body, path)
        elif isinstance(s, Store):
            for w in s.writes:
                yield Access(path, w.buffer, w.index, True, s.tile)
                for load in loads_of(w.value):
                    yield Access(path, load.buffer, load.index, False, s.tile)
        elif isinstance(s, Join):
            for x in s.values:
                yield Access(path, x.buffer, x.index, True)
                yield Access(path, x.buffer, x.index, False)


def tile_ranges(body: tuple[Stmt, ...]) -> dict[str, Int]:
    """The loops that instructions in `body` carry out themselves. A guard around such an
    instruction may depend on them.
    """
    return {n: e for s in body if isinstance(s, Store) for n, e in s.tile}


Moved = TypeVar("Moved", bound=Store | Join)


def common_loops(uses: list[Access]) -> Path:
    """The loops around all of them. Lowering copies loops with their names, so that the name alone
    does not tell.
    """
    depth = 0
    first = uses[0].path
    while all(len(a.path) > depth and a.path[depth] is first[depth] for a in uses):
        depth += 1
    return first[:depth]


def map_access(s: Moved, f: Callable[[str, tuple[Int, ...]], tuple[Int, ...]]) -> Moved:
    """The statement with the index of every access replaced by f(buffer, index)."""

    def put(load: Load) -> Load:
        return replace(load, index=f(load.buffer, load.index))

    if isinstance(s, Join):
        return replace(s, values=tuple(map(put, s.values)))
    writes = tuple(Write(w.buffer, f(w.buffer, w.index), map_loads(w.value, put)) for w in s.writes)
    operands = tuple((n, replace(x, index=f(x.buffer, x.index))) for n, x in s.operands)
    return replace(s, writes=writes, operands=operands)


def substitute_body(body: tuple[Stmt, ...], env: dict[str, Int]) -> tuple[Stmt, ...]:
    """The body with loop variables replaced by values."""
    if not env:
        return body

    def put(p: Int) -> Int:
        return p.substitute(env)

    out: list[Stmt] = []
    for s in body:
        match s:
            case For():
                inner = substitute_body(s.body, env)
                out.append(For(s.name, s.extent, inner, s.kind, s.notes))
            case If():
                conds = tuple(map(put, s.conds))
                out.append(If(conds, substitute_body(s.body, env)))
            case Store():
                writes = tuple(
                    Write(w.buffer, tuple(map(put, w.index)), map_ints(w.value, put))
                    for w in s.writes
                )
                operands = tuple(
                    (n, replace(x, index=tuple(map(put, x.index)))) for n, x in s.operands
                )
                out.append(Store(writes, s.tile, s.intrinsic, operands))
            case Join():
                out.append(map_access(s, lambda _, index: tuple(map(put, index))))
            case _:
                out.append(s)
    return tuple(out)
