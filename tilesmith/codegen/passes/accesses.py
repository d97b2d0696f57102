"""Accesses of lowered statements: lists the loads and writes of a body with the loops around them,
and rewrites their indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from tilesmith.base.dataclass import dataclass
from tilesmith.expr.dynamic import index_loads, loads_of, map_dynamic, map_loads
from tilesmith.expr.ints import Int, var
from tilesmith.expr.nodes import Load, map_index
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import (
    Buffer,
    For,
    If,
    Join,
    Path,
    Stmt,
    Store,
    Write,
    map_operands,
    map_writes,
)


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
            for load in (x for p in s.conds for x in index_loads(p)):
                yield Access(path, load.buffer, load.index, False)
            yield from accesses(s.body, path)
        elif isinstance(s, Store):
            for w in s.writes:
                yield Access(path, w.buffer, w.index, True, s.tile)
                for load in chain(loads_of(w.value), *map(index_loads, w.index)):
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


def uses_of(func: Function) -> dict[str, list[Access]]:
    """The accesses of each intermediate buffer."""
    uses: dict[str, list[Access]] = {b.name: [] for b in func.buffers}
    for a in accesses(func.body):
        if a.buffer in uses:
            uses[a.buffer].append(a)
    return uses


def common_loops(uses: list[Access]) -> Path:
    """The loops around all of them. Lowering copies loops with their names, so that the name alone
    does not tell.
    """
    depth = 0
    first = uses[0].path
    while all(len(a.path) > depth and a.path[depth] is first[depth] for a in uses):
        depth += 1
    return first[:depth]


def with_dimensions(b: Buffer, extents: tuple[Int, ...]) -> Buffer:
    """The buffer with further dimensions in front."""
    count = len(extents)
    layout, align = b.layout, b.align
    if layout is not None:
        names = {f"d{k}": var(f"d{k + count}") for k in range(len(b.shape))}
        lead = (var(f"d{k}") for k in range(count))
        layout = (*lead, *(p.substitute(names) for p in layout))
    if align is not None:
        align = (align[0] + count, *align[1:])
    return replace(b, shape=(*extents, *b.shape), layout=layout, align=align)


def are_distinct(steps: Iterable[tuple[int, int]], reach: int = 0) -> bool:
    """Whether no two iterations of loops meet the same element, or one within `reach` of it. Of
    each loop, by how far it moves and how often: by more than all that move less reach together.
    """
    for step, count in sorted(steps):
        if step <= reach:
            return False
        reach += step * (count - 1)
    return True


def counted(
    body: tuple[Stmt, ...], times: Callable[[For], int], each: Callable[[Store], int]
) -> int:
    """What all stores count together, if each iteration of a loop counts `times`."""
    total = 0
    for s in body:
        if isinstance(s, For):
            total += times(s) * counted(s.body, times, each)
        elif isinstance(s, If):
            total += counted(s.body, times, each)
        elif isinstance(s, Store):
            total += each(s)
    return total


Moved = TypeVar("Moved", bound=Store | Join | If)


def map_access(s: Moved, f: Callable[[str, tuple[Int, ...]], tuple[Int, ...]]) -> Moved:
    """The statement with the index of every access replaced by f(buffer, index). Of an If, those
    of its conditions.
    """

    def put(load: Load) -> Load:
        return replace(load, index=f(load.buffer, load.index))

    def place(p: Int) -> Int:
        return map_dynamic(p, put)

    if isinstance(s, Join):
        return replace(s, values=tuple(map(put, s.values)))
    if isinstance(s, If):
        return replace(s, conds=map_index(s.conds, place))
    assert isinstance(s, Store)
    writes = tuple(
        Write(w.buffer, f(w.buffer, map_index(w.index, place)), map_loads(w.value, put))
        for w in s.writes
    )
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
                writes, operands = map_writes(s.writes, put), map_operands(s.operands, put)
                out.append(Store(writes, s.tile, s.intrinsic, operands))
            case Join():
                out.append(map_access(s, lambda _, index: tuple(map(put, index))))
            case _:
                out.append(s)
    return tuple(out)


def is_uniform(p: Int, loop: str, step: int) -> bool:
    """Whether p >= 0 for all or none of the iterations k*step .. k*step + step - 1."""
    if loop not in p.names:
        return True
    c, const = p.terms.get((loop,)), p.terms.get((), 0)
    others = {m: k for m, k in p.terms.items() if m and m != (loop,)}
    if loop in Int(others).names or any(k % step for k in others.values()):
        return False
    return (c == 1 and const % step == 0) or (c == -1 and (const + 1) % step == 0)
