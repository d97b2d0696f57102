"""Writes a Function as canonical JSON: equal Functions give equal text, and `deserialize` restores
an equal Function.

Expressions are in one table, each node once and after its operands, so shared nodes are written
once. An integer is a number, a name, or a list of terms `[factor, atom, ...]`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import isfinite
from typing import Any

from tilesmith.base.given import checks_given
from tilesmith.expr.dynamic import Dynamic
from tilesmith.expr.ints import Atom, FloorDiv, Int, Maximum, Monomial
from tilesmith.expr.nodes import (
    Arg,
    Binary,
    Cast,
    Combiner,
    Const,
    Expr,
    IntValue,
    Load,
    Select,
    Unary,
    children,
)
from tilesmith.expr.walk import postorder
from tilesmith.ir import prepare
from tilesmith.ir.nodes import (
    Alloc,
    Block,
    Buffer,
    For,
    If,
    Join,
    Program,
    Stmt,
    Store,
    Sync,
    Write,
    walk,
)

# The keys of tasks are hashes of this text, so a new version needs a migration of databases.
VERSION = 1


@checks_given
def function_to_json(func: Program) -> str:
    """The text of a Function, which `ts.function_from_json` reads again."""
    writer = _Writer(frozenset(b.name for _, b in walk(func.body)))
    params = [writer.buffer(b) for b in func.params]
    buffers = [writer.buffer(b) for b in func.buffers]
    body = [writer.stmt(s) for s in func.body]
    facts = [[writer.integers(f.sizes), writer.integer(f.extent), f.exact] for f in func.facts]
    declared = [[s.name, s.range, s.samples] for s in func.declared]
    return compact(
        {
            "version": VERSION,
            "name": func.name,
            "params": params,
            "num_outputs": func.num_outputs,
            "buffers": buffers,
            "facts": facts,
            "values": writer.values,
            "body": body,
        }
        | ({"declared": declared} if declared else {})  # others keep their digest
    )


def buffer_to_json(buffer: Buffer) -> list[Any]:
    """The JSON value of a buffer whose shape and layout do not depend on values of tensors."""
    return _Writer().buffer(buffer)


def compact(data: object) -> str:
    """JSON without spaces."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


class _Writer:
    """Writes one Function; holds its table of expressions."""

    def __init__(self, blocks: frozenset[str] = frozenset()) -> None:
        self.blocks = blocks
        self.values: list[Any] = []
        self._by_text: dict[str, int] = {}
        # By id, so that the traversal is linear even if a tree shares branches many times.
        self._by_id: dict[int, int] = {}

    # integers
    def integer(self, p: Int) -> Any:
        if (n := p.const) is not None:
            return n
        if (name := p.name) is not None:
            return name
        order = sorted(p.terms.items(), key=_order)
        return [[c, *map(self._atom, m)] for m, c in order]

    def integers(self, values: Iterable[Int]) -> list[Any]:
        return [self.integer(p) for p in values]

    def _atom(self, a: Atom) -> Any:
        match a:
            case str():
                return a
            case FloorDiv():
                return ["//", self.integer(a.a), self.integer(a.b)]
            case Maximum():
                return ["max", self.integer(a.a), self.integer(a.b)]
            case Dynamic():
                return ["value", self.value(a.expr)]
        raise TypeError(f"no text for the atom {a!r}")

    # values
    def value(self, e: Expr) -> int:
        """The node's position in the table."""
        if id(e) not in self._by_id:
            for x in postorder(e, children):
                if id(x) not in self._by_id:
                    self._by_id[id(x)] = self._place([*self._node(x), x.dtype.name])
        return self._by_id[id(e)]

    def _place(self, node: list[Any]) -> int:
        text = compact(node)
        if text not in self._by_text:
            self._by_text[text] = len(self.values)
            self.values.append(node)
        return self._by_text[text]

    def _node(self, e: Expr) -> list[Any]:
        match e:
            case Const(value=float(v)) if not isfinite(v):
                return ["const", repr(v)]
            case Const(value=v):
                return ["const", v]
            case IntValue(value=p):
                return ["int", self.integer(p)]
            case Arg(name=name):
                return ["arg", name]
            case Load(buffer=buffer, index=index):
                return ["load", buffer, self.integers(index)]
            case Unary(op=op, x=x):
                return [op, self.value(x)]
            case Binary(op=op, a=a, b=b):
                return [op, self.value(a), self.value(b)]
            case Select(cond=c, a=a, b=b):
                return ["select", self.value(c), self.value(a), self.value(b)]
            case Cast(x=x):
                return ["cast", self.value(x)]

    # statements
    def buffer(self, b: Buffer) -> list[Any]:
        plain = [b.name, b.dtype.name, self.integers(b.shape)]
        if b.scope == "global" and b.align is None and b.layout is None and not b.prepared:
            return plain
        layout = None if b.layout is None else self.integers(b.layout)
        return [
            *plain,
            b.scope,
            layout,
            b.align,
            *prepare.to_json(b.prepared, self.integers),
        ]

    def stmt(self, s: Stmt) -> list[Any]:
        match s:
            case For():
                body = [self.stmt(t) for t in s.body]
                plain = ["for", s.name, self.integer(s.extent), body]
                notes = [[n.key, n.value] for n in s.notes]
                if s.owner != named_owner(s.name, self.blocks):
                    return [*plain, s.kind, notes, s.owner]
                return plain if (s.kind, notes) == ("serial", []) else [*plain, s.kind, notes]
            case Block():
                return ["block", self._block(s)]
            case Store():
                return ["store", self._unit(s)]
            case If():
                return ["if", self.integers(s.conds), [self.stmt(t) for t in s.body]]
            case Alloc(buffer=b):
                return ["alloc", self.buffer(b)]
            case Sync(scope=scope):
                return ["sync", scope]
            case Join():
                values = list(map(self.value, s.values))
                return ["join", values, self._combiner(s.combiner), s.extent, s.stride]

    def _block(self, b: Block) -> dict[str, Any]:
        out: dict[str, Any] = {
            "name": b.name,
            "iters": [
                [i.name, i.kind, self.integer(i.extent), self.integer(i.bind)] for i in b.iters
            ],
        }
        if b.combiner is not None:
            out["combiner"] = self._combiner(b.combiner)
        if b.init:
            out["init"] = True
        for key, conds in (("where", b.where), ("domain", b.domain)):
            if conds:
                out[key] = self.integers(sorted(conds, key=str))
        return out | self._unit(b)

    def _combiner(self, c: Combiner) -> list[Any]:
        return [list(map(self.value, c.values)), list(map(self.value, c.identity))]

    def _unit(self, s: Block | Store) -> dict[str, Any]:
        out: dict[str, Any] = {"writes": [self._write(w) for w in s.writes]}
        if s.tile:
            out["tile"] = [[name, self.integer(extent)] for name, extent in s.tile]
        if s.intrinsic is not None:
            out["intrinsic"] = s.intrinsic.name
        if s.operands:
            out["operands"] = [[name, self.value(x)] for name, x in s.operands]
        return out

    def _write(self, w: Write) -> list[Any]:
        return [w.buffer, self.integers(w.index), self.value(w.value)]


def named_owner(loop: str, blocks: frozenset[str]) -> str:
    """The block whose name is a prefix of the loop's, or "". This default owner is not written."""
    parts = loop.split(".")
    heads = (".".join(parts[:k]) for k in reversed(range(1, len(parts))))
    return next((head for head in heads if head in blocks), "")


def _order(term: tuple[Monomial, int]) -> tuple[int, list[str]]:
    return -len(term[0]), [str(a) for a in term[0]]
