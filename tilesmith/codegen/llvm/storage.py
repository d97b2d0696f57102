"""Conversions between an element's type in memory and the type in which it is computed, such as
bfloat16 in memory and float in registers.
"""

from __future__ import annotations

from tilesmith.base.dtype import DType
from tilesmith.codegen.expressions import compute_dtype
from tilesmith.codegen.llvm import float16
from tilesmith.codegen.llvm.builder import Builder, Type, V, storage_type


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
        return b.cast("fpext", raw, "float") if b.halves else float16.float_of(b, raw)
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
        return b.cast("fptrunc", v, "half") if b.halves else float16.half_of(b, v)
    return v
