"""Renames the parts of a Function, and computes the digest of a program without its names. That
digest is equal for two Functions that differ only in names.

Names of loops, blocks and buffers are unique in the Function; names of iterators are unique in
their block. Size variables keep their names, because a caller gives numbers for them by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from tilesmith.base.dataclass import dataclass
from tilesmith.base.identity import digest
from tilesmith.expr.dynamic import map_dynamic, map_loads
from tilesmith.expr.ints import Int, var
from tilesmith.expr.nodes import Expr, Load, map_ints
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import (
    Alloc,
    Block,
    Buffer,
    For,
    If,
    Iter,
    Join,
    Stmt,
    Store,
    Sync,
    Write,
    map_bindings,
)
from tilesmith.ir.serialize import function_to_json


@dataclass(frozen=True, slots=True)
class Names:
    """New names by old ones; others stay. `iters` holds the iterators of each block."""

    loops: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)
    iters: dict[str, dict[str, str]] = field(default_factory=dict)


def renamed(func: Function, names: Names, name: str | None = None) -> Function:
    """`name` is the new name of the Function itself. The caller must see to it that no two things
    get the same name.
    """
    return _Renaming(names).function(func, func.name if name is None else name)


def structure_of(func: Function) -> str:
    """A digest of everything that can change the result or the generated code, but not of names.
    Parameters, buffers, blocks, loops and iterators are numbered in order of appearance.
    """
    return digest(function_to_json(renamed(func, _numbered(func), "")))


def _numbered(func: Function) -> Names:
    names = Names()

    def number(into: dict[str, str], name: str, letter: str) -> None:
        into.setdefault(name, f"{letter}{len(into)}")

    def go(body: tuple[Stmt, ...]) -> None:
        for s in body:
            match s:
                case For():
                    number(names.loops, s.name, "l")
                    if s.owner:  # that block may no longer exist, such as when inlined
                        number(names.blocks, s.owner, "s")
                    go(s.body)
                case If():
                    go(s.body)
                case Alloc():
                    number(names.buffers, s.buffer.name, "b")
                case Block():
                    number(names.blocks, s.name, "s")
                    names.iters[s.name] = {i.name: f"x{k}" for k, i in enumerate(s.iters)}
                    for n, _ in s.tile:
                        number(names.loops, n, "l")
                case Store():
                    for n, _ in s.tile:
                        number(names.loops, n, "l")
                case Sync():
                    pass

    for b in (*func.params, *func.buffers):
        number(names.buffers, b.name, "b")
    go(func.body)
    return names


class _Renaming:
    def __init__(self, names: Names) -> None:
        self.names = names
        self.loops = _ints(names.loops)

    def function(self, func: Function, name: str) -> Function:
        return replace(
            func,
            name=name,
            params=tuple(map(self._buffer, func.params)),
            buffers=tuple(map(self._buffer, func.buffers)),
            body=tuple(map(self._stmt, func.body)),
        )

    def _stmt(self, s: Stmt) -> Stmt:
        match s:
            case For():
                body = tuple(map(self._stmt, s.body))
                notes = tuple(n.renamed(self.names.buffers) for n in s.notes)
                owner = self.names.blocks.get(s.owner, s.owner)
                return replace(s, name=self._loop(s.name), body=body, notes=notes, owner=owner)
            case If():
                conds = tuple(self._int(p, self.loops) for p in s.conds)
                return If(conds, tuple(map(self._stmt, s.body)))
            case Alloc():
                return Alloc(self._buffer(s.buffer))
            case Block():
                return self._block(s)
            case Store():
                return replace(
                    s,
                    writes=self._writes(s.writes, self.loops),
                    tile=self._tile(s.tile),
                    operands=self._operands(s.operands, self.loops),
                )
            case Join():
                named = self._operands(tuple(("", x) for x in s.values), self.loops)
                return replace(s, values=tuple(x for _, x in named))
            case Sync():
                return s

    def _block(self, b: Block) -> Block:
        own = self.names.iters.get(b.name, {})
        env = _ints(own)
        bound = map_bindings(b, lambda p: self._int(p, self.loops))
        return replace(
            bound,
            name=self.names.blocks.get(b.name, b.name),
            iters=tuple(
                Iter(own.get(i.name, i.name), i.kind, i.extent, i.bind) for i in bound.iters
            ),
            writes=self._writes(b.writes, env),
            domain=frozenset(self._int(p, env) for p in b.domain),
            tile=self._tile(b.tile),
            operands=self._operands(b.operands, env),
        )

    def _writes(self, writes: tuple[Write, ...], env: Mapping[str, Int]) -> tuple[Write, ...]:
        return tuple(
            Write(
                self._buffer_name(w.buffer),
                tuple(self._int(p, env) for p in w.index),
                self._value(w.value, env),
            )
            for w in writes
        )

    def _operands(
        self, operands: tuple[tuple[str, Load], ...], env: Mapping[str, Int]
    ) -> tuple[tuple[str, Load], ...]:
        out = []
        for name, x in operands:
            index = tuple(self._int(p, env) for p in x.index)
            out.append((name, Load(self._buffer_name(x.buffer), index, x.dtype)))
        return tuple(out)

    def _value(self, e: Expr, env: Mapping[str, Int]) -> Expr:
        named = map_loads(e, lambda x: replace(x, buffer=self._buffer_name(x.buffer)))
        return map_ints(named, lambda p: p.substitute(env))

    def _int(self, p: Int, env: Mapping[str, Int]) -> Int:
        """Renames an Int; the loads inside of it are renamed like other values."""
        if p.plain:
            return p.substitute(env)
        return map_dynamic(p, lambda x: replace(x, buffer=self._buffer_name(x.buffer))).substitute(
            env
        )

    def _buffer(self, b: Buffer) -> Buffer:
        return replace(b, name=self._buffer_name(b.name))

    def _buffer_name(self, name: str) -> str:
        return self.names.buffers.get(name, name)

    def _loop(self, name: str) -> str:
        return self.names.loops.get(name, name)

    def _tile(self, tile: tuple[tuple[str, Int], ...]) -> tuple[tuple[str, Int], ...]:
        return tuple((self._loop(n), e) for n, e in tile)


def _ints(names: Mapping[str, str]) -> dict[str, Int]:
    return {old: var(new) for old, new in names.items()}
