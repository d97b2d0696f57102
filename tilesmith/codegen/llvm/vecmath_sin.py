"""Sine and cosine of any number of radians. A function of its own in the module, because numbers
beyond RANGE take a branch: they are reduced with as many digits of 1/pi as their exponent needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

import numpy as np

from tilesmith.codegen.llvm.builder import I32, I64, Builder, Type, V
from tilesmith.codegen.llvm.vecmath_parts import (
    FORMATS,
    at_least,
    at_most,
    bits,
    called,
    fabs,
    format_of,
    fused,
    horner,
    is_any,
    k,
    rounded,
    unbits,
)

# Up to here three parts of pi are enough.
RANGE = {"float": 1.3e5, "double": 1e9}

# pi as a sum of three numbers of the format
_PI = {
    "float": ("0x1.921fb6p+1", "-0x1.777a5cp-24", "-0x1.ee59dap-49"),
    "double": ("0x1.921fb54442d18p+1", "0x1.1a62633145c07p-53", "-0x1.f1976b7ed8fbcp-109"),
}
# (sin(r) / r - 1) / r^2 in r^2 for |r| <= 1.01 pi/2; errors 2^-27.0 and 2^-61.2 of the sine
_SIN = {
    "float": (
        -0.16666658222675323,
        0.00833303015679121,
        -0.0001980684173759073,
        2.5994659154093824e-06,
    ),
    "double": (
        -0.16666666666666666,
        0.0083333333333332,
        -0.00019841269841208557,
        2.7557319210738903e-06,
        -2.505210681796764e-08,
        1.6058936258387272e-10,
        -7.64288770467081e-13,
        2.7199626182788136e-15,
    ),
}


# The digits of 1/pi are in pieces of 53 bits. For float, 212 bits reach 60 bits beyond the point of
# the largest number; for double, 1166 bits reach 140 beyond it. Doubles and pieces are scaled
# against each other, so that neither the smallest piece nor the largest product leaves the range.
_PIECES = {"float": 4, "double": 22}
_SCALE = {"float": 0, "double": 600}  # powers of two


def sin(b: Builder, x: V) -> V:
    return called(b, "sin", partial(_body, _sin_near, _sin_of_turns), x)


def cos(b: Builder, x: V) -> V:
    return called(b, "cos", partial(_body, _cos_near, _cos_of_turns), x)


def _body(near: Callable[..., V], of_turns: Callable[..., V], b: Builder, x: V) -> None:
    a = fabs(b, x)
    y = near(b, x, a)
    far = b.compare("ogt", a, k(b, a, RANGE[x.type.elem]))
    b.emit(f"  br {_any(b, far, a)}, label %far, label %near")
    b.emit("near:")
    b.emit(f"  ret {y}")
    b.emit("far:")
    turns = _half_turns(b, a)
    y = b.select(far, of_turns(b, x, *turns), y)
    b.emit(f"  ret {y}")


def _any(b: Builder, far: V, a: V) -> V:
    """Whether a lane is far. Neon has a maximum over lanes, of 32 bits, but no test of a mask."""
    if a.type.lanes == 1 or b.machine.tests_masks or a.type.elem != "float":
        return is_any(b, far)
    most = b.call("llvm.vector.reduce.umax", I32, bits(b, a))
    limit = int(np.float32(RANGE["float"]).view(np.uint32))
    return b.compare("ugt", most, b.const(I32, limit))


def _sin_near(b: Builder, x: V, a: V) -> V:
    """On |x|, so that sin(-x) is -sin(x) and the sign of 0 is kept."""
    t, n = rounded(b, a, 1.0 / math.pi, format_of(x).magic)
    return _signed(b, _sin_turned(b, a, n, t), x)


def _cos_near(b: Builder, x: V, a: V) -> V:
    """cos(x) = (-1)^n sin(x - (n - 1/2) pi), n the whole number next to x/pi + 1/2."""
    magic = k(b, x, format_of(x).magic)
    t = b.op("fadd", b.fma(a, k(b, x, 1.0 / math.pi), k(b, x, 0.5)), magic)
    n = b.op("fsub", b.op("fsub", t, magic), k(b, x, 0.5))
    return _sin_turned(b, a, n, t)


def _sin_turned(b: Builder, x: V, half_turns: V, t: V) -> V:
    """sin(x - pi half_turns), negated when t's lowest bit is set."""
    r = x
    for part in _PI[x.type.elem]:
        r = fused(b, half_turns, k(b, x, -float.fromhex(part)), r)
    i = bits(b, t)
    flip = b.op("shl", i, k(b, i, i.type.bits - 1))
    return unbits(b, b.op("xor", bits(b, _polynomial(b, r)), flip), x.type.elem)


