"""Moves prefetches from the memory-bound loops of a nest into the loop with the most arithmetic, so
that memory and arithmetic units are busy at the same time. Where a "prefetch" note can be moved,
the inner loop gets a FetchLines note: how many cache lines per iteration, into which cache level,
from which address.

CPU policy: if prefetches stayed next to their accesses, a whole row would be requested in the short
loops that only load or store it. These would wait for memory, which idles during the arithmetic.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilesmith.base.dataclass import dataclass
from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import Access, accesses
from tilesmith.expr.intervals import linear
from tilesmith.expr.nodes import ARITHMETIC, Binary, Expr, Load, Unary, children
from tilesmith.expr.walk import preorder
from tilesmith.ir.function import Function
from tilesmith.ir.nests import allocated
from tilesmith.ir.nodes import Buffer, For, Stmt, Store, rewrite, statements
from tilesmith.ir.notes import FetchAhead, FetchLines, FetchStream, Note, Prefetch

LINE = 64  # bytes
_MOST_LINES = 16  # cache lines prefetched per iteration of the inner loop at most
_WORTH = 1024  # bytes; a shorter iteration ends before its prefetches arrive
_FUNCTION = 10  # approximate instructions of a function such as exp


def spread_prefetches(func: Function, target: Target) -> Function:
    params = {b.name: b for b in func.params}

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(s, For) or s.kind not in ("serial", "parallel"):
            return (s,)
        for note in s.notes:
            match note:
                case Prefetch(buffer=name, distance=distance) if name in params:
                    s = _spread(s, params[name], distance, target)
                case FetchAhead(count=int(turns)) if turns:
                    s = _fetched_ahead(s, turns, func, target)
        return (s,)

    return replace(func, body=rewrite(func.body, go))


def _fetched_ahead(loop: For, distance: int, func: Function, target: Target) -> For:
    """Prefetches the inputs of a later iteration, then the outputs of this one."""
    inner = _counted(loop.body[0]) if len(loop.body) == 1 else None
    if inner is loop.body[0] and _turn_nbytes(inner, func) >= _WORTH:
        return replace(loop, body=(_fetched_ahead(inner, distance, func, target),))
    outputs = {b.name for b in func.outputs}
    if not any(_counted(s) for s in statements(loop.body)):
        return _asked_beside(loop, distance, [b for b in func.params if b.name not in outputs])
    for b in sorted(func.params, key=lambda b: b.name in outputs):
        loop = _spread(loop, b, 0 if b.name in outputs else distance, target)
    return loop


def _asked_beside(loop: For, distance: int, inputs: list[Buffer]) -> For:
    """In an unrolled body, prefetches stay next to their accesses, further ahead if iterations are
    short.
    """
    notes: list[Note] = list(loop.notes)
    for b in inputs:
        span = span_of(loop, b)
        if span is not None:
            turns = -(-_WORTH * distance // (span.elements * b.dtype.nbytes))
            notes.append(Prefetch(b.name, turns))
    return replace(loop, notes=tuple(notes))


def _turn_nbytes(loop: For, func: Function) -> int:
    """The largest contiguous piece that one iteration of a loop accesses, in bytes."""
    spans = [(span_of(loop, b), b) for b in func.params if any(_uses(loop, b))]
    return max((s.elements * b.dtype.nbytes for s, b in spans if s is not None), default=0)


def _spread(loop: For, b: Buffer, distance: int, target: Target) -> For:
    span = span_of(loop, b)
    if span is None:
        return loop
    first_use = next(k for k, s in enumerate(loop.body) if any(_uses(s, b)))
    before = loop.body if distance else loop.body[:first_use]
    lines = -(-span.elements * b.dtype.nbytes // LINE)
    chain = _chain(before, lines)
    if any(f.extent.const is None for f in chain):
        return loop
    turns = prod(f.trips for f in chain)
    each = -(-lines // turns)
    if not chain or each > _MOST_LINES or each * turns > 2 * lines:
        return loop
    level = 1 if 2 * lines * LINE <= target.l1_nbytes else 2
    size, moving = b.dtype.nbytes, dict(span.outer)
    start = span.low + distance * moving[loop.name]
    body = loop.body
    for nest, share in _shares(before, chain, each):
        terms, step = dict(moving), share * LINE // size
        for f in reversed(nest):  # the loops of the nest count its iterations together
            terms[f.name] = step
            step *= f.trips
        note = FetchLines(b.name, span.write, level, start, share, tuple(terms.items()))
        body = _noted(body, [f.name for f in nest], note)
        start += step
    rest = tuple(n for n in loop.notes if n != Prefetch(b.name, distance))
    return replace(loop, body=body, notes=rest)


def _noted(body: tuple[Stmt, ...], nest: list[str], note: FetchLines) -> tuple[Stmt, ...]:
    """The note at the innermost of nested loops. Where a loop was split, the inner one may stand
    elsewhere, too, without the loops around it that the note counts.
    """
    name, *inner = nest

    def put(s: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(s, For) or s.name != name:
            return (s,)
        if inner:
            return (replace(s, body=_noted(s.body, inner, note)),)
        return (replace(s, notes=(*s.notes, note)),)

    return rewrite(body, put)


def _shares(body: tuple[Stmt, ...], chain: list[For], each: int) -> list[tuple[list[For], int]]:
    """Distributes the cache lines of an iteration over loops. Sibling loops with as many iterations
    as the chosen one take over a line each, unless they already prefetch, so that memory is always
    busy.
    """
    shares: list[tuple[list[For], int]] = []
    beside = [f for s in body if (f := _counted(s)) is not None] if len(chain) == 1 else []
    for f in beside:
        idle = f.name != chain[0].name and f.note(FetchLines) is None
        if idle and each > 1 and f.extent == chain[0].extent:
            shares.append(([f], 1))
            each -= 1
    return [*shares, (chain, each)]


def _chain(body: tuple[Stmt, ...], lines: int) -> list[For]:
    """Nested loops, each with most of the work, until few lines per iteration remain."""
    chain: list[For] = []
    while lines > _MOST_LINES or not chain:
        inner = [f for s in body if (f := _counted(s)) is not None]
        if not inner:
            break
        chain.append(max(inner, key=lambda f: _work((f,))))
        lines = -(-lines // chain[-1].likely_trips)
        body = chain[-1].body
    return chain


def _counted(s: Stmt) -> For | None:
    """The loop that a statement is, without loops of one iteration around it."""
    while isinstance(s, For) and s.extent.const == 1 and len(s.body) == 1:
        s = s.body[0]
    if isinstance(s, For) and s.kind == "serial" and s.likely_trips > 1:
        return s
    return None


def _work(body: tuple[Stmt, ...]) -> int:
    """The approximate number of instructions."""
    total = 0
    for s in body:
        if isinstance(s, For):
            total += s.likely_trips * _work(s.body)
        elif isinstance(s, Store):
            total += sum(1 + _instructions(w.value) for w in s.writes)
    return total


def _instructions(value: Expr) -> int:
    """A measure of time. `code_cost` measures code size and counts a function as one."""
    total = 0
    for e in preorder(value, children):
        if isinstance(e, Unary) and e.op not in ("neg", "abs", "not", "bitnot"):
            total += _FUNCTION
        total += isinstance(e, Load) or (isinstance(e, Binary) and e.op in ARITHMETIC)
    return total


@dataclass(frozen=True, slots=True)
class Span:
    """The contiguous elements that one iteration of a loop accesses: `elements` from `low` on."""

    outer: tuple[tuple[str, int], ...]  # the loops that move the whole piece, with strides
    low: int
    elements: int
    write: bool


def _uses(s: Stmt, b: Buffer) -> list[Access]:
    return [a for a in accesses((s,)) if a.buffer == b.name]


def span_of(loop: For, b: Buffer) -> Span | None:
    """None if the accessed elements are not one contiguous piece that moves with the loop."""
    uses = [a for s in loop.body for a in _uses(s, b)]
    if not uses:
        return None
    pieces = {_piece(a, b) for a in uses}
    outers = {p[0] for p in pieces if p is not None}
    if None in pieces or len(outers) != 1:
        return None
    (outer,) = outers
    if loop.name not in dict(outer):
        return None
    low = min(p[1] for p in pieces if p is not None)
    high = max(p[2] for p in pieces if p is not None)
    return Span(outer, low, high - low + 1, any(a.write for a in uses))


def _piece(a: Access, b: Buffer) -> tuple[tuple[tuple[str, int], ...], int, int] | None:
    """(outer loops with strides, first, last) of one access, if it leaves no gaps."""
    total = linear(a.index, b.strides)
    if any(f.extent.const is None for f in a.path):
        return None
    inner = {f.name: f.trips for f in a.path} | {n: e.number for n, e in a.tile}
    outer, steps, low = [], [], 0
    for mono, c in total.terms.items():
        if not mono:
            low += c
        elif len(mono) > 1 or not isinstance(mono[0], str):
            return None
        elif mono[0] in inner:
            steps.append((c, inner[mono[0]]))
        else:
            outer.append((mono[0], c))
    length, gap = 1, LINE // b.dtype.nbytes
    for step, turns in sorted(steps):
        if step < 0 or step > length + gap:
            return None
        length += step * (turns - 1)
    return tuple(sorted(outer)), low, low + length - 1


_LEAST = 32  # bytes per iteration; with fewer, most prefetches would ask for the same line again


def prefetch_streams(func: Function, _: Target) -> Function:
    """Prefetches what the innermost loop of a tiled block reads as a stream: buffers of which each
    iteration reads the next contiguous piece, as packed operands are. A "fetch_stream" note on a
    loop around says how many bytes ahead.

    CPU policy: one operand of the register tile comes from L2, and its lines arrive too late for an
    in-order stream of loads. The end of one piece prefetches the beginning of the next.
    """
    buffers = func.all_buffers | allocated(func.body)

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(s, For) or (nbytes := s.count(FetchStream)) is None:
            return (s,)
        return rewrite((s,), lambda t: (_prefetched(t, nbytes, buffers),))

    return replace(func, body=rewrite(func.body, go))


def _prefetched(s: Stmt, nbytes: int, buffers: dict[str, Buffer]) -> Stmt:
    if not isinstance(s, For) or s.kind != "serial" or s.likely_trips < 2:
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
