"""Splits the loops of a copy into tiles where its addresses divide the loop variable, so that
addresses are linear again and vectors stay whole. Applies to nests of a single store, after layouts
have been applied.

CPU policy: vector loads and stores need consecutive addresses.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import accesses, substitute_body
from tilesmith.codegen.passes.simplify import Ranges, simplify_body
from tilesmith.expr.ints import FloorDiv, Int, of, opaque_atoms, var
from tilesmith.expr.linear import linear, row_major
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, For, If, Stmt, Store, statements

_Shapes = dict[str, tuple[Int, ...]]


def split_at_divisions(func: Function, _: Target) -> Function:
    shapes = {p.name: p.shape for p in func.params}
    allocated = (s.buffer for s in statements(func.body) if isinstance(s, Alloc))
    return replace(func, body=_body(func.body, {}, shapes | {b.name: b.shape for b in allocated}))


def _body(body: tuple[Stmt, ...], ranges: Ranges, shapes: _Shapes) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, If):
            out.append(replace(s, body=_body(s.body, ranges, shapes)))
        elif not isinstance(s, For):
            out.append(s)
        elif s.kind == "parallel" or (size := _tile(s, shapes)) is None:
            inside = _body(s.body, {**ranges, s.name: s.extent}, shapes)
            out.append(replace(s, body=inside))
        else:
            out.extend(_body(_split(s, size, ranges), ranges, shapes))
    return tuple(out)


def _tile(s: For, shapes: _Shapes) -> int | None:
    """The number of iterations that stay within one quotient of an address that divides the loop
    variable. None if there is no such address, or the loop contains more than a store.
    """
    n = s.extent.const
    if n is None or not _one_store(s):
        return None
    divisions = {
        d for a in accesses((s,)) for d in opaque_atoms(_address(a.index, shapes[a.buffer]))
        if isinstance(d, FloorDiv) and s.name in d.names()
    }  # fmt: skip
    sizes = {_turns(d, s.name) for d in divisions}
    return min((k for k in sizes if 1 < k < n), default=None)


def _address(index: tuple[Int, ...], shape: tuple[Int, ...]) -> Int:
    """The linear address in elements. Adjacent dimensions that are traversed as one cancel their
    divisions in it.
    """
    return linear(index, row_major(shape))


def _turns(d: FloorDiv, name: str) -> int:
    """The number of iterations per quotient; 1 if it is not constant."""
    step, divisor = d.a.coefficient(name).const, d.b.const
    return divisor // step if step and divisor and divisor % step == 0 else 1


def _one_store(s: Stmt) -> bool:
    while isinstance(s, For | If):
        if len(s.body) != 1:
            return False
        s = s.body[0]
    return isinstance(s, Store) and s.intrinsic is None


def _split(s: For, size: int, ranges: Ranges) -> tuple[Stmt, ...]:
    """A loop over whole tiles, and the remainder."""
    n = s.trips
    tile, at = f"{s.name}.tile", f"{s.name}.at"
    body = substitute_body(s.body, {s.name: var(tile) * size + var(at)})
    over = "serial" if s.kind == "vectorize" else s.kind
    nests: list[Stmt] = [
        For(tile, of(n // size), (For(at, of(size), body, s.kind),), over, s.notes)
    ]
    if rest := n % size:
        body = substitute_body(s.body, {s.name: var(s.name) + (n - rest)})
        nests.append(replace(s, extent=of(rest), body=body))
    return simplify_body(tuple(nests), ranges, {})
