"""C's fmod as branch-free vector code: the remainder has the sign of the first operand."""

from __future__ import annotations

import math

from tilesmith.codegen.llvm.builder import Builder, V
from tilesmith.codegen.llvm.vecmath_parts import fabs, fused, k

_BITS = 52  # bits of the quotient per division
_STEPS = {"float": 6, "double": 2}
# For doubles the quotient must be smaller than this, else the result is NaN; a target without fused
# multiply-add also needs both operands within 2^-900 and 2^900. Floats have no limit.
FMOD_RANGE = 2.0 ** (_BITS * _STEPS["double"])


def fmod(b: Builder, x: V, y: V) -> V:
    """A long division in doubles, 52 bits at a time. Every remainder is a double, so each step is
    exact: a quotient that was rounded up is one too large, which a negative remainder shows.
    """
    a, divisor = fabs(b, x), fabs(b, y)
    narrow = x.type.elem == "float"
    r, m = (b.cast("fpext", v, "double") if narrow else v for v in (a, divisor))
    infinity = k(b, m, math.inf)
    for n in reversed(range(_STEPS[x.type.elem])):
        step = b.op("fmul", m, k(b, m, 2.0 ** (_BITS * n))) if n else m
        if n and not narrow:  # so large a divisor needs only one step
            step = b.select(b.compare("olt", step, infinity), step, m)
        q = b.call("llvm.trunc", r.type, b.op("fdiv", r, step))
        if n == _STEPS["double"] - 1 and not narrow:
            q = b.select(b.compare("olt", q, k(b, q, 2.0**53)), q, k(b, q, math.nan))
        r = fused(b, q, b.fneg(step), r)
        r = b.select(b.compare("olt", r, k(b, r, 0.0)), b.op("fadd", r, step), r)
    if narrow:
        r = b.cast("fptrunc", r, "float")
    r = b.select(b.compare("olt", a, divisor), a, r)
    return b.call("llvm.copysign", x.type, r, x)
