"""Operations on values with equal numbers of lanes, and conversions between an element's type in
memory and the type in which it is computed, such as bfloat16 in memory and float in registers.
expr/semantics.py defines what each operation means (overflow, division by zero, NaN).
"""

from __future__ import annotations

import re

from tilesmith.base.dtype import BFLOAT16, BOOL, FLOAT32, INT32, DType
from tilesmith.base.errors import BuildError
from tilesmith.codegen.expressions import compute_dtype
from tilesmith.codegen.llvm import vecmath
from tilesmith.codegen.llvm.builder import Builder, Type, V, is_nan, storage_type
from tilesmith.expr.nodes import COMPARISONS


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


def unary(b: Builder, op: str, x: V, d: DType) -> V:
    match op:
        case "neg":
            return b.fneg(x) if x.type.is_float else b.op("sub", b.const(x.type, 0), x)
        case "not":
            return b.op("xor", x, b.const(x.type, True))
        case "bitnot":
            return b.op("xor", x, b.const(x.type, -1))
        case "abs":
            if x.type.is_float:
                return b.call("llvm.fabs", x.type, x)
            if d.kind == "u":
                return x
            return b.select(
                b.compare("slt", x, b.const(x.type, 0)), b.op("sub", b.const(x.type, 0), x), x
            )
    if x.type.elem == "half":  # the polynomials are for float and double
        wide = vecmath.emit(b, op, b.cast("fpext", x, "float"))
        return b.cast("fptrunc", wide, "half")
    return vecmath.emit(b, op, x)


def binary(b: Builder, op: str, x: V, y: V, d: DType) -> V:
    if op in COMPARISONS:
        if d.is_float:
            return b.compare({"ne": "une"}.get(op, f"o{op}"), x, y)
        sign = "" if op in ("eq", "ne") else "s" if d.kind == "i" else "u"
        return b.compare(f"{sign}{op}", x, y)
    match op:
        case "and" | "or":
            return b.op(op, x, y)
        case "max" | "min":
            return _extreme(b, op, x, y, d)
        case "bitand" | "bitor" | "bitxor":
            return b.op(op.removeprefix("bit"), x, y)
        case "shl" | "shr":
            return _shift(b, op, x, y, signed=d.kind == "i")
    if d.is_float:
        match op:
            case "add" | "sub" | "mul" | "div":
                return b.op(f"f{op}", x, y)
            case "floordiv":
                return unary(b, "floor", b.op("fdiv", x, y), d)
            case "mod":
                whole = unary(b, "floor", b.op("fdiv", x, y), d)
                return b.op("fsub", x, b.op("fmul", whole, y))
            case "pow" | "fmod":
                if x.type.elem == "half":
                    wide = (b.cast("fpext", v, "float") for v in (x, y))
                    return b.cast("fptrunc", vecmath.emit(b, op, *wide), "half")
                return vecmath.emit(b, op, x, y)
    match op:
        case "add" | "sub" | "mul":
            return b.op(op, x, y)
        case "floordiv":
            return floordiv(b, x, y, signed=d.kind == "i")
        case "mod":
            return _mod(b, x, y, signed=d.kind == "i")
        case "truncdiv" | "fmod":
            return _towards_zero(b, op, x, y, signed=d.kind == "i")
    raise BuildError(f"{op} of {d} has no code")


def _extreme(b: Builder, op: str, x: V, y: V, d: DType) -> V:
    if not d.is_float:
        if d is BOOL:
            return b.op("or" if op == "max" else "and", x, y)
        sign = "s" if d.kind == "i" else "u"
        return b.select(b.compare(f"{sign}{'gt' if op == 'max' else 'lt'}", x, y), x, y)
    if b.machine.propagates_nan:
        return b.call("llvm.maximum" if op == "max" else "llvm.minimum", x.type, x, y)
    # An x86 maximum returns its second operand if either is NaN. A constant comes first, as in
    # `limited_by_number`. Otherwise x comes second: x is the accumulator, and the test for a NaN in
    # y does not lengthen the chain of dependences through it.
    if y.name[0] != "%":
        x, y = y, x
    test = "ogt" if op == "max" else "olt"
    if x.name[0] != "%":
        # If the constant itself is NaN, so is the result.
        return x if is_nan(x) else b.select(b.compare(test, x, y), x, y)
    picked = b.select(b.compare(test, y, x), y, x)
    return b.select(b.compare("ord", y, y), picked, y)


def limited_by_number(b: Builder, op: str, x: V, limit: V) -> V:
    """The larger or the smaller of x and a limit that is never NaN; a NaN in x propagates. An x86
    maximum returns its second operand if either is NaN, so the limit comes first.
    """
    return b.select(b.compare("ogt" if op == "max" else "olt", limit, x), limit, x)


