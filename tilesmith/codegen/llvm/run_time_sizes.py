"""Index arithmetic with open sizes. Strides and offsets that depend on a size are products such as
`#n*i` or `(#n + 7) // 8`. Each becomes a variable of its own, computed once where the innermost
of its loops starts an iteration, so that addresses stay sums of variables with constant factors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilesmith.codegen.llvm.builder import I64, Builder, V
from tilesmith.codegen.llvm.frames import ROW
from tilesmith.codegen.llvm.operations import floordiv
from tilesmith.codegen.llvm.position import Position
from tilesmith.expr.ints import Atom, FloorDiv, Int, Maximum, Monomial, atom, of

NOTHING: Mapping[Atom, V | None] = {}


class RunTimeSizes:
    def __init__(self, position: Position) -> None:
        self.position, self.builder = position, position.builder

    def name_of(self, mono: Monomial) -> str | None:
        """The variable that holds a product with an open size. None if no size is in it, or if a
        factor is not the same for all lanes and copies of unrolled loops.
        """
        names = {n for a in mono for n in ((a,) if isinstance(a, str) else a.names())}
        env, position = self.position.env, self.position
        if not any(n[0] == "#" for n in names):
            return None
        if not all(isinstance(env.get(n), V) for n in names) or not all(map(_is_computed, mono)):
            return None
        name = f"#{Int({mono: 1})}"
        if name not in env:
            depth = max(position.depth[n] for n in names)
            frame, lines = position.frames[depth], self.builder.lines
            self.builder.lines = frame.head if depth else position.entry_lines
            env[name] = self.integer(Int({mono: 1}))
            self.builder.lines = lines
            position.depth[name] = depth
            frame.loops |= {name}
            frame.products.append(name)
        return name

    def steady(self, p: Int) -> V | None:
        """The value of an expression, computed once where the innermost of its loops starts an
        iteration, and its parts further out. None if it is not the same for all lanes.
        """
        position = self.position
        known = {n: of(v) for n in p.names if isinstance(v := position.env.get(n), int)}
        p = p.substitute(known)
        if (n := p.const) is not None:
            return V(str(n), I64)
        is_computed = all(_is_computed(a) for m in p.terms for a in m)
        if not is_computed or not all(isinstance(position.env.get(n), V) for n in p.names):
            return None
        depth = max(position.depth[n] for n in p.names)
        frame = position.frames[depth]
        if p not in frame.values:
            inner = {a for m in p.terms for a in m if not isinstance(a, str) and p != atom(a)}
            parts: dict[Atom, V | None] = {}
            for a in sorted(inner, key=repr):
                parts[a] = self.steady(atom(a))
            lines = self.builder.lines
            self.builder.lines = frame.head if depth else position.entry_lines
            frame.values[p] = self.integer(p, parts)
            self.builder.lines = lines
        return frame.values[p]

    def row_of(self, sizes: Monomial) -> str | None:
        """The variable of a stride by which unrolled loops move: one of its own, so that cells in
        other rows are known to be other cells. See `in_other_rows`.
        """
        (size, *more), env = sizes, self.position.env
        name = self.name_of(sizes) if more or not isinstance(size, str) else size
        if name is None or not isinstance(value := env.get(name), V) or name[0] != "#":
            return None
        row = f"{ROW}{name}"
        env[row], self.position.depth[row] = value, self.position.depth[name]
        return row

    def integer(self, p: Int, parts: Mapping[Atom, V | None] = NOTHING) -> V:
        """The value of an expression over variables, of which some parts are known."""
        return _sum(self.builder, p, lambda a: parts.get(a) or self._atom(a))

    def _atom(self, a: Atom) -> V:
        if isinstance(a, str):
            v = self.position.env[a]
            assert isinstance(v, V)
            return v
        assert isinstance(a, FloorDiv | Maximum)
        return opaque_value(self.builder, a, self.integer(a.a), self.integer(a.b))


def _sum(b: Builder, p: Int, value: Callable[[Atom], V]) -> V:
    total = V(str(p.terms.get((), 0)), I64)
    for m, c in p.terms.items():
        if m:
            term = V(str(c), I64)
            for a in m:
                term = b.op("mul", value(a), term)
            total = b.op("add", term, total)
    return total


def value_at(b: Builder, p: Int, sizes: Mapping[str, V]) -> V:
    """The value of an expression of sizes, which have these values."""

    def value(a: Atom) -> V:
        if isinstance(a, str):
            return sizes[a]
        assert isinstance(a, FloorDiv | Maximum)
        return opaque_value(b, a, value_at(b, a.a, sizes), value_at(b, a.b, sizes))

    return _sum(b, p, value)


def opaque_value(b: Builder, a: FloorDiv | Maximum, x: V, y: V) -> V:
    """A quotient, rounded down, or the larger one of two numbers."""
    if isinstance(a, FloorDiv):
        return floordiv(b, x, y, signed=True)
    return b.select(b.compare("sgt", x, y), x, y)


def _is_computed(a: Atom) -> bool:
    """Whether the atom consists of variables, without elements of tensors."""
    if isinstance(a, str):
        return True
    return isinstance(a, FloorDiv | Maximum) and all(
        _is_computed(x) for p in (a.a, a.b) for m in p.terms for x in m
    )
