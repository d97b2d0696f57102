"""C's fmod as vector code: the remainder has the sign of the first operand."""

from __future__ import annotations

from collections.abc import Iterator

from tilesmith.codegen.llvm.builder import F64, I64, PTR, Builder, V
from tilesmith.codegen.llvm.vecmath_parts import called, fabs, fused, is_any, k

# A target without fused multiply-add needs doubles within 2^-900 and 2^900.
_BITS = 52  # bits of the quotient per division
_FLOAT_STEPS = 6
_FAR = 2.0 ** (2 * _BITS)  # larger quotients of doubles take more than two steps
_FAR_STEPS = 41  # enough for 2^1024 over 2^-1074


def fmod(b: Builder, x: V, y: V) -> V:
    """A long division in doubles, 52 bits at a time. Every remainder is a double, so each step is
    exact: a quotient that was rounded up is one too large, which a negative remainder shows.
    """
    if x.type.elem == "double":
        return called(b, "fmod", _of_doubles, x, y)
    a, divisor = fabs(b, x), fabs(b, y)
    r, m = (b.cast("fpext", v, "double") for v in (a, divisor))
    for n in reversed(range(_FLOAT_STEPS)):
        r = _step(b, r, b.op("fmul", m, k(b, m, 2.0 ** (_BITS * n))) if n else m)
    return _finished(b, x, a, divisor, b.cast("fptrunc", r, "float"))


def _of_doubles(b: Builder, x: V, y: V) -> None:
    a, m = fabs(b, x), fabs(b, y)
    far = b.compare("oge", b.op("fdiv", a, m), k(b, m, _FAR))
    r = _step_within(b, a, b.op("fmul", m, k(b, m, 2.0**_BITS)))
    near = _finished(b, x, a, m, _step(b, r, m))
    b.emit(f"  br {is_any(b, far)}, label %far, label %near")
    b.emit("near:")
    b.emit(f"  ret {near}")
    b.emit("far:")
    exact = _finished(b, x, a, m, _long_division(b, a, m))
    b.emit(f"  ret {b.select(far, exact, near)}")


def _long_division(b: Builder, a: V, m: V) -> V:
    """a modulo m by a loop over all steps; a power of two as large as the first is a product."""
    factors = [[2.0 ** (bits * n) for n in reversed(range(_FAR_STEPS))] for bits in (17, 17, 18)]
    tables = [b.table(F64, each) for each in factors]
    b.emit("  br label %step")
    b.emit("step:")
    rest, at = V("%rest", a.type), V("%at", I64)
    b.emit("  %at = phi i64 [0, %far], [%at.next, %step]")
    where = len(b.lines)
    step = m
    for factor in _entries(b, tables, at):
        step = b.op("fmul", step, b.splat(factor, a.type.lanes))
    new = _step_within(b, rest, step)
    b.lines.insert(where, f"  {rest.name} = phi {a.type} [{a.name}, %far], [{new.name}, %step]")
    b.emit("  %at.next = add nuw nsw i64 %at, 1")
    b.emit(f"  %at.more = icmp ult i64 %at.next, {_FAR_STEPS}")
    b.emit("  br i1 %at.more, label %step, label %divided")
    b.emit("divided:")
    return new


def _entries(b: Builder, tables: list[str], at: V) -> Iterator[V]:
    for table in tables:
        p = b.value(PTR, f"getelementptr double, ptr {table}, {at}")
        yield b.value(F64, f"load double, {p}, align 8")


def _step(b: Builder, r: V, step: V) -> V:
    q = b.call("llvm.trunc", r.type, b.op("fdiv", r, step))
    r = fused(b, q, b.fneg(step), r)
    return b.select(b.compare("olt", r, k(b, r, 0.0)), b.op("fadd", r, step), r)


def _step_within(b: Builder, r: V, step: V) -> V:
    """No step where the multiple of the divisor is larger than the rest: near the largest number,
    it could not be multiplied exactly without fused multiply-add. NaN stays NaN.
    """
    return b.select(b.compare("ule", step, r), _step(b, r, step), r)


def _finished(b: Builder, x: V, a: V, divisor: V, r: V) -> V:
    r = b.select(b.compare("olt", a, divisor), a, r)
    return b.call("llvm.copysign", x.type, r, x)
