"""GPU: gives each thread the registers that hold its part of a fragment, the result of an
instruction that a group of threads carries out together.

Where a thread reads an element, its own number must be that of the thread that holds it. This is
checked for all threads and iterations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.errors import BuildError
from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import accesses, map_access
from tilesmith.codegen.passes.simplify import simplify
from tilesmith.expr.ints import ZERO, Int, of, var
from tilesmith.expr.nodes import Const
from tilesmith.ir.evaluators import axes_over, integer
from tilesmith.ir.function import Function
from tilesmith.ir.nests import allocated, only_store
from tilesmith.ir.nodes import Alloc, Buffer, For, Fragment, If, Stmt, Store, Write, statements

_MOST_POINTS = 1 << 22  # of threads and iterations that are gone through


@dataclass(frozen=True, slots=True)
class _Held:
    """A buffer in fragments. `rows` and `columns` are the dimensions that an instruction covers."""

    buffer: Buffer
    fragment: Fragment
    rows: int
    columns: int
    size: tuple[int, int]  # what one instruction covers

    def _others(self, index: tuple[Int, ...]) -> tuple[Int, ...]:
        return tuple(p for d, p in enumerate(index) if d not in (self.rows, self.columns))

    def parts(self, index: tuple[Int, ...]) -> tuple[tuple[Int, ...], Int]:
        """The index of the element's register, and the thread of the group that has it."""
        (i, j), (m, n) = (index[self.rows], index[self.columns]), self.size
        inside = {"d0": i - i // m * m, "d1": j - j // n * n}
        f = self.fragment
        at = (*self._others(index), i // m, j // n, f.register.substitute(inside))
        return at, f.lane.substitute(inside)

    @property
    def registers(self) -> Buffer:
        shape = self.buffer.shape
        (rows, columns), (m, n) = (shape[self.rows], shape[self.columns]), self.size
        held = (*self._others(shape), rows // m, columns // n, of(self.fragment.registers))
        return replace(self.buffer, shape=held, scope="local", layout=None, align=None)


def hold_fragments(func: Function, target: Target) -> Function:
    """Takes launch form."""
    held = {n: b for n, b in allocated(func.body).items() if b.scope == "fragment"}
    if not held:
        return func
    kept: dict[str, _Held] = {}
    for s in statements(func.body):
        if isinstance(s, Store) and s.intrinsic is not None and s.intrinsic.fragment is not None:
            (write,) = s.writes
            kept.setdefault(write.buffer, _held(held[write.buffer], s, s.intrinsic.fragment))
    if missing := held.keys() - kept.keys():
        raise BuildError(f"no instruction fills the fragment {min(missing)}")
    return simplify(replace(func, body=_Rewriting(kept).body(func.body, {}, ())), target)


def _held(buffer: Buffer, s: Store, fragment: Fragment) -> _Held:
    (m, rows), (n, columns) = s.tile[:2]
    index = s.writes[0].index
    at = [next((d for d, p in enumerate(index) if name in p.names), None) for name in (m, n)]
    assert at[0] is not None
    assert at[1] is not None
    return _Held(buffer, fragment, at[0], at[1], (rows.number, columns.number))


class _Rewriting:
    def __init__(self, kept: dict[str, _Held]) -> None:
        self.kept = kept

    def body(
        self, body: tuple[Stmt, ...], ranges: dict[str, Int], threads: tuple[str, ...]
    ) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, For):
                filling = _filling(s, self.kept, ranges)
                if filling is not None:
                    out.append(filling)
                    continue
                inner = (*threads, s.name) if s.kind == "threadIdx.x" else threads
                done = self.body(s.body, {**ranges, s.name: s.extent}, inner)
                out.append(replace(s, body=done))
            elif isinstance(s, If):
                conds = s.conds
                if any(a.buffer in self.kept for a in accesses(s.body)):
                    conds = tuple(p for p in s.conds if not _always(p, ranges))
                inside = self.body(s.body, ranges, threads)
                out += (If(conds, inside),) if conds else inside
            elif isinstance(s, Alloc) and s.buffer.name in self.kept:
                out.append(Alloc(self.kept[s.buffer.name].registers))
            elif isinstance(s, Store):
                out.append(self._store(s, ranges, threads))
            else:
                out.append(s)
        return tuple(out)

    def _store(self, s: Store, ranges: dict[str, Int], threads: tuple[str, ...]) -> Store:
        if s.intrinsic is not None and s.intrinsic.fragment is not None:
            names = [name for name, _ in s.tile[:2]]

            def whole(name: str, index: tuple[Int, ...]) -> tuple[Int, ...]:
                if name not in self.kept:
                    return index
                held = self.kept[name]
                start = tuple(p.substitute(dict.fromkeys(names, ZERO)) for p in index)
                at, _ = held.parts(start)
                env = {"d0": var(names[0]), "d1": var(names[1])}
                return (*at[:-1], held.fragment.register.substitute(env))

            return map_access(s, whole)
        if any(w.buffer in self.kept for w in s.writes):
            raise BuildError(f"the fragment {s.writes[0].buffer} is written element by element")

        def own(name: str, index: tuple[Int, ...]) -> tuple[Int, ...]:
            return (
                self._own(self.kept[name], index, ranges, threads) if name in self.kept else index
            )

        return map_access(s, own)

    def _own(
        self, held: _Held, index: tuple[Int, ...], ranges: dict[str, Int], threads: tuple[str, ...]
    ) -> tuple[Int, ...]:
        at, lane = held.parts(index)
        number = of(0)
        for t in threads:
            number = number * ranges[t] + var(t)
        same: dict[str, Int] = dict.fromkeys(threads, ZERO)
        plain = tuple(p.substitute(same) for p in at)
        pairs = [(lane, number - number // held.fragment.threads * held.fragment.threads)]
        for p, q in (*pairs, *zip(at, plain, strict=True)):
            if p != q and not _equal(p, q, ranges):
                raise BuildError(
                    f"a thread reads an element of {held.buffer.name} that another one holds"
                )
        return plain


def _filling(s: For, kept: Mapping[str, _Held], ranges: Mapping[str, Int]) -> Stmt | None:
    """The loop over registers for one over rows and columns that fills a fragment by a constant."""
    only = only_store(s)
    if only is None or len(only[1].writes) != 1:
        return None
    loops = [f for f in only[0] if isinstance(f, For)]
    if len(loops) != 2:
        return None
    conds = [p for c in only[0] if isinstance(c, If) for p in c.conds]
    (write,) = only[1].writes
    if write.buffer not in kept or not isinstance(write.value, Const):
        return None
    held = kept[write.buffer]
    around = {**ranges, **{f.name: f.extent for f in loops}}
    whole = tuple(f.extent.const for f in loops) == held.size
    if not whole or not all(_always(p, around) for p in conds):
        raise BuildError(f"only a part of the fragment {write.buffer} is filled")
    start = tuple(p.substitute({f.name: ZERO for f in loops}) for p in write.index)
    name = f"{write.buffer}.register"
    index = (*held.parts(start)[0][:-1], var(name))
    store = Store((Write(write.buffer, index, write.value),))
    return For(name, of(held.fragment.registers), (store,), "unroll")


def _points(p: Int, ranges: Mapping[str, Int]) -> dict[str, Any] | None:
    """Every value of the loops that p names, each along an axis of its own."""
    names = sorted(p.names)
    extents = [ranges[n].number if n in ranges else 0 for n in names]
    if not 0 < prod(extents) <= _MOST_POINTS:
        return None
    return axes_over({n: range(e) for n, e in zip(names, extents, strict=True)})


def _always(p: Int, ranges: Mapping[str, Int]) -> bool:
    points = _points(p, ranges)
    return points is not None and bool(np.all(integer(p, points) >= 0))


def _equal(p: Int, q: Int, ranges: Mapping[str, Int]) -> bool:
    points = _points(p - q, ranges)
    return points is not None and bool(np.all(integer(p - q, points) == 0))
