"""Keeps the result of a hardware instruction in the instruction's own registers while it is summed
up, such as the tile registers of AMX. A loop of one iteration with the note HoldResult stands
around the steps of each sum: the result is loaded in front of it and stored behind it. If the
result is set to zero just before, the nest that does so comes into that loop, too: then registers
are set to zero, and nothing is loaded.

CPU policy: each step of such a sum would otherwise load and store more than it computes with. An
operand that passes by while the other is used again would push that one out of L1; the note
StreamOperand names it (int8 products of 1024 x 1024 x 1024 gain 20 % by it on an Emerald Rapids).
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.expr.ints import ZERO, Int, of, var
from tilesmith.expr.nodes import Const, Load
from tilesmith.ir.function import Function
from tilesmith.ir.nests import perfect_nest
from tilesmith.ir.nodes import For, If, Stmt, Store, statements
from tilesmith.ir.notes import HoldResult, Note, StreamOperand


def hold_results(func: Function, target: Target) -> Function:
    if not any(isinstance(s, Store) and _holds(s) for s in statements(func.body)):
        return func
    return replace(func, body=_body(func.body, (), target))


def _holds(s: Store) -> bool:
    return s.intrinsic is not None and s.intrinsic.held


def _body(body: tuple[Stmt, ...], around: tuple[For, ...], target: Target) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for s in body:
        unit = summed(s)
        if unit is None:
            if isinstance(s, For | If):
                loops = (*around, s) if isinstance(s, For) else around
                s = replace(s, body=_body(s.body, loops, target))
            out.append(s)
            continue
        zeros = (out.pop(),) if out and _clears(out[-1], unit, s) else ()
        name = f"{unit.tile[0][0]}.held"
        notes: list[Note] = [HoldResult(bool(zeros))]
        if streamed := _streamed(unit, s, around, target):
            notes.append(StreamOperand(streamed))
        out.append(For(name, of(1), (*zeros, s), notes=tuple(notes)))
    return tuple(out)


def _streamed(unit: Store, nest: Stmt, around: tuple[For, ...], target: Target) -> str:
    """The operand that alone moves along with the innermost loop around a sum, if more of it is
    read than L1 holds beside the other until it is read again.
    """
    outside = [f for f in around if f.extent.const != 1]
    steps, _ = perfect_nest((nest,))
    if not outside or unit.intrinsic is None:
        return ""
    moved = [(n, x) for n, x in unit.operands
             if n != unit.intrinsic.output and _moves(outside[-1], x)]  # fmt: skip
    if len(moved) != 1:
        return ""
    ((name, load),) = moved
    nbytes = unit.intrinsic.nbits(name) // 8
    for f in (*steps, *reversed(outside)):
        if _moves(f, load):
            nbytes *= f.likely_trips
        elif f not in steps:
            break
    return name if nbytes > target.l1_nbytes // 2 else ""


def _moves(f: For, load: Load) -> bool:
    return any(f.name in p.names for p in load.index)


def summed(s: Stmt) -> Store | None:
    """The instruction of which a nest consists, if the loops do not move its result."""
    loops, body = perfect_nest((s,), ("serial", "unroll"))
    if len(body) != 1 or not isinstance(unit := body[0], Store) or not _holds(unit):
        return None
    moving = {f.name for f in loops if f.extent.const != 1}
    return None if any(p.names & moving for p in result_of(unit).index) else unit


def result_of(s: Store) -> Load:
    """What the instruction reads and writes."""
    assert s.intrinsic is not None
    return dict(s.operands)[s.intrinsic.output]


def _clears(before: Stmt, unit: Store, nest: Stmt) -> bool:
    """Whether a statement sets all of the unit's result to zero, and does nothing else."""
    around, body = perfect_nest((before,))
    if len(body) != 1 or not isinstance(store := body[0], Store):
        return False
    if store.intrinsic or len(store.writes) != 1:
        return False
    loops = [f for f in around if f.extent.const != 1]
    (w,), result = store.writes, result_of(unit)
    if w.buffer != result.buffer or not isinstance(w.value, Const) or w.value.value != 0:
        return False
    single = (f for f in (*around, *perfect_nest((nest,))[0]) if f.extent.const == 1)
    ones: dict[str, Int] = {f.name: ZERO for f in single}
    tile = [(n, e) for n, e in unit.tile if any(n in p.names for p in result.index)]
    if [f.extent for f in loops] != [e for _, e in tile]:
        return False
    env = ones | {f.name: var(n) for f, (n, _) in zip(loops, tile, strict=True)}
    return all(
        p.substitute(env) == q.substitute(env) for p, q in zip(w.index, result.index, strict=True)
    )