def extreme_of_numbers(b: Builder, op: str, x: V, y: V, d: DType) -> V:
    """The larger or the smaller, if neither is NaN: one x86 instruction."""
    return b.select(b.compare("ogt" if op == "max" else "olt", x, y), x, y)


def _safe_divisor(b: Builder, x: V, y: V, signed: bool) -> tuple[V, V | None]:
    """A divisor that never traps, and a flag where the original was zero."""
    t = y.type
    numbers = constants(y)
    if numbers and not numbers & {0, -1}:
        return y, None
    zero = b.compare("eq", y, b.const(t, 0))
    bad = zero
    if signed:
        least = b.compare("eq", x, b.const(t, -(1 << t.bits - 1)))
        minus = b.compare("eq", y, b.const(t, -1))
        bad = b.op("or", zero, b.op("and", least, minus))
    return b.select(bad, b.const(t, 1), y), zero


def floordiv(b: Builder, x: V, y: V, *, signed: bool) -> V:
    t = x.type
    safe, zero = _safe_divisor(b, x, y, signed)
    if not signed:
        q = b.op("udiv", x, safe)
    else:
        q = b.op("sdiv", x, safe)
        r = b.op("sub", x, b.op("mul", q, safe))
        apart = b.compare("slt", b.op("xor", r, safe), b.const(t, 0))
        off = b.op("and", b.compare("ne", r, b.const(t, 0)), apart)
        q = b.select(off, b.op("sub", q, b.const(t, 1)), q)
    return q if zero is None else b.select(zero, b.const(t, 0), q)


def _mod(b: Builder, x: V, y: V, *, signed: bool) -> V:
    t = x.type
    safe, zero = _safe_divisor(b, x, y, signed)
    if not signed:
        r = b.op("urem", x, safe)
    else:
        r = b.op("srem", x, safe)
        apart = b.compare("slt", b.op("xor", r, safe), b.const(t, 0))
        off = b.op("and", b.compare("ne", r, b.const(t, 0)), apart)
        r = b.select(off, b.op("add", r, safe), r)
    return r if zero is None else b.select(zero, b.const(t, 0), r)


def _towards_zero(b: Builder, op: str, x: V, y: V, *, signed: bool) -> V:
    safe, zero = _safe_divisor(b, x, y, signed)
    out = b.op(f"{'s' if signed else 'u'}{'div' if op == 'truncdiv' else 'rem'}", x, safe)
    return out if zero is None else b.select(zero, b.const(x.type, 0), out)


def _shift(b: Builder, op: str, x: V, y: V, *, signed: bool) -> V:
    """LLVM leaves open what a shift by the width or more is."""
    t, width = x.type, x.type.bits
    by = {"shl": "shl", "shr": "ashr" if signed else "lshr"}[op]
    if (numbers := constants(y)) and all(0 <= n < width for n in numbers):
        return b.op(by, x, y)
    inside = b.compare("ult", y, b.const(t, width))
    if by == "ashr":  # width - 1 leaves the sign
        return b.op(by, x, b.select(inside, y, b.const(t, width - 1)))
    return b.select(inside, b.op(by, x, y), b.const(t, 0))


def cast(b: Builder, v: V, have: DType, want: DType) -> V:
    if have is want:
        return v
    t = compute_type(b, want).elem
    if want is BOOL:
        zero = b.const(v.type, 0)
        return b.compare("une" if v.type.is_float else "ne", v, zero)
    if v.type.is_float and want.is_float:
        return _between_floats(b, v, want)
    if v.type.is_float:
        return _to_integer(b, v, want)
    if want.is_float:
        return _to_float(b, v, have, want)
    if v.type.lanes == 1 and (numbers := constants(v)):
        return b.const(Type(t), want.wrap(*numbers))
    bits = int(t[1:])
    if bits == v.type.bits:
        return v
    return b.cast("trunc" if bits < v.type.bits else "sext" if have.kind == "i" else "zext", v, t)


def _to_float(b: Builder, v: V, have: DType, want: DType) -> V:
    """Rounded to the dtype, even if that is computed in float. Integers go to half precision by way
    of float with a single rounding: float represents all integers in the range of float16, and
    bfloat16 is defined by way of float.
    """
    op = "sitofp" if have.kind == "i" else "uitofp"
    if want.bits > 16:
        return b.cast(op, v, compute_type(b, want).elem)
    return _between_floats(b, b.cast(op, v, "float"), want)


