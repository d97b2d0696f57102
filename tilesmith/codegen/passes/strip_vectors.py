"""Strip-mines a vectorized loop that is longer than a few vector registers: a serial loop over
strips, a vectorized loop inside of each, and a vectorized loop for the remainder. A reduction over
such a loop keeps one partial result per lane of the strip and joins the lanes once, after the loop.

CPU policy: a strip is a fixed number of the target's vector registers.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.dtype import BOOL, DType
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
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, Buffer, For, Stmt, Store, Write, rewrite, statements

_VECTORS = 8  # a vectorized loop of at most so many registers is left as it is


def strip_vectors(func: Function, target: Target) -> Function:
    def go(s: Stmt) -> tuple[Stmt, ...]:
        if not (isinstance(s, For) and s.kind == "vectorize"):
            return (s,)
        n = s.trips
        strip = max(lanes_of(s.body, target) * _VECTORS // 2, lanes_at_once(s.body, target))
        if n <= 2 * strip:
            return (s,)
        joined = _joined(s)
        outer, inner = f"{s.name}.strip", f"{s.name}.lane"
        whole = substitute_body(s.body, {s.name: var(outer) * strip + var(inner)})
        loop = For(outer, of(n // strip), (replace(s, name=inner, extent=of(strip), body=whole),))
        loops: tuple[Stmt, ...] = (loop,) if joined is None else _kept_in_lanes(loop, joined)
        rest = n % strip
        if not rest:
            return loops
        tail = substitute_body(s.body, {s.name: var(s.name) + (n - rest)})
        return (*loops, replace(s, extent=of(rest), body=tail))

    return replace(func, body=rewrite(func.body, go))


def _joined(s: For) -> Write | None:
    """The write to a single element that all iterations reduce into, if the loop does only that."""
    if len(s.body) != 1 or not isinstance(t := s.body[0], Store) or len(t.writes) != 1:
        return None
    (w,) = t.writes
    if t.intrinsic is not None or not w.accumulates:
        return None
    return w if not any(s.name in p.names for p in w.index) else None


def _kept_in_lanes(loop: For, w: Write) -> tuple[Stmt, ...]:
    """A loop over strips that reduces into `w`, by way of one partial result for each lane.

    for s in 16:                            for l in 64: part[l] = 0    # all three vectorized
      for l in 64:  # vectorize      ->     for s in 16:
        y[] += x[64*s + l]                    for l in 64: part[l] += x[64*s + l]
                                            for l in 64: y[] += part[l]
    """
    (lanes,) = loop.body
    assert isinstance(lanes, For)
    (store,) = lanes.body
    assert isinstance(store, Store)
    e = store.writes[0].value
    assert isinstance(e, Binary)
    part = Buffer(f"{lanes.name}.part", (lanes.extent,), e.dtype, "local")
    at = (var(lanes.name),)
    held = Load(part.name, at, e.dtype)

    def each(buffer: str, index: tuple[Int, ...], value: Expr) -> For:
        return replace(lanes, body=(Store((Write(buffer, index, value),)),))

    neutral = plain_combiner(e.op, e.dtype).identity[0]
    step = each(part.name, at, replace(e, a=held))
    return (
        Alloc(part),
        each(part.name, at, neutral),
        replace(loop, body=(step,)),
        each(w.buffer, w.index, replace(e, b=held)),
    )


def lanes_of(body: tuple[Stmt, ...], target: Target) -> int:
    """How many lanes one vector register holds of the widest dtype that is computed with."""
    widest = 8
    for s in statements(body):
        if isinstance(s, Store):
            for w in s.writes:
                widest = max(widest, _bits(w.value, target), compute_bits(w.value.dtype, target))
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
    return max(
        8 if isinstance(x, IntValue | Const) or x.dtype is BOOL else compute_bits(x.dtype, target)
        for x in preorder(e, children)
    )
