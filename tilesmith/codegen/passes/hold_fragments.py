"""GPU: gives each thread the registers that hold its part of a fragment, the result of an
instruction that a group of threads carries out together.

Other buffers may lie like it: what is computed of it element by element, an operand of the next
instruction, and a value for each of its rows, which the four threads that hold a row all have
(fragment_nests.py gives each thread its part of the loops).

Where a thread accesses an element, its own number must be that of a thread that holds it. This is
checked for all threads and iterations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import BuildError
from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import accesses, map_access
from tilesmith.codegen.passes.fragment_nests import Roles, roles_of, spread_nests
from tilesmith.codegen.passes.simplify import simplify
from tilesmith.expr.ints import ZERO, Int, of, var
from tilesmith.expr.nodes import Const
from tilesmith.ir.evaluators import axes_over, integer
from tilesmith.ir.function import Function
from tilesmith.ir.intrinsics import QUAD, rows_of
from tilesmith.ir.nests import allocated, only_store
from tilesmith.ir.nodes import (
    Alloc,
    Buffer,
    For,
    Fragment,
    If,
    Join,
    Stmt,
    Store,
    Write,
    statements,
)

_MOST_POINTS = 1 << 22  # of threads and iterations that are gone through


@dataclass(frozen=True, slots=True)
class _Held:
    """A buffer in fragments. `rows` and `columns` are the dimensions that an instruction covers;
    without columns, it has a value for each row.
    """

    buffer: Buffer
    fragment: Fragment
    rows: int
    columns: int | None
    size: tuple[int, int]  # what one instruction covers

    def _others(self, index: tuple[Int, ...]) -> tuple[Int, ...]:
        return tuple(p for d, p in enumerate(index) if d not in (self.rows, self.columns))

    def parts(self, index: tuple[Int, ...]) -> tuple[tuple[Int, ...], Int]:
        """The index of the element's register, and the thread of the group that has it."""
        i, (m, n) = index[self.rows], self.size
        j = ZERO if self.columns is None else index[self.columns]
        inside = {"d0": i - i // m * m, "d1": j - j // n * n}
        f = self.fragment
        at = (*self._others(index), i // m, j // n, f.register.substitute(inside))
        return at, f.lane.substitute(inside)

    @property
    def lanes(self) -> int:
        """Neighbours that hold the same."""
        return QUAD if self.columns is None else 1

    @property
    def registers(self) -> Buffer:
        shape, (m, n) = self.buffer.shape, self.size
        columns = of(n) if self.columns is None else shape[self.columns]
        # A part of a tile, where a buffer ends, takes the registers of a whole one.
        rows, columns = ((shape[self.rows] + (m - 1)) // m, (columns + (n - 1)) // n)
        held = (*self._others(shape), rows, columns, of(self.fragment.registers))
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
    body = func.body
    if held.keys() != kept.keys():
        roles = {n: Roles(h.rows, h.columns, h.fragment, h.size) for n, h in kept.items()}
        roles = roles_of(func.body, roles, held.keys())
        for name, r in roles.items():
            fragment = r.fragment if r.columns is not None else rows_of(r.fragment)
            kept.setdefault(name, _Held(held[name], fragment, r.rows, r.columns, r.size))
        body = spread_nests(body, roles)
    if missing := held.keys() - kept.keys():
        raise BuildError(f"no instruction fills the fragment {min(missing)}")
    return simplify(replace(func, body=_Rewriting(kept).body(body, {}, ())), target)


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
            elif isinstance(s, Join):
                out.append(map_access(s, partial(self._element, ranges, threads)))
            else:
                out.append(s)
        return tuple(out)

    def _store(self, s: Store, ranges: dict[str, Int], threads: tuple[str, ...]) -> Store:
        if s.intrinsic is not None and s.intrinsic.fragment is not None:
            m, n, k = (name for name, _ in s.tile)
            zero: dict[str, Int] = dict.fromkeys((m, n, k), ZERO)

            def whole(name: str, index: tuple[Int, ...]) -> tuple[Int, ...]:
                if name not in self.kept:
                    return index
                held = self.kept[name]
                assert held.columns is not None
                start = tuple(p.substitute(zero) for p in index)
                at, _ = held.parts(start)
                last = n if n in index[held.columns].names else k  # of the result, or of a factor
                env = {"d0": var(m), "d1": var(last) + start[held.columns] % held.size[1]}
                return (*at[:-1], held.fragment.register.substitute(env))

            return map_access(s, whole)
        return map_access(s, partial(self._element, ranges, threads))

    def _element(
        self, ranges: dict[str, Int], threads: tuple[str, ...], name: str, index: tuple[Int, ...]
    ) -> tuple[Int, ...]:
        return self._own(self.kept[name], index, ranges, threads) if name in self.kept else index

    def _own(
        self, held: _Held, index: tuple[Int, ...], ranges: dict[str, Int], threads: tuple[str, ...]
    ) -> tuple[Int, ...]:
        at, lane = held.parts(index)
        number = of(0)
        for t in threads:
            number = number * ranges[t] + var(t)
        same: dict[str, Int] = dict.fromkeys(threads, ZERO)
        plain = tuple(p.substitute(same) for p in at)
        number = number - number // held.fragment.threads * held.fragment.threads
        pairs = [(lane, number // held.lanes * held.lanes)]
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
    if held.columns is None:
        return None
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
    """Every value of the loops that p names, each along an axis of its own; None if there are many,
    or if their number is open.
    """
    names = sorted(p.names)
    extents = [ranges.get(n, ZERO).const or 0 for n in names]
    if not 0 < prod(extents) <= _MOST_POINTS:
        return None
    return axes_over({n: range(e) for n, e in zip(names, extents, strict=True)})


def _always(p: Int, ranges: Mapping[str, Int]) -> bool:
    points = _points(p, ranges)
    return points is not None and bool(np.all(integer(p, points) >= 0))


def _equal(p: Int, q: Int, ranges: Mapping[str, Int]) -> bool:
    points = _points(p - q, ranges)
    return points is not None and bool(np.all(integer(p - q, points) == 0))
