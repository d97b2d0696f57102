"""Prefetches what the innermost loop of a tiled block reads as a stream: buffers of which each
iteration reads the next contiguous piece, as packed operands are. A "fetch_stream" note on a loop
around says how many bytes ahead.

CPU policy: one operand of the register tile comes from L2, and its lines arrive too late for an
in-order stream of loads. The end of one piece prefetches the beginning of the next.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.codegen.passes.spread_prefetches import span_of
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, Buffer, For, Stmt, Store, rewrite, statements
from tilesmith.ir.notes import FetchStream, Note, Prefetch

_LEAST = 32  # bytes per iteration; with fewer, most prefetches would ask for the same line again


def prefetch_streams(func: Function, _: Target) -> Function:
    buffers = {b.name: b for b in func.params}
    buffers |= {s.buffer.name: s.buffer for s in statements(func.body) if isinstance(s, Alloc)}

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(s, For) or (nbytes := s.count(FetchStream)) is None:
            return (s,)
        return rewrite((s,), lambda t: (_prefetched(t, nbytes, buffers),))

    return replace(func, body=rewrite(func.body, go))


def _prefetched(s: Stmt, nbytes: int, buffers: dict[str, Buffer]) -> Stmt:
    if not isinstance(s, For) or s.kind != "serial" or s.trips < 2:
        return s
    inner = list(statements(s.body))
    if any(isinstance(t, For) and t.kind not in ("unroll", "vectorize") for t in inner):
        return s
    written = {w.buffer for t in inner if isinstance(t, Store) for w in t.writes}
    notes: list[Note] = []
    for b in buffers.values():
        if b.name in written or (span := span_of(s, b)) is None:
            continue
        step = dict(span.outer)[s.name]
        each = step * b.dtype.nbytes
        # what the next iteration reads begins where this one ends
        if step == span.elements and each >= _LEAST:
            turns = -(-nbytes // each)
            notes.append(Prefetch(b.name, turns))
    return replace(s, notes=(*s.notes, *notes)) if notes else s
