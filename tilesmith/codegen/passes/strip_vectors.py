"""Strip-mines a vectorized loop that is longer than a few vector registers: a serial loop over
strips, a vectorized loop inside of each, and a vectorized loop for the remainder. A reduction over
such a loop keeps one partial result per lane of the strip and joins the lanes once, after the loop.

CPU policy: a strip is a fixed number of the target's vector registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilesmith.base.dtype import BOOL, FLOAT16, DType
from tilesmith.base.target import Target
from tilesmith.codegen.expressions import compute_dtype
from tilesmith.codegen.passes.accesses import substitute_body
from tilesmith.expr.ints import Int, of, var
from tilesmith.expr.nodes import (
    Binary,
    Const,
    Expr,
    IntValue,
    Load,
    Unary,
    children,
    plain_combiner,
)
from tilesmith.expr.walk import preorder
from tilesmith.ir.contract import sums_halves
from tilesmith.ir.function import Function
from tilesmith.ir.nests import perfect_nest
from tilesmith.ir.nodes import Alloc, Buffer, For, Stmt, Store, Write, nested, rewrite, statements

_VECTORS = 8  # a vectorized loop of at most so many registers is left as it is


def strip_vectors(func: Function, target: Target) -> Function:
    def go(s: Stmt) -> tuple[Stmt, ...]:
        if not (isinstance(s, For) and s.kind == "vectorize"):
            return (s,)
        n = s.trips
        strip = strip_of(s.body, target)
        if n <= 2 * strip:
            return (s,)
        loop, rest, w = strips(s, strip), n % strip, joined(s)
        loops = (loop,) if w is None else kept_in_lanes((loop,), w)
        if not rest:
            return loops
        tail = substitute_body(s.body, {s.name: var(s.name) + (n - rest)})
        return (*loops, replace(s, extent=of(rest), body=tail))

    return replace(func, body=rewrite(func.body, go))


def strip_of(body: tuple[Stmt, ...], target: Target) -> int:
    """The lanes of a strip."""
    return max(lanes_of(body, target) * _VECTORS // 2, lanes_at_once(body, target))


def strips(s: For, strip: int) -> For:
    """The iterations of a vectorized loop that fill whole strips."""
    outer, inner = f"{s.name}.strip", f"{s.name}.lane"
    whole = substitute_body(s.body, {s.name: var(outer) * strip + var(inner)})
    lanes = replace(s, name=inner, extent=of(strip), body=whole)
    return For(outer, s.extent // strip, (lanes,))


def joined(s: For) -> Write | None:
    """The write to a single element that all iterations reduce into, if the loop does only that."""
    if len(s.body) != 1 or not isinstance(t := s.body[0], Store) or len(t.writes) != 1:
        return None
    (w,) = t.writes
    if t.intrinsic is not None or not w.accumulates:
        return None
    return w if not any(s.name in p.names for p in w.index) else None


def kept_in_lanes(loops: Sequence[For], w: Write) -> tuple[Stmt, ...]:
    """Loops over strips, and over shorter ones, that reduce into `w`, by way of one partial result
    for each lane of the first.

    for s in 16:                            for l in 64: part[l] = 0    # all three vectorized
      for l in 64:  # vectorize      ->     for s in 16:
        y[] += x[64*s + l]                    for l in 64: part[l] += x[64*s + l]
                                            for l in 64: y[] += part[l]
    """
    whole, e = perfect_nest((loops[0],))[0][-1], w.value
    assert isinstance(e, Binary)
    part = Buffer(f"{whole.name}.part", (whole.extent,), e.dtype, "local")

    def each(lanes: For, buffer: str, index: tuple[Int, ...], value: Expr) -> For:
        return replace(lanes, body=(Store((Write(buffer, index, value),)),))

    def held(lanes: For) -> Load:
        return Load(part.name, (var(lanes.name),), part.dtype)

    def kept(loop: For) -> tuple[Stmt, ...]:
        around, (store,) = perfect_nest((loop,))
        assert isinstance(store, Store)
        lanes, step = around[-1], store.writes[0].value
        assert isinstance(step, Binary)
        own = held(lanes)
        return nested(around[:-1], (each(lanes, part.name, own.index, replace(step, a=own)),))

    neutral = plain_combiner(e.op, e.dtype).identity[0]
    return (
        Alloc(part),
        each(whole, part.name, held(whole).index, neutral),
        *(s for loop in loops for s in kept(loop)),
        each(whole, w.buffer, w.index, replace(e, b=held(whole))),
    )


def lanes_of(body: tuple[Stmt, ...], target: Target) -> int:
    """How many lanes one vector register holds of the widest dtype that is computed with; but of
    float16 if most of the work is a sum of its products, of which the rest takes two registers.
    """
    widest, halves = 8, False
    has_halves = compute_bits(FLOAT16, target) == 16
    for s in statements(body):
        if isinstance(s, Store):
            for w in s.writes:
                widest = max(widest, _bits(w.value, target), compute_bits(w.value.dtype, target))
                halves = halves or (has_halves and widest == 32 and sums_halves(w.value))
    if halves:
        return target.vector.of(16)
    return target.vector.of(widest)


# Functions whose code is one long chain of dependent instructions.
_CHAINS = frozenset(
    {"exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "expm1", "pow", "log2", "log10"}
)


def lanes_at_once(body: tuple[Stmt, ...], target: Target) -> int:
    """How many lanes each operation of a vectorized loop is emitted for: one vector register's, or
    as many as hide the latency of a function's steps. A reduction needs registers for its sums, and
    gets half of these.
    """
    lanes = lanes_of(body, target)
    writes = [w for s in statements(body) if isinstance(s, Store) for w in s.writes]
    chains = {c.op for w in writes for c in _chains(w.value)}
    at_once = target.machine.function_vectors
    if at_once == 1 or not chains:
        return lanes
    bits = 64 if "pow" in chains else 32  # pow of float computes with double
    vectors = at_once // 2 if any(w.accumulates for w in writes) else at_once
    return max(lanes, vectors * min(lanes, target.vector.of(bits)))


def function_in(e: Expr) -> Unary | None:
    """The function of one value in an expression that contains no other."""
    found = set(_chains(e))
    only = found.pop() if len(found) == 1 else None
    return only if isinstance(only, Unary) else None


def _chains(e: Expr) -> list[Unary | Binary]:
    found = (x for x in preorder(e, children) if isinstance(x, Unary | Binary))
    return [x for x in found if x.op in _CHAINS]


def compute_bits(d: DType, target: Target) -> int:
    """Bits of one lane while values of this dtype are computed with: 1 for bool."""
    return 1 if d is BOOL else compute_dtype(d, target.features).bits


def _bits(e: Expr, target: Target) -> int:
    dtypes = {x.dtype for x in preorder(e, children) if not isinstance(x, IntValue | Const)}
    return max((compute_bits(d, target) for d in dtypes if d is not BOOL), default=8)