def _polynomial(b: Builder, r: V) -> V:
    """sin(r) for |r| up to pi/2."""
    y = b.op("fmul", r, r)
    s = b.fma(b.op("fmul", r, y), horner(b, y, _SIN[r.type.elem]), r)
    return at_least(b, at_most(b, s, 1.0), -1.0)


def _signed(b: Builder, s: V, x: V) -> V:
    """s, negated if x is negative."""
    i = bits(b, x)
    sign = b.op("and", i, k(b, i, -1 << (i.type.bits - 1)))
    return unbits(b, b.op("xor", bits(b, s), sign), x.type.elem)


# numbers of any size: Payne and Hanek's reduction
def _sin_of_turns(b: Builder, x: V, whole: V, high: V, low: V) -> V:
    return _signed(b, _sin_of_part(b, x, whole, high, low), x)


def _cos_of_turns(b: Builder, x: V, whole: V, high: V, low: V) -> V:
    """cos(pi h) = sin(pi (1/2 - |h|)), whose difference is exact where it is small."""
    zero, half = k(b, high, 0.0), k(b, high, 0.5)
    low = b.select(b.compare("olt", high, zero), low, b.fneg(low))
    return _sin_of_part(b, x, whole, b.op("fsub", half, fabs(b, high)), low)


def _sin_of_part(b: Builder, x: V, whole: V, high: V, low: V) -> V:
    """(-1)^whole sin(pi (high + low)), in the type of x."""
    pi, rest, _ = (k(b, high, float.fromhex(part)) for part in _PI["double"])
    r = b.fma(high, pi, b.fma(high, rest, b.op("fmul", low, pi)))
    if x.type.elem == "float":
        r = b.cast("fptrunc", r, "float")
    s = _polynomial(b, r)
    half = b.op("fmul", whole, k(b, whole, 0.5))
    return b.select(b.compare("une", half, _nearest(b, half)), b.fneg(s), s)


def _half_turns(b: Builder, a: V) -> tuple[V, V, V]:
    """a / pi as doubles (whole, high, low): whole + high + low is it but for an even number, with
    |high| <= 1/2. Emits a loop over the pieces of 1/pi, largest first.

    A piece times a is the sum of two doubles, of which only the remainders by 2 are kept: most are
    0, because the product is a large multiple of 2, or because it is tiny. After each sum, high is
    next to 0 again, so it keeps its bits where a is close to a multiple of pi.
    """
    elem = a.type.elem
    if elem == "float":
        a = b.cast("fpext", a, "double")
    else:
        a = b.op("fmul", a, k(b, a, 2.0 ** -_SCALE[elem]))
    t, zero = a.type, k(b, a, 0.0)
    count = _PIECES[elem]
    table = b.table(Type("double"), _inverse_pi(count, _SCALE[elem]))
    nan_if_infinite = b.op("fsub", a, a)
    b.emit("  br label %piece")
    b.emit("piece:")
    at = V("%at", I64)
    carried = [V(f"%carried.{n}", t) for n in range(3)]
    start = (zero, zero, nan_if_infinite)
    b.emit(f"  {at.name} = phi i64 [0, %far], [%at.next, %piece]")
    where = len(b.lines)
    p = b.value(Type("ptr"), f"getelementptr double, ptr {table}, {at}")
    piece = b.splat(b.value(Type("double"), f"load double, {p}, align 8"), t.lanes)
    product = b.op("fmul", a, piece)
    whole, high, low = carried
    for part in (product, fused(b, a, piece, b.fneg(product))):
        even = _nearest(b, b.op("fmul", part, k(b, part, 0.5)))
        rest = b.fma(even, k(b, part, -2.0), part)
        # from 2^53 on all numbers are even
        small = b.compare("olt", fabs(b, part), k(b, part, 2.0**53))
        rest = b.select(small, rest, zero)
        total = b.op("fadd", high, rest)
        back = b.op("fsub", total, high)  # and the rounding error of the sum (Knuth)
        error = b.op(
            "fadd", b.op("fsub", high, b.op("fsub", total, back)), b.op("fsub", rest, back)
        )
        low = b.op("fadd", low, error)
        n = _nearest(b, total)
        high, whole = b.op("fsub", total, n), b.op("fadd", whole, n)
    b.lines[where:where] = [
        f"  {c.name} = phi {t} [{first.name}, %far], [{last.name}, %piece]"
        for c, first, last in zip(carried, start, (whole, high, low), strict=True)
    ]
    b.emit(f"  %at.next = add nuw nsw i64 {at.name}, 1")
    b.emit(f"  %at.more = icmp ult i64 %at.next, {count}")
    b.emit("  br i1 %at.more, label %piece, label %reduced")
    b.emit("reduced:")
    total = b.op("fadd", high, low)
    return whole, total, b.op("fadd", b.op("fsub", high, total), low)


