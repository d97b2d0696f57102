"""Function: a whole kernel in the loop IR, its parameters, its buffers and what is known of its
sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilesmith.base.digest import digest
from tilesmith.expr.ints import Int, Monomial, Rules, of, product
from tilesmith.expr.nodes import Load
from tilesmith.ir import count, printer, serialize
from tilesmith.ir.nodes import (
    Alloc,
    Block,
    Buffer,
    For,
    If,
    Note,
    Stmt,
    Store,
    map_bindings,
    map_writes,
    rewrite,
    statements,
)


@dataclass(frozen=True, slots=True)
class Fact:
    """What relates the sizes of a split: their product is the extent (exact), or the first is
    ceil(extent / the rest).
    """

    sizes: tuple[Int, ...]
    extent: Int
    exact: bool


@dataclass(frozen=True, slots=True)
class Function:
    """`params` in calling order, the last `num_outputs` of them written; `buffers` are the
    intermediate ones.
    """

    name: str
    params: tuple[Buffer, ...]
    num_outputs: int
    buffers: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    facts: tuple[Fact, ...] = ()

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        return self.params[: len(self.params) - self.num_outputs]

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        return self.params[len(self.params) - self.num_outputs :]

    @property
    def all_buffers(self) -> dict[str, Buffer]:
        return {b.name: b for b in (*self.params, *self.buffers)}

    @property
    def rules(self) -> Rules:
        """The exact facts as rewrite rules. A product of plain variables rewrites; numbers need no
        rule.
        """
        rules: dict[Monomial, Int] = {}
        for f in self.facts:
            if f.exact:
                terms = product(f.sizes).terms
                if len(terms) == 1:
                    ((m, c),) = terms.items()
                    if c == 1 and len(m) == len(f.sizes):
                        rules[m] = f.extent
        return rules

    @property
    def sizes(self) -> tuple[str, ...]:
        """The size variables that are still open, in order of appearance."""
        seen: dict[str, None] = {}

        def add(p: Int) -> None:
            for n in sorted(p.names):
                if n[0] == "#":
                    seen.setdefault(n)

        for b in (*self.params, *self.buffers):
            for e in b.shape:
                add(e)
        for s in statements(self.body):
            if isinstance(s, For):
                add(s.extent)
            elif isinstance(s, Block | Store):
                for _, e in s.tile:
                    add(e)
        return tuple(seen)

    @property
    def digest(self) -> str:
        """Of the canonical text: the printed one does not show the dtypes of constants."""
        return digest(serialize.function_to_json(self))

    @property
    def flops(self) -> int:
        """Arithmetic operations it states."""
        return count.flops(self)

    @property
    def nbytes(self) -> int:
        """Bytes of its parameters."""
        return count.nbytes(self)

    @property
    def signature(self) -> str:
        """Its name, and what it takes and gives, on one line."""

        def show(buffers: tuple[Buffer, ...]) -> str:
            return ", ".join(
                f"{b.name}: {b.dtype}[{', '.join(map(str, b.shape))}]" for b in buffers
            )

        return f"{self.name}({show(self.inputs)}) -> {show(self.outputs)}"

    def __repr__(self) -> str:
        return f"<Function {self.signature}>"

    def __str__(self) -> str:
        return printer.show(self)


def instantiate(func: Function, sizes: Mapping[str, int]) -> Function:
    """Numbers for size variables: the one place where a sketch becomes a concrete Function."""
    env = {k: of(v) for k, v in sizes.items()}

    def put(p: Int) -> Int:
        return p.substitute(env)

    def buf(b: Buffer) -> Buffer:
        layout = None if b.layout is None else tuple(map(put, b.layout))
        return replace(b, shape=tuple(map(put, b.shape)), layout=layout)

    def operands(named: tuple[tuple[str, Load], ...]) -> tuple[tuple[str, Load], ...]:
        return tuple((n, replace(x, index=tuple(map(put, x.index)))) for n, x in named)

    def go(s: Stmt) -> tuple[Stmt, ...]:
        match s:
            case For():
                notes = tuple((k, decide_note(v, sizes)) for k, v in s.notes)
                return (replace(s, extent=put(s.extent), notes=notes),)
            case Block():
                b = map_bindings(s, put)
                iters = tuple(replace(i, extent=put(i.extent)) for i in b.iters)
                new = replace(
                    b,
                    iters=iters,
                    writes=map_writes(b.writes, put),
                    domain=frozenset(map(put, b.domain)),
                    tile=tuple((n, put(e)) for n, e in b.tile),
                    operands=operands(b.operands),
                )
                return (new,)
            case Store():
                tile = tuple((n, put(e)) for n, e in s.tile)
                writes = map_writes(s.writes, put)
                return (replace(s, writes=writes, tile=tile, operands=operands(s.operands)),)
            case If():
                return (replace(s, conds=tuple(map(put, s.conds))),)
            case Alloc(buffer=b):
                return (Alloc(buf(b)),)
            case _:
                return (s,)

    facts = []
    for f in func.facts:
        new = Fact(tuple(map(put, f.sizes)), put(f.extent), f.exact)
        if any(n.const is None for n in new.sizes) or new.extent.const is None:
            facts.append(new)
    return replace(
        func,
        params=tuple(map(buf, func.params)),
        buffers=tuple(map(buf, func.buffers)),
        body=rewrite(func.body, go),
        facts=tuple(facts),
    )


def decide_note(value: Note, sizes: Mapping[str, int]) -> Note:
    """A note with numbers for the size variables in it."""
    if isinstance(value, tuple):
        return tuple(sizes.get(v, v) if isinstance(v, str) else v for v in value)
    return sizes.get(value, value) if isinstance(value, str) else value
