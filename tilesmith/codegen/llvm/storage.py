"""Conversions between an element's type in memory and the type in which it is computed, such as
bfloat16 in memory and float in registers.
"""

from __future__ import annotations

from tilesmith.base.dtype import DType
from tilesmith.codegen.expressions import compute_dtype
from tilesmith.codegen.llvm.builder import Builder, Type, V, storage_type


# Conversions between float16 and float32 in integer arithmetic, for processors without such an
# instruction. LLVM would call a library function there, which the user's process may lack.
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


def compute_type(b: Builder, d: DType, lanes: int = 1) -> Type:
    """The LLVM type in which a value is computed: i1 for bool, else that of `compute_dtype`."""
    if d.kind == "b":
        return Type("i1", lanes)
    return storage_type(compute_dtype(d, b.features), lanes)


def widen(b: Builder, raw: V, d: DType) -> V:
    """A value as loaded from memory, converted to the type it is computed in."""
    t = raw.type
    if d.kind == "b":
        return b.compare("ne", raw, b.const(t, 0))
    if d.name == "bfloat16":
        wide = b.op("shl", b.cast("zext", raw, "i32"), b.const(t.of("i32"), 16))
        return b.cast("bitcast", wide, "float")
    if d.name == "float16" and compute_type(b, d).elem == "float":
        return b.cast("fpext", raw, "float") if b.halves else float_of(b, raw)
    return raw


def narrow(b: Builder, v: V, d: DType) -> V:
    """A computed value, converted to its type in memory. Rounds to nearest, ties to even."""
    t = v.type
    if d.kind == "b":
        return b.cast("zext", v, "i8")
    if d.name == "bfloat16":  # rounding could turn a NaN into infinity
        i = t.of("i32")
        bits = b.cast("bitcast", v, "i32")
        odd = b.op("and", b.op("lshr", bits, b.const(i, 16)), b.const(i, 1))
        up = b.op("add", b.op("add", bits, b.const(i, 0x7FFF)), odd)
        nan = b.op("or", bits, b.const(i, 0x400000))
        kept = b.select(b.compare("uno", v, v), nan, up)
        return b.cast("trunc", b.op("lshr", kept, b.const(i, 16)), "i16")
    if d.name == "float16" and t.elem == "float":
        return b.cast("fptrunc", v, "half") if b.halves else half_of(b, v)
    return v
