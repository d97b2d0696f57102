"""Notes that were left open while a schedule was searched for become the kinds of loops."""

from __future__ import annotations

from dataclasses import replace

from tilesmith.ir.function import Function
from tilesmith.ir.nodes import For, If, Stmt, rewrite


def resolve_notes(func: Function) -> Function:
    return replace(func, body=_unroll(rewrite(func.body, _parallel)))


def _parallel(s: Stmt) -> tuple[Stmt, ...]:
    """`parallel_depth` (p, k): the k-th loop of the nest is parallel if k < p."""
    if isinstance(s, For) and s.kind == "serial":
        note = s.note("parallel_depth")
        if isinstance(note, tuple) and isinstance(note[0], int) and int(note[1]) < note[0]:
            return (replace(s, kind="parallel"),)
    return (s,)


def _unroll(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """`unroll_depth` on an innermost loop: it and those around it are written out while the number
    of copies stays within the depth.
    """
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, For):
            inner = _unroll(s.body)
            s = s if inner is s.body else replace(s, body=inner)
            out.append(_written_out(s))
        elif isinstance(s, If):
            out.append(replace(s, body=_unroll(s.body)))
        else:
            out.append(s)
    return body if all(x is y for x, y in zip(out, body, strict=True)) else tuple(out)


def _written_out(s: For) -> For:
    """Copies of the innermost statement so far, handed outwards by the note."""
    note = s.note("unroll_depth")
    copies = 1
    if note is None and len(s.body) == 1 and isinstance(child := s.body[0], For):
        note = child.note("unroll_rest") if child.kind in ("unroll", "vectorize") else None
        copies = 1
    if not isinstance(note, int):
        return s
    n = s.extent.const or 1
    rest = tuple(x for x in s.notes if x[0] not in ("unroll_depth", "unroll_rest"))
    if s.kind == "vectorize":
        return replace(s, notes=(*rest, ("unroll_rest", max(1, note * copies))))
    if s.kind not in ("serial", "unroll") or n > note:
        return replace(s, notes=rest)
    return replace(s, kind="unroll", notes=(*rest, ("unroll_rest", note // max(n, 1))))
