"""Powers as branch-free vector code with the results of C's pow: float by way of double, double by
way of pairs of doubles.
"""

from __future__ import annotations

import math

from tilesmith.codegen.llvm.builder import Builder, V
from tilesmith.codegen.llvm.vecmath_parts import (
    FORMATS,
    at_least,
    at_most,
    bits,
    exp2_bounded,
    fabs,
    fused,
    horner,
    k,
    power_of_two,
    split,
    unbits,
)

# log2(1 + f) / f for f in [-1/4, 1/2); error 2^-38.4
_LOG2 = (
    1.4426950408885706,
    -0.7213475205957057,
    0.4808983474259281,
    -0.36067372134681547,
    0.28853888851868315,
    -0.24045190384214452,
    0.20610981481356722,
    -0.1802658119923295,
    0.15992475821559038,
    -0.14474718428299246,
    0.13658737933009507,
    -0.12676521444513947,
    0.09055510348416315,
    -0.03229724222659864,
)
# 2^r for |r| <= 1/2; error 2^-29
_EXP2 = (
    1.0000000005547018,
    0.693147205769322,
    0.24022646885877652,
    0.05550328708881182,
    0.009618489295434506,
    0.0013399958539379645,
    0.00015345774633928643,
)
# (atanh(s) / s - 1 - s^2/3) / s^4 in s^2 for |s| <= 1/5; error 2^-68.5 of atanh
_ATANH = (
    0.19999999999999982,
    0.14285714285742407,
    0.11111111102635429,
    0.09090910213382791,
    0.0769222771907969,
    0.06669953071098922,
    0.05804564343925769,
    0.06238699694752274,
)
_THIRD = (float.fromhex("0x1.5555555555555p-2"), float.fromhex("0x1.5555555555555p-56"))
_TWO_LOG2E = (float.fromhex("0x1.71547652b82fep+1"), float.fromhex("0x1.777d0ffda0d24p-55"))


def power(b: Builder, x: V, y: V) -> V:
    """C's pow: |x|^y from log2|x|, then the sign and the cases that have no logarithm."""
    a = fabs(b, x)
    # Whatever is larger acts like an infinity, unless log2|x| is 0: then 0 times finite is right.
    limit = 2.0**100 if x.type.elem == "float" else 2.0**66
    capped = at_least(b, at_most(b, y, limit), -limit)
    r = _power32(b, a, capped) if x.type.elem == "float" else _power64(b, a, capped)
    zero, one, half = (k(b, x, v) for v in (0.0, 1.0, 0.5))
    whole = b.compare("oeq", b.call("llvm.floor", y.type, y), y)
    by_two = b.op("fmul", y, half)
    uneven = b.compare("one", b.call("llvm.floor", y.type, by_two), by_two)
    odd = b.op("and", whole, uneven)
    i = bits(b, x)
    sign = b.op("and", i, k(b, i, -1 << (i.type.bits - 1)))
    sign = b.select(odd, sign, k(b, i, 0))
    r = unbits(b, b.op("or", bits(b, r), sign), x.type.elem)
    # a finite negative base has no real power that is not whole; -inf and -0 do
    negative = b.op("and", b.compare("olt", x, zero), b.compare("ogt", x, k(b, x, -math.inf)))
    broken = b.op("and", negative, b.compare("une", b.call("llvm.floor", y.type, y), y))
    r = b.select(broken, k(b, x, math.nan), r)
    unit = b.op("or", b.compare("oeq", x, one), b.compare("oeq", y, zero))
    return b.select(unit, one, r)


def _log2_specials(b: Builder, a: V, log2: V) -> V:
    """-inf for 0; inf and NaN for themselves."""
    log2 = b.select(b.compare("olt", a, k(b, a, math.inf)), log2, a)
    return b.select(b.compare("oeq", a, k(b, a, 0.0)), k(b, a, -math.inf), log2)


def log2_of(b: Builder, x: V, factor: tuple[float, float] = (1.0, 0.0)) -> V:
    """log2(x), times a factor that is a sum of two doubles: rounded once from a wider number, so
    that a logarithm that is whole comes out as such.
    """
    if x.type.elem == "float":
        y = _log2_wide(b, x)
        y = b.cast("fptrunc", b.op("fmul", y, k(b, y, factor[0])), "float")
    else:
        high, low = _log2_pair(b, x)
        if factor != (1.0, 0.0):
            first, second = (k(b, x, v) for v in factor)
            low = b.fma(high, second, b.op("fmul", low, first))
            high, rest = _product(b, high, first)
            low = b.op("fadd", low, rest)
        y = b.op("fadd", high, low)
    # At 0 and infinity the low part is NaN. -0 is a zero.
    infinity = k(b, x, math.inf)
    y = b.select(b.compare("olt", x, infinity), y, x)
    y = b.select(b.compare("oeq", x, k(b, x, 0.0)), b.fneg(infinity), y)
    return b.select(b.compare("olt", x, k(b, x, 0.0)), k(b, x, math.nan), y)