def _nearest(b: Builder, x: V) -> V:
    """The nearest whole number of doubles below 2^51, and a near one up to 2^53."""
    magic = k(b, x, FORMATS["double"].magic)
    return b.op("fsub", b.op("fadd", x, magic), magic)


@cache
def _inverse_pi(count: int, scale: int) -> tuple[float, ...]:
    """2^scale / pi as a sum of numbers, each of which has the next 53 bits, by Machin's formula."""
    wide = 53 * count + 64
    one = 1 << wide

    def arctangent(n: int) -> int:
        term = total = one // n
        k = 1
        while term:
            term //= -n * n
            k += 2
            total += term // k
        return total

    pi = 4 * (4 * arctangent(5) - arctangent(239))
    digits = (one << 53 * count) // pi  # 1/pi times 2^(53 count)
    return tuple(
        math.ldexp(digits >> 53 * (count - 1 - n) & (1 << 53) - 1, scale - 53 * (n + 1))
        for n in range(count)
    )


# The inverse tangent as branch-free vector code, in radians.
# (atan(t) / t - 1) / t^2 in t^2 for |t| <= tan(pi/8); errors 2^-30.4 and 2^-59.4 of the angle
_ATAN = {
    "float": (
        -0.33333316445350647,
        0.19998526573181152,
        -0.1424434632062912,
        0.10598751902580261,
        -0.06088821962475777,
    ),
    "double": (
        -0.3333333333333319,
        0.1999999999995218,
        -0.14285714280053805,
        0.11111110776290256,
        -0.0909089755088031,
        0.07692056524567142,
        -0.06663061969625751,
        0.05847582063108903,
        -0.05037915121263693,
        0.03802911596794863,
        -0.017868234787676067,
    ),
}
# pi/2 as a sum of two numbers of the format
_HALF_PI = {
    "float": ("0x1.921fb6p+0", "-0x1.777a5cp-25"),
    "double": ("0x1.921fb54442d18p+0", "0x1.1a62633145c07p-54"),
}


def atan(b: Builder, x: V) -> V:
    """By |x| in three ranges: atan(a), pi/4 + atan((a - 1) / (a + 1)), pi/2 + atan(-1 / a). In
    each, the argument is within tan(pi/8), and takes a single division.
    """
    a = fabs(b, x)
    zero, one = k(b, x, 0.0), k(b, x, 1.0)
    middle = b.compare("ogt", a, k(b, x, math.tan(math.pi / 8)))
    far = b.compare("ogt", a, k(b, x, math.tan(3 * math.pi / 8)))

    def by_range(low: V, high: V, highest: V) -> V:
        return b.select(far, highest, b.select(middle, high, low))

    top = by_range(a, b.op("fsub", a, one), k(b, x, -1.0))
    bottom = by_range(one, b.op("fadd", a, one), a)
    t = b.op("fdiv", top, bottom)
    z = b.op("fmul", t, t)
    angle = b.fma(b.op("fmul", t, z), horner(b, z, _ATAN[x.type.elem]), t)
    for part in reversed(_HALF_PI[x.type.elem]):
        right = float.fromhex(part)
        angle = b.op("fadd", angle, by_range(zero, k(b, x, right / 2), k(b, x, right)))
    return b.call("llvm.copysign", x.type, angle, x)