def _between_floats(b: Builder, v: V, want: DType) -> V:
    """float64 goes to float16 with one rounding, to bfloat16 by way of float32 (semantics.py)."""
    t = compute_type(b, want).elem
    if want.bits > 16 or t == "half":
        if t == v.type.elem:
            return v
        return b.cast("fpext" if Type(t).bits > v.type.bits else "fptrunc", v, t)
    if v.type.elem == "half":
        v = b.cast("fpext", v, "float")
    elif v.type.elem == "double":
        v = b.cast("fptrunc", v, "float") if want is BFLOAT16 else _odd_float(b, v)
    return widen(b, narrow(b, v, want), want)


def _odd_float(b: Builder, v: V) -> V:
    """A double rounded to odd as a float, so that rounding it to a half gives the same as rounding
    the double: if inexact, it is the neighbour with an odd last bit, which lies on the same side of
    every half and of every midpoint between two.
    """
    i = v.type.of("i32")
    near = b.cast("fptrunc", v, "float")
    back = b.cast("fpext", near, "double")
    bits = b.cast("bitcast", near, "i32")
    sizes = (b.call("llvm.fabs", v.type, x) for x in (back, v))
    step = b.select(b.compare("ogt", *sizes), b.const(i, -1), b.const(i, 1))
    even = b.compare("eq", b.op("and", bits, b.const(i, 1)), b.const(i, 0))
    moves = b.op("and", b.compare("one", back, v), even)
    odd = b.select(moves, b.op("add", bits, step), bits)
    return b.cast("bitcast", odd, "float")


def _to_integer(b: Builder, v: V, want: DType) -> V:
    """Rounds towards zero; saturates; NaN becomes 0."""
    t, signed = compute_type(b, want).elem, want.kind == "i"
    if v.type.elem == "half":
        v = b.cast("fpext", v, "float")
    if b.machine.saturates:
        op, to = f"llvm.fpto{'s' if signed else 'u'}i.sat", v.type.of(t)
        return b.call(op, to, v, overload=f"{to.suffix}.{v.type.suffix}")
    # On x86 LLVM would convert such a vector element by element.
    wide = t if int(t[1:]) >= 32 else "i32"
    convert = "fptosi" if signed or wide != t else "fptoui"
    low, high = int(want.lowest()), int(want.highest())
    zero, least = b.const(v.type, 0.0), b.const(v.type, low)
    if want.bits <= (24 if v.type.elem == "float" else 53):  # both limits are exact floats
        most = b.const(v.type, high)
        x = b.select(b.compare("ogt", v, least), v, least)
        x = b.select(b.compare("olt", x, most), x, most)
        out = b.cast(convert, b.select(b.compare("ord", v, v), x, zero), wide)
        return out if wide == t else b.cast("trunc", out, t)
    above = b.compare("oge", v, b.const(v.type, high + 1))
    fits = b.op("and", b.compare("oge", v, least), b.compare("olt", v, b.const(v.type, high + 1)))
    inside = b.cast(convert, b.select(fits, v, zero), t)
    out = b.select(above, b.const(inside.type, high), inside)
    return b.select(b.compare("olt", v, least), b.const(out.type, low), out) if signed else out


def constants(v: V) -> set[int]:
    """The integers in the lanes of a constant; empty for a run-time value."""
    if v.name[0] == "%" or v.type.is_float:
        return set()
    if v.name == "zeroinitializer":
        return {0}
    if v.name in ("true", "false"):
        return {int(v.name == "true")}
    return {int(n) for n in _NUMBER.findall(v.name)}


# 7, <i64 0, i64 1>, splat (i8 7)
_NUMBER = re.compile(r"(?:^|(?<= ))-?\d+\b")


def rounds_to(b: Builder, have: DType, want: DType) -> bool:
    """Whether one instruction rounds to the nearest and converts."""
    return bool(b.machine.rounds_to_int32) and have is FLOAT32 and want is INT32


def rounded_to_int32(b: Builder, v: V) -> V:
    """A float32 as the nearest int32, which saturates as `cast` does."""
    if v.type.lanes.bit_count() != 1 or v.type.lanes * 32 > b.machine.vectors[-1].bits:
        return cast(b, unary(b, "round", v, FLOAT32), FLOAT32, INT32)
    to = v.type.of("i32")
    return b.call(b.machine.rounds_to_int32, to, v, overload=f"{to.suffix}.{v.type.suffix}")


def rounded_within_int32(b: Builder, v: V, number: bool) -> V:
    """A float32 within the range of int32, or NaN, as the nearest integer; NaN becomes 0."""
    to = v.type.of("i32")
    out = b.call("llvm.lrint", to, v, overload=f"{to.suffix}.{v.type.suffix}")
    return out if number else b.select(b.compare("ord", v, v), out, b.const(to, 0))
