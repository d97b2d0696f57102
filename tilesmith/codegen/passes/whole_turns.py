"""GPU: sums of what threads read in global memory, written out: all loads of a turn come before
the first term, so that a thread waits once for all of them. Conditions of where an axis ends would
be in the way: turns that lie inside of it have none.

    for t in 10:                                  for t in 10:
      for u in 4:  # unroll                         if 96 - 4*t >= 0:
        if 99 - 4*t - u >= 0:             ->          for u in 4: X.ahead[u] = X[4*t + u]
          S += X[4*t + u]                             for u in 4: S += X.ahead[u]
                                                    if 4*t - 97 >= 0:
                                                      for u in 4: if 99 - 4*t - u >= 0: S += ...
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import prod

from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import substitute_body
from tilesmith.expr.dynamic import is_loaded, loads_of, map_loads
from tilesmith.expr.intervals import Unknown, bounds, linear, row_major
from tilesmith.expr.ints import Int, maximum, of, var
from tilesmith.expr.nodes import Load, Select, children
from tilesmith.expr.walk import preorder
from tilesmith.ir.function import Function
from tilesmith.ir.nests import allocated, only_store, rewrite_outer
from tilesmith.ir.nodes import Alloc, Buffer, For, If, Path, Stmt, Store, Write, nested

_MOST_CONDITIONS = 2  # that are decided together
_LEAST, _MOST = 2, 96  # registers for what is loaded ahead


def whole_turns(func: Function, _: Target) -> Function:
    """Takes launch form."""
    return replace(func, body=rewrite_outer(func.body, _Turns(allocated(func.body)).split))


class _Turns:
    def __init__(self, inside: dict[str, Buffer]) -> None:
        self.inside = inside
        self.count = 0

    def split(self, s: Stmt, path: Path) -> tuple[Stmt, ...] | None:
        only = only_store(s) if isinstance(s, For) and s.kind == "unroll" else None
        if only is None or not self._sums(only[1]):
            return None
        around, store = only
        loops = [x for x in around if isinstance(x, For)]
        if any(f.kind not in ("unroll", "vectorize") for f in loops):
            return None
        conds = dict.fromkeys(p for x in around if isinstance(x, If) for p in x.conds)
        least = {p: m for p in conds if (m := _least(p, loops, path)) is not None}
        if len(least) < len(conds) or len(least) > _MOST_CONDITIONS:
            return None
        whole = self._ahead(loops, store)
        if whole is None or not least:
            return whole
        smallest = -reduce(maximum, (-m for m in dict.fromkeys(least.values())))
        if smallest.const is not None:  # the same in all turns
            return whole if smallest.const >= 0 else None
        return If((smallest,), whole), If((-smallest - 1,), (s,))

    def _sums(self, store: Store) -> bool:
        if store.intrinsic is not None or len(store.writes) != 1:
            return False
        (w,) = store.writes
        held = w.buffer in self.inside and self.inside[w.buffer].scope == "local"
        return held and w.accumulates and bool(self._given(store))

    def _given(self, store: Store) -> list[Load]:
        """What it reads of parameters, if that is at known places and whatever the values are."""
        (w,) = store.writes
        if any(isinstance(e, Select) for e in preorder(w.value, children)):
            return []  # of padding, nothing is read
        loads = dict.fromkeys(loads_of(w.value))
        given = [x for x in loads if x.buffer not in self.inside]
        return [] if any(is_loaded(p) for x in given for p in x.index) else given

    def _ahead(self, loops: list[For], store: Store) -> tuple[Stmt, ...] | None:
        """The nest behind loads of what it reads; None if that is little, or too much."""
        (w,) = store.writes
        first: list[Stmt] = []
        parts: dict[Load, Load] = {}
        registers = 0
        for x in self._given(store):
            used = [f for f in loops if any(f.name in p.names for p in x.index)]
            size = prod(f.trips for f in used)
            registers += -(-size * x.dtype.nbytes // 4)
            self.count += 1
            part = Buffer(f"{x.buffer}.ahead{self.count}", (of(size),), x.dtype, "local")
            names: dict[str, Int] = {f.name: var(f"{f.name}.{part.name}") for f in used}
            shape = row_major(tuple(f.extent for f in used))
            parts[x] = Load(part.name, (linear([var(f.name) for f in used], shape),), x.dtype)
            place = linear(names.values(), shape)
            (fill,) = substitute_body((Store((Write(part.name, (place,), x),)),), names)
            for f in reversed(used):
                fill = replace(f, name=f"{f.name}.{part.name}", body=(fill,))
            first += [Alloc(part), fill]
        if not _LEAST <= registers <= _MOST:
            return None
        value = map_loads(w.value, lambda x: parts.get(x, x))
        return (*first, *nested(loops, (Store((replace(w, value=value),)),)))


def _least(p: Int, loops: list[For], path: Path) -> Int | None:
    """The smallest value of a condition over these loops and the threads; None if it depends on
    none of these loops, or has no such bound.
    """
    if not p.names & {f.name for f in loops}:
        return None
    ranges = {f.name: f.extent for f in (*path, *loops)}
    moving = {f.name: f.extent for f in (*loops, *(f for f in path if f.kind == "threadIdx.x"))}
    try:
        least = bounds(p, moving)[0]
    except Unknown:
        return None
    return least if least.names <= ranges.keys() - moving.keys() else None
