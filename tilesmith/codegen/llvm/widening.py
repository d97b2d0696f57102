"""Sums of products of float16 in float32 by instructions that widen the factors (FMLAL and FMLAL2
of FEAT_FHM). They round once, as conversions and a fused multiply-add do: the bits are the same.
"""

from __future__ import annotations

from tilesmith.base.dtype import FLOAT16, FLOAT32
from tilesmith.codegen.llvm.builder import Builder, V
from tilesmith.expr.nodes import Binary, Cast, Expr

_LANES = 8  # of both factors in a register
LEAST_LANES = _LANES // 2  # of a result


def widened_halves(b: Builder, e: Expr) -> tuple[Expr, Expr] | None:
    """The factors of a product of float32 that are widened from float16, where the target has these
    instructions.
    """
    have = b.machine.widening
    if have is None or not have.features <= b.features or not b.halves:
        return None
    if not (isinstance(e, Binary) and e.op == "mul" and e.dtype is FLOAT32):
        return None
    x, y = e.a, e.b
    if not (isinstance(x, Cast) and isinstance(y, Cast)):
        return None
    return (x.x, y.x) if x.x.dtype is y.x.dtype is FLOAT16 else None


def widening_fma(b: Builder, x: V, y: V, z: V) -> V:
    """x y + z. The floats `z` are a multiple of LEAST_LANES; a half that is alone is repeated."""
    have = b.machine.widening
    assert have is not None
    lanes, done = z.type.lanes, []
    alone = {v.name: b.splat(v, _LANES) for v in (x, y) if v.type.lanes == 1}
    for start in range(0, lanes, _LANES):
        count = min(_LANES, lanes - start)
        halves = [alone.get(v.name) or _eight(b, v, start, count) for v in (x, y)]
        for call, at in ((have.low, start), (have.high, start + LEAST_LANES)):
            if at < lanes:
                total = z if lanes == LEAST_LANES else b.part(z, at, LEAST_LANES)
                done.append(b.target_call(call, total.type, total, *halves))
    return _behind_each_other(b, done)


def _eight(b: Builder, v: V, start: int, count: int) -> V:
    """A register with some lanes of a vector; what is behind them is anything."""
    if v.type.lanes == _LANES:
        return v
    order = ", ".join(f"i32 {start + k}" if k < count else "i32 poison" for k in range(_LANES))
    t = v.type.of("half")._replace(lanes=_LANES)
    return b.value(t, f"shufflevector {v}, {v.type} poison, <{_LANES} x i32> <{order}>")


def _behind_each_other(b: Builder, parts: list[V]) -> V:
    first, *others = parts
    for v in others:
        lanes, more = first.type.lanes, v.type.lanes
        if more < lanes:  # both operands of a shuffle have the same length
            fill = ", ".join(f"i32 {k}" if k < more else "i32 poison" for k in range(lanes))
            v = b.value(first.type, f"shufflevector {v}, {v.type} poison, <{lanes} x i32> <{fill}>")
        order = ", ".join(f"i32 {k}" for k in range(lanes + more))
        t = first.type._replace(lanes=lanes + more)
        first = b.value(
            t, f"shufflevector {first}, {first.type} {v.name}, <{lanes + more} x i32> <{order}>"
        )
    return first
