"""Conversions between float16 and float32 in integer arithmetic, for processors without such an
instruction. LLVM would call a library function there, which the user's process may lack.
"""

from __future__ import annotations

from tilesmith.codegen.llvm.builder import Builder, V


def float_of(b: Builder, raw: V) -> V:
    """A half as the float of the same value."""
    i = raw.type.of("i32")
    bits = b.cast("zext", b.cast("bitcast", raw, "i16"), "i32")
    size = b.op("and", bits, b.const(i, 0x7FFF))
    sign = b.op("shl", b.op("xor", bits, size), b.const(i, 16))
    # Shifted to the position of a float's exponent and mantissa, the bits are the value / 2**112,
    # also for a denormal half.
    low = b.op("shl", size, b.const(i, 13))
    small = b.cast("bitcast", low, "float")
    scaled = b.op("fmul", small, b.const(small.type, 2.0**112))
    number = b.cast("bitcast", scaled, "i32")
    special = b.op("or", low, b.const(i, 0x7F800000))  # infinity or NaN
    kept = b.select(b.compare("uge", size, b.const(i, 0x7C00)), special, number)
    return b.cast("bitcast", b.op("or", kept, sign), "float")


def half_of(b: Builder, v: V) -> V:
    """A float rounded to the nearest half, ties to even."""
    i = v.type.of("i32")
    bits = b.cast("bitcast", v, "i32")
    size = b.op("and", bits, b.const(i, 0x7FFFFFFF))
    sign = b.op("lshr", b.op("xor", bits, size), b.const(i, 16))
    # Normal halves: the exponent changes by 112, and 13 bits of the mantissa are rounded off.
    odd = b.op("and", b.op("lshr", size, b.const(i, 13)), b.const(i, 1))
    up = b.op("add", b.op("add", size, b.const(i, 0xFFF - (112 << 23))), odd)
    normal = b.op("lshr", up, b.const(i, 13))
    # Denormal halves: adding 0.5 aligns the mantissa, so that the addition rounds.
    beside = b.op("fadd", b.cast("bitcast", size, "float"), b.const(v.type, 0.5))
    tiny = b.op("sub", b.cast("bitcast", beside, "i32"), b.const(i, 0x3F000000))
    number = b.select(b.compare("ult", size, b.const(i, 113 << 23)), tiny, normal)
    nan = b.compare("ugt", size, b.const(i, 0x7F800000))
    special = b.select(nan, b.const(i, 0x7E00), b.const(i, 0x7C00))
    kept = b.select(b.compare("uge", size, b.const(i, 0x47800000)), special, number)
    return b.cast("bitcast", b.cast("trunc", b.op("or", kept, sign), "i16"), "half")