def _log2_wide(b: Builder, a: V) -> V:
    """log2 of a float as a double, to 2^-38 of it."""
    e, m, special = split(b, a)
    if not special:
        e = _log2_specials(b, a, e)
    f = b.cast("fpext", b.op("fsub", m, k(b, m, 1.0)), "double")
    return b.fma(f, horner(b, f, _LOG2), b.cast("fpext", e, "double"))


def _power32(b: Builder, a: V, y: V) -> V:
    """In doubles: 2^-38 of a logarithm below 150 leaves 2^-30 of the result."""
    log2 = _log2_wide(b, a)
    t = b.op("fmul", b.cast("fpext", y, "double"), log2)
    t = at_least(b, at_most(b, t, 200.0), -200.0)
    wide = FORMATS["double"]
    magic = k(b, t, wide.magic + wide.bias)
    shifted = b.op("fadd", t, magic)
    p = horner(b, b.op("fsub", t, b.op("fsub", shifted, magic)), _EXP2)
    return b.cast("fptrunc", b.op("fmul", p, power_of_two(b, shifted)), "float")


def _product(b: Builder, x: V, y: V) -> tuple[V, V]:
    """x y exactly, as a sum of two."""
    p = b.op("fmul", x, y)
    return p, fused(b, x, y, b.fneg(p))


def _sum(b: Builder, x: V, y: V) -> tuple[V, V]:
    """x + y exactly, as a sum of two, for |x| >= |y| or x = 0 (Dekker)."""
    s = b.op("fadd", x, y)
    return s, b.op("fsub", y, b.op("fsub", s, x))


def _log2_pair(b: Builder, a: V) -> tuple[V, V]:
    """log2(a) to about 2^-63 of itself: a double leaves 2^-42 of a power near the end of the range.

    log2(m) = 2/ln2 (s + s^3/3 + ...) with s = (m - 1) / (m + 1); s, s^2/3 and the sum are pairs.
    """
    e, m, special = split(b, a)
    if not special:
        e = _log2_specials(b, a, e)
    one = k(b, a, 1.0)
    f = b.op("fsub", m, one)
    d, d_low = _sum(b, k(b, a, 2.0), f)
    inverse = b.op("fdiv", one, d)
    s = b.op("fmul", f, inverse)
    minus_s = b.fneg(s)
    s_low = b.op("fmul", b.fma(minus_s, d_low, fused(b, minus_s, d, f)), inverse)
    z, z_low = _product(b, s, s)
    z_low = b.fma(b.op("fadd", s, s), s_low, z_low)
    third = k(b, a, _THIRD[0])
    u, u_low = _product(b, z, third)
    u_low = b.fma(z, k(b, a, _THIRD[1]), b.fma(z_low, third, u_low))
    u, rounded = _sum(b, u, b.op("fmul", b.op("fmul", z, z), horner(b, z, _ATANH)))
    u_low = b.op("fadd", u_low, rounded)
    # s (1 + u) as a pair, and that times 2/ln2
    v, v_low = _product(b, s, u)
    v_low = b.fma(s_low, u, b.fma(s, u_low, v_low))
    h, h_low = _sum(b, s, v)
    h_low = b.op("fadd", h_low, b.op("fadd", v_low, s_low))
    factor = k(b, a, _TWO_LOG2E[0])
    g, g_low = _product(b, h, factor)
    g_low = b.fma(h, k(b, a, _TWO_LOG2E[1]), b.fma(h_low, factor, g_low))
    top, low = _sum(b, e, g)
    return top, b.op("fadd", low, g_low)


def _power64(b: Builder, a: V, y: V) -> V:
    log2, log2_low = _log2_pair(b, a)
    t, t_low = _product(b, y, log2)
    t_low = b.fma(y, log2_low, t_low)
    # out of range, and at infinities, the low part is meaningless
    inside = b.compare("olt", fabs(b, t), k(b, t, 1100.0))
    t_low = b.select(inside, t_low, k(b, t, 0.0))
    t = at_least(b, at_most(b, t, 1100.0), -1100.0)
    return exp2_bounded(b, t, t_low)
