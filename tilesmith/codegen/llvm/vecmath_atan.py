"""The inverse tangent as branch-free vector code, in radians."""

from __future__ import annotations

import math

from tilesmith.codegen.llvm.builder import Builder, V
from tilesmith.codegen.llvm.vecmath_parts import fabs, horner, k

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
