"""GPU: software pipelining. Overlaps copies to shared memory with arithmetic, where a loop has the
note `pipeline`.

While one tile is used, the next one is loaded into registers. The tile has two versions in shared
memory (double buffering), so one barrier per iteration is enough.

    for k in 8:  # pipeline=2                     A.fetch = A[0, ...]
      A.shared[...] = A[k, ...]                   A.shared[0, ...] = A.fetch
      C += A.shared[...]                    ->    for k in 8:
                                                    if 6 - k >= 0: A.fetch = A[k + 1, ...]
                                                    C += A.shared[k % 2, ...]
                                                    if 6 - k >= 0: A.shared[(k + 1) % 2] = A.fetch

Two turns are written out one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilesmith.base.dataclass import dataclass
from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import accesses, map_access, substitute_body, with_dimensions
from tilesmith.codegen.passes.bulk_copies import tiles_of
from tilesmith.codegen.passes.simplify import simplify_body
from tilesmith.expr.intervals import linear, row_major
from tilesmith.expr.ints import ONE, ZERO, Int, of, product, var
from tilesmith.expr.nodes import Load
from tilesmith.ir.function import Function
from tilesmith.ir.launch_resources import FETCHED_VERSIONS
from tilesmith.ir.nests import allocated, only_store
from tilesmith.ir.nodes import Alloc, Buffer, For, If, Join, Stmt, Store, Write, nested, rewrite
from tilesmith.ir.notes import PipelineStages

# A loop of two turns is written out: what it does ahead of the next turn depends on k == 0, and
# ptxas up to 13.0 computes (k + 1) % 2 as 0 below that condition (statements.py of codegen/c).
# Three of four such convolutions were wrong on an H200; written out, all of 412 were right.
_WRITTEN_OUT = 2


def pipeline_copies(func: Function, _: Target) -> Function:
    """Takes launch form without barriers."""
    buffers = allocated(func.body)
    copied: set[str] = set()

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(s, For) or (s.count(PipelineStages) or 0) < 2:
            return (s,)
        if tiles_of(s.body):  # the emitter lets the copy engine run ahead
            return (s,)
        done = _pipelined(s, buffers, func)
        if done is None:
            return (s.without(PipelineStages),)
        stmts, names = done
        copied.update(names)
        return stmts

    body = rewrite(func.body, go)

    def grow(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Alloc) and s.buffer.name in copied:
            return (Alloc(with_dimensions(s.buffer, (of(FETCHED_VERSIONS),))),)
        return (s,)

    return replace(func, body=rewrite(body, grow)) if copied else func


def _pipelined(
    loop: For, buffers: dict[str, Buffer], func: Function
) -> tuple[tuple[Stmt, ...], set[str]] | None:
    """The statements for the loop and the buffers that need two versions; None if the loop has no
    copies that can run ahead.
    """
    count = loop.extent.const
    written = {a.buffer for a in accesses(loop.body) if a.write}
    made_here = {n for n, b in buffers.items() if b.scope != "global" or n in written}
    found = [(s, _copy_of(s, buffers, made_here)) for s in loop.body]
    copies = [c for _, c in found if c is not None]
    rest = tuple(s for s, c in found if c is None)
    names = {c.store.writes[0].buffer for c in copies}
    if count is None or count < _WRITTEN_OUT or not copies or len(names) < len(copies):
        return None
    if any(a.write and a.buffer in names for a in accesses(rest)):
        return None
    outside = sum(a.buffer in names for a in accesses(func.body))
    if outside != sum(a.buffer in names for a in accesses(loop.body)):
        return None  # the tile is used behind the loop as well
    k = var(loop.name)

    slot = k % of(FETCHED_VERSIONS)

    def at(turn: Int, storing: bool) -> tuple[Stmt, ...]:
        parts = (c.stored(slot) if storing else c.loaded() for c in copies)
        return substitute_body(tuple(parts), {loop.name: turn})

    allocs = (Alloc(c.registers) for c in copies)
    # The first tile's guards may be decided now.
    first = _simple((*at(ZERO, storing=False), *at(ZERO, storing=True)))
    used = _in_slot(rest, names, slot)
    if count == _WRITTEN_OUT:
        turns = [substitute_body(used, {loop.name: of(turn)}) for turn in range(count)]
        second = (_simple(at(ONE, storing)) for storing in (False, True))
        return (*allocs, *first, *next(second), *turns[0], *next(second), *turns[1]), names
    ahead = (of(count - 2) - k,)
    body: tuple[Stmt, ...] = (
        If(ahead, at(k + 1, storing=False)),
        *used,
        If(ahead, at(k + 1, storing=True)),
    )
    return (*allocs, *first, replace(loop.without(PipelineStages), body=body)), names


def _simple(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    return simplify_body(body, {}, {})


def _in_slot(body: Iterable[Stmt], names: set[str], slot: Int) -> tuple[Stmt, ...]:
    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Store | Join):
            return (map_access(s, lambda n, ix: (slot, *ix) if n in names else ix),)
        return (s,)

    return rewrite(tuple(body), go)


@dataclass(frozen=True, slots=True)
class _Copy:
    """Loops and conditions around a store, from outside in, with registers for what it moves."""

    around: tuple[For | If, ...]
    store: Store
    registers: Buffer

    @property
    def _place(self) -> Load:
        loops = [f for f in self.around if isinstance(f, For)]
        at = linear((var(f.name) for f in loops), row_major(tuple(f.extent for f in loops)))
        return Load(self.registers.name, (at,), self.registers.dtype)

    def loaded(self) -> Stmt:
        (w,) = self.store.writes
        return self._nest(Write(self._place.buffer, self._place.index, w.value))

    def stored(self, slot: Int) -> Stmt:
        (w,) = self.store.writes
        return self._nest(Write(w.buffer, (slot, *w.index), self._place))

    def _nest(self, w: Write) -> Stmt:
        return nested(self.around, (Store((w,)),))[0]


def _copy_of(s: Stmt, buffers: dict[str, Buffer], made_here: set[str]) -> _Copy | None:
    """The statement as a copy from global to shared memory; None if it is something else. An
    earlier launch may have filled what it reads.
    """
    only = only_store(s)
    if only is None or len(only[1].writes) != 1:
        return None
    around, store = only
    (w,) = store.writes
    if w.buffer not in buffers or buffers[w.buffer].scope != "shared":
        return None
    if any(a.buffer in made_here and not a.write for a in accesses((store,))):
        return None
    size = product(f.extent for f in around if isinstance(f, For))
    registers = Buffer(f"{w.buffer}.fetch", (size,), w.value.dtype, "local")
    return _Copy(tuple(around), store, registers)
