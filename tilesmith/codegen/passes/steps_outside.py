"""GPU: spares the compiler of an unrolled sum loads that it would have to merge.

The text of an unrolled nest has a load wherever it has a use. With the steps of the sum outside of
the tile that they add to, all uses of an element are in one step, which loads it once
(`load_fragments`). The order in which an element's terms are added stays the same.

    for i in 4:  # unroll                           for k in 8:  # unroll, a step
      for k in 8:  # unroll                   ->      for i in 4:  # unroll
        for j in 4:  # unroll                           for j in 4:  # unroll
          C[i, j] += A.shared[i, k] * B.shared[k, j]      C[i, j] += ...

NVRTC compares every load with all loads before it, which takes most of its time, and the assembler
does that once more. So the innermost step gets the note KeepSteps: the C text tells the compiler to
keep the loads of steps apart.

Both are done only where loads are many beside the sums, and builds take seconds. Otherwise the
order of the loops is the search's decision: it is the order of the machine code, by and large.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd, prod

from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import accesses, are_distinct, substitute_body
from tilesmith.expr.dynamic import loads_of, map_loads
from tilesmith.expr.intervals import linear, row_major
from tilesmith.expr.ints import Int, of, var
from tilesmith.expr.nodes import Load
from tilesmith.ir.function import Function
from tilesmith.ir.nests import allocated, perfect_nest, rewrite_outer
from tilesmith.ir.nodes import Alloc, Buffer, For, Path, Stmt, Store, Write, nested, rewrite
from tilesmith.ir.notes import KeepSteps, VectorTerms

# Loads from shared memory for each sum, from which on the steps go outside, and are kept apart.
_REPEATED, _MANY = 0.5, 0.25


def steps_outside(func: Function, _: Target) -> Function:
    """Takes launch form."""
    buffers = allocated(func.body)

    def go(s: Stmt, _: Path) -> tuple[Stmt, ...] | None:
        loops, body = perfect_nest((s,))
        if not loops or len(body) != 1 or not isinstance(store := body[0], Store):
            return None
        if any(f.note(VectorTerms) is not None for f in loops):  # loaded once in any case
            return (s,)
        if len(store.writes) != 1 or store.intrinsic is not None:
            return None
        return nested(_reordered(loops, store.writes[0], buffers), body)

    return replace(func, body=rewrite_outer(func.body, go))


def _reordered(loops: list[For], write: Write, buffers: dict[str, Buffer]) -> list[For]:
    """The loops directly around a statement in their new order."""
    held = buffers.get(write.buffer)
    if held is None or held.scope != "local" or not all(p.plain for p in write.index):
        return loops
    loads = dict.fromkeys(loads_of(write.value))
    if any(x.buffer == write.buffer and x.index != write.index for x in loads):
        return loops
    place = linear(write.index, held.strides)
    # Only what is unrolled is looked at; loops over registers are so in any case.
    kept = [
        k for k, f in enumerate(loops)
        if f.kind != "unroll" and (f.kind != "serial" or f.name not in place.names)
    ]  # fmt: skip
    outer, nest = loops[: max(kept, default=-1) + 1], loops[max(kept, default=-1) + 1 :]
    tile = [f for f in nest if f.name in place.names]
    steps = [f for f in nest if f.name not in place.names]
    moves = [(abs(place.coefficient(f.name).const or 0), f.trips) for f in tile]
    if not steps or not are_distinct(moves):
        return loops
    scopes = {buffers[x.buffer].scope if x.buffer in buffers else "global" for x in loads}
    shared = [x for x in loads if x.buffer in buffers and buffers[x.buffer].scope == "shared"]
    last = max(k for k, f in enumerate(nest) if f.name not in place.names)
    each = _loads_per_sum(shared, buffers, nest[last + 1 :])
    if each > _REPEATED:
        nest, last = steps + tile, len(steps) - 1
        each = _loads_per_sum(shared, buffers, tile)
    if each > _MANY and scopes <= {"shared", "local"}:
        nest[last] = replace(nest[last], notes=(*nest[last].notes, KeepSteps()))
    return outer + nest


def _loads_per_sum(loads: list[Load], buffers: dict[str, Buffer], tile: list[For]) -> float:
    """Instructions that load what a tile uses, each element once, for each of its sums."""
    total = 0.0
    for x in loads:
        place = linear(x.index, buffers[x.buffer].strides)
        used = [f for f in tile if f.name in place.names]
        number = prod(f.trips for f in used)
        rows = [f.trips for f in used if place.coefficient(f.name).const == 1]
        total += number / (gcd(rows[-1], 4) if rows else 1)  # vectors of 2 or 4 elements
    return total / prod(f.trips for f in tile)


_MOST = 64  # registers for the operands of a tile


def load_fragments(func: Function, _: Target) -> Function:
    """GPU: loads what a register tile uses from shared memory once, into registers of its own.
    Takes launch form.

    Without this, each statement of the tile loads its operands; with it, a row and a column are
    loaded, several elements at once, and the tile is their outer product.

    for i in 4:  # unroll                          for i in 4: A.part[i] = A.shared[i, k]
      for j in 4:  # unroll                  ->    for j in 4: B.part[j] = B.shared[k, j]
        C[i, j] += A.shared[i, k] * B.shared[k, j]   for i in 4:
                                                     for j in 4: C[i, j] += A.part[i] * B.part[j]

    In a loop with the note `vector_terms`, operands that are contiguous along it are loaded for all
    its terms at once.
    """
    return replace(func, body=rewrite_outer(func.body, _Fragments(allocated(func.body)).loaded))


class _Fragments:
    def __init__(self, buffers: dict[str, Buffer]) -> None:
        self.buffers = buffers
        self.count = 0

    def loaded(self, s: Stmt, _: Path) -> tuple[Stmt, ...] | None:
        if isinstance(s, For) and s.note(VectorTerms) is not None and len(s.body) == 1:
            return self._terms(s)
        tile = _tile(s)
        if tile is None:
            return None
        return self._tile_loaded(s, *tile)

    def _terms(self, s: For) -> tuple[Stmt, ...] | None:
        """The loop over terms, behind loads of what lies along it."""
        tile = _tile(s.body[0])
        if tile is None or len(tile[1].writes) != 1 or not self._is_held(tile[1]):
            return None
        loops, store = tile
        first: list[Stmt] = []
        parts: dict[Load, Load] = {}
        for load in dict.fromkeys(loads_of(store.writes[0].value)):
            if not self._is(load.buffer, "shared"):
                continue
            place = linear(load.index, self.buffers[load.buffer].strides)
            used = [f for f in loops if f.name in place.names]
            if place.coefficient(s.name).const == 1 and len(used) < len(loops):
                part, fill = self._part(load, [*used, s])
                parts[load] = part
                first += fill
        done = self._tile_loaded(s.body[0], loops, _with_loads(store, parts))
        return (*first, replace(s.without(VectorTerms), body=done))

    def _is_held(self, store: Store) -> bool:
        (write,) = store.writes
        return self._is(write.buffer, "local") and write.value not in loads_of(write.value)

    def _part(self, load: Load, used: list[For]) -> tuple[Load, list[Stmt]]:
        """What a thread loads into registers in these loops, and the statements that do."""
        self.count += 1
        name = f"{load.buffer}.part{self.count}"
        part = Buffer(name, (of(prod(f.trips for f in used)),), load.dtype, "local")
        place = linear((var(f.name) for f in used), row_major(tuple(f.extent for f in used)))
        return Load(name, (place,), load.dtype), [Alloc(part), _filled(load, part, used)]

    def _tile_loaded(self, s: Stmt, loops: list[For], store: Store) -> tuple[Stmt, ...]:
        (write,) = store.writes
        if not self._is_held(store):
            return (s,)
        names = {f.name for f in loops}
        first: list[Stmt] = []
        parts: dict[Load, Load] = {}
        for load in dict.fromkeys(loads_of(write.value)):
            used = [f for f in loops if any(f.name in p.names for p in load.index)]
            again = prod(f.trips for f in loops if f not in used)
            size = prod(f.trips for f in used)
            if not self._is(load.buffer, "shared") or again == 1 or size > _MOST:
                continue
            if any(not p.plain and p.names & names for p in load.index):
                continue
            parts[load], fill = self._part(load, used)
            first += fill
        return (*first, *nested(loops, (_with_loads(store, parts),)))

    def _is(self, name: str, scope: str) -> bool:
        return name in self.buffers and self.buffers[name].scope == scope


def _with_loads(store: Store, parts: Mapping[Load, Load]) -> Store:
    (write,) = store.writes
    return Store((replace(write, value=map_loads(write.value, lambda x: parts.get(x, x))),))


def _filled(load: Load, part: Buffer, used: list[For]) -> Stmt:
    """The loop nest that loads a fragment."""
    names: dict[str, Int] = {f.name: var(f"{f.name}.{part.name}") for f in used}
    place = linear(names.values(), row_major(tuple(f.extent for f in used)))
    (stmt,) = substitute_body((Store((Write(part.name, (place,), load),)),), names)
    for f in reversed(used):
        stmt = For(f"{f.name}.{part.name}", f.extent, (stmt,), "unroll")
    return stmt


def _tile(s: Stmt) -> tuple[list[For], Store] | None:
    """The loops of a register tile and its statement, if this is the outermost of them: loops
    directly inside one another, each of which moves the element that is written.
    """
    loops, body = perfect_nest((s,), ("serial", "unroll"))
    if not loops or len(body) != 1 or not isinstance(inner := body[0], Store):
        return None
    if len(inner.writes) != 1 or inner.intrinsic is not None:
        return None
    moved = {n for a in accesses((inner,)) if a.write for p in a.index for n in p.names}
    return (loops, inner) if all(f.name in moved for f in loops) else None


def unroll_registers(func: Function, _: Target) -> Function:
    """GPU: unrolls every loop that indexes a private buffer, since registers have no addresses."""
    private = {n for n, b in allocated(func.body).items() if b.scope == "local"}
    indexed = {
        n for a in accesses(func.body) if a.buffer in private for p in a.index for n in p.names
    }

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, For) and s.kind == "serial" and s.name in indexed:
            return (replace(s, kind="unroll"),)
        return (s,)

    return replace(func, body=rewrite(func.body, go))
