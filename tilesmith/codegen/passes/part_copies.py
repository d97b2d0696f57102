"""Tests once per tile of a transposing copy whether the tile is full, where a guard of the copy
depends on loops around it. Full tiles, and those of which the number of rows is known, are then
turned in registers (transpose_squares.py); with a guard inside they would move element by element.

    for at in 32:                                  if 32*tile + 416*j <= 2853:
      if at + 32*tile + 416*j <= 2884:     ->        for at in 32: ...
        ...                                        if 13*j + tile == 90:
                                                     for at in 32:
                                                       if at <= 4: ...

CPU policy: it is about vector registers.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import accesses
from tilesmith.codegen.passes.guards import ends_of, full_and_partial
from tilesmith.codegen.passes.simplify import Ranges
from tilesmith.expr.intervals import step_along
from tilesmith.expr.ints import Int
from tilesmith.ir.function import Function
from tilesmith.ir.nests import allocated, only_store, rewrite_outer
from tilesmith.ir.nodes import Buffer, For, If, Path, Stmt


def part_copies(func: Function, _: Target) -> Function:
    buffers = func.all_buffers | allocated(func.body)

    def go(s: Stmt, path: Path) -> tuple[Stmt, ...] | None:
        if not isinstance(s, For) or s.kind == "parallel" or not _turns(s, buffers):
            return None
        return _parted(s, {f.name: f.extent for f in path})

    return replace(func, body=rewrite_outer(func.body, go))


def _turns(s: For, buffers: dict[str, Buffer]) -> bool:
    """Whether the nest loads along one loop and stores along another, one of which has vectors."""
    only = only_store(s)
    if only is None or only[1].intrinsic is not None or len(only[1].writes) != 1:
        return False
    *outer, last = (f for f in only[0] if isinstance(f, For))
    if not outer or last.kind != "vectorize":
        return False
    steps = {
        a.write: step_along(last.name, a.index, buffers[a.buffer].strides).const
        for a in accesses((s,))
    }
    return len(steps) == 2 and 1 in steps.values() and steps[True] != steps[False]


def _parted(s: For, ranges: Ranges) -> tuple[Stmt, ...]:
    """The nest with a test around the loop over the rows of a tile."""
    only = only_store(s)
    assert only is not None
    loops = [f for f in only[0] if isinstance(f, For)]
    place = {f.name: k for k, f in enumerate(loops)}
    guards = [p for g in only[0] if isinstance(g, If) for p in g.conds]
    # what does not depend on loops around the nest is decided by splitting its own loops
    outer = [p for p in guards if p.names & place.keys() and p.names - place.keys()]
    if not outer:
        return (s,)
    at = min(max(place[n] for n in p.names if n in place) for p in outer)
    if loops[at].kind != "serial":
        return (s,)
    here = {**ranges, **{f.name: f.extent for f in loops[:at]}}

    def within(t: Stmt) -> tuple[Stmt, ...]:
        if t is loops[at]:
            return _tested((t,), outer, {f.name: f.extent for f in loops[at:]}, here)
        assert isinstance(t, For | If)
        return (replace(t, body=within(t.body[0])),)

    return within(s)


def _tested(
    body: tuple[Stmt, ...], guards: list[Int], inner: Ranges, here: Ranges
) -> tuple[Stmt, ...]:
    """The body for tiles in which all guards hold, and for others."""
    if not guards or not (ends := ends_of(guards[0], inner)):
        return body
    whole, part = full_and_partial(body, (ends[0], ends[1]), here)
    return (If((ends[0],), _tested(whole, guards[1:], inner, here)), *part)
