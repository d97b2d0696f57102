"""Primitives that change the iterators of a block, but not what it computes or in which order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.intervals import Unknown, bounds, proves
from tilesmith.expr.ints import FloorDiv, Int, atom, of, product, var
from tilesmith.ir.function import Function
from tilesmith.ir.lookup import find_block, is_own_loop
from tilesmith.ir.nodes import Block, For, Iter, Stmt, map_bindings, map_writes, rewrite
from tilesmith.schedule.loops import require_no_notes
from tilesmith.schedule.nests import loop_names
from tilesmith.schedule.step import Step


@dataclass(frozen=True, slots=True)
class SplitIterator(Step):
    """Splits an iterator that a block divides by `factor` into two, so that its indices need no
    division: channels become groups, and channels within a group.

    for f in 8:                           for f_outer in 2:
      C(f=f): C[f] = A[f // 4]       ->     for f_inner in 4:
                                              C(f_outer=f_outer, f_inner=f_inner):
                                                C[4*f_outer + f_inner] = A[f_outer]
    """

    name: ClassVar[str] = "split_iterator"
    block: str
    iterator: str
    factor: int

    @property
    def parts(self) -> tuple[str, str]:
        return f"{self.iterator}_outer", f"{self.iterator}_inner"

    def apply(self, func: Function) -> Function:
        path, b = find_block(func, self.block)
        old, new = self._iterators(b)
        loop = old.bind.name
        movers = [i for i in b.iters if loop in i.bind.names]
        own = next((f for f in path if f.name == loop), None)
        if own is None or len(movers) > 1 or not is_own_loop(b, own) or b.tile or open_domain(b):
            raise self._refuse(
                f"{self.iterator} does not run over a plain loop of its own; do this first"
            )
        assert loop is not None
        require_no_notes(own, "split the iterator of")
        names = [i.bind.name or "" for i in new]
        taken = sorted({*names} & loop_names(func)) or sorted(
            {*self.parts} & {i.name for i in b.iters}
        )
        if taken:
            raise self._refuse(f"there is a {taken[0]} already")
        merged = {loop: var(names[0]) * self.factor + var(names[1])}

        def go(s: Stmt) -> tuple[Stmt, ...]:
            if isinstance(s, For) and s.name == loop:
                inner = For(names[1], new[1].extent, s.body, owner=s.owner)
                return (For(names[0], new[0].extent, (inner,), owner=s.owner),)
            if not isinstance(s, Block):
                return (s,)
            own = s.name == b.name
            s = map_bindings(s, lambda p: p.substitute(merged))
            return (self._divided(s, new) if own else s,)

        return replace(func, body=rewrite(func.body, go))

    def _iterators(self, b: Block) -> tuple[Iter, tuple[Iter, Iter]]:
        """The iterator, and the two that it becomes, each over a loop of its own."""
        old = next((i for i in b.iters if i.name == self.iterator), None)
        if old is None:
            names = ", ".join(i.name for i in b.iters)
            raise self._refuse(f"there is none of that name; it has {names}")
        n = old.extent.const
        if n is None or self.factor < 1 or n % self.factor:
            raise self._refuse(f"its extent is {old.extent}, which {self.factor} does not divide")
        sizes = (n // self.factor, self.factor)
        outer, inner = (
            Iter(name, old.kind, of(size), var(f"{b.name}.{name}"))
            for name, size in zip(self.parts, sizes, strict=True)
        )
        return old, (outer, inner)

    def _divided(self, b: Block, new: tuple[Iter, Iter]) -> Block:
        iters = tuple(x for i in b.iters for x in (new if i.name == self.iterator else (i,)))
        env = {self.iterator: var(new[0].name) * self.factor + var(new[1].name)}
        ranges = {i.name: i.extent for i in iters}

        def put(p: Int) -> Int:
            return _without_divisions(p.substitute(env), ranges)

        return replace(b, iters=iters, writes=map_writes(b.writes, put), domain=frozenset())

    def _refuse(self, why: str) -> ScheduleError:
        return ScheduleError(f"cannot split the iterator {self.iterator} of {self.block}: {why}")


def open_domain(b: Block) -> frozenset[Int]:
    """The conditions on a block's iterators that do not hold for all their values."""
    ranges = {i.name: i.extent for i in b.iters}
    return frozenset(p for p in b.domain if not proves(p, ranges, {}))


def _without_divisions(p: Int, ranges: dict[str, Int]) -> Int:
    """Replaces divisions that are constant over the ranges by that constant."""
    out = of(0)
    for m, c in p.terms.items():
        factors = (_settled(a, ranges) if isinstance(a, FloorDiv) else atom(a) for a in m)
        out = out + product([of(c), *factors])
    return out


def _settled(a: FloorDiv, ranges: dict[str, Int]) -> Int:
    inside = _without_divisions(a.a, ranges)
    try:
        low, high = (q // a.b for q in bounds(inside, ranges))
    except Unknown:
        return inside // a.b
    return low if low == high and low.const is not None else inside // a.b
