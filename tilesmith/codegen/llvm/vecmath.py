"""Mathematical functions as branch-free vector code, inlined where they are used. They take float
or double values with any number of lanes, call no library, and never split vectors into elements.
sin, cos and fmod of doubles are functions of the module, which branch for operands of rare size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from tilesmith.base.errors import BuildError
from tilesmith.codegen.llvm.builder import F64, I64, PTR, Builder, V
from tilesmith.codegen.llvm.vecmath_parts import (
    at_least,
    at_most,
    avx512,
    called,
    exp_bounded,
    exp_by_table,
    expm1_bounded,
    fabs,
    format_of,
    fused,
    horner,
    is_any,
    k,
    masked,
    power_of_two,
    rounded,
    split,
)
from tilesmith.codegen.llvm.vecmath_pow import log2_of, power
from tilesmith.codegen.llvm.vecmath_sin import atan, cos, sin

# C's fmod as vector code: the remainder has the sign of the first operand.
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


# Bounds on the error in units of the last place, for float and for double. They are measured with a
# margin (tests/codegen/test_vecmath.py sweeps millions of bit patterns), not proven. They also hold
# for denormals, because underflow is gradual. Zeros, infinities and NaN give the results of C.
# A target without fused multiply-add rounds products too, except where their low bits matter; the
# bounds hold there as well. exp, sigmoid, rsqrt and pow of double use AVX-512's own instructions if
# b.features has them, so their last bit depends on the target. That of exp also depends on whether
# a vector has 16 floats. The last bit of all other functions is the same everywhere.
ULP: dict[str, tuple[float, float]] = {
    "exp": (2.0, 2.0),
    "log": (1.0, 1.0),
    "log2": (0.75, 0.75),
    "log10": (0.75, 0.75),
    "tanh": (3.0, 3.0),
    "erf": (2.0, 2.5),
    "sigmoid": (3.0, 3.5),
    "rsqrt": (1.5, 1.5),
    "sqrt": (0.5, 0.5),
    "sin": (2.0, 2.0),
    "cos": (2.0, 2.0),
    "pow": (1.0, 2.5),
    "atan": (2.5, 2.5),
    "expm1": (2.0, 2.0),
    "floor": (0.0, 0.0),
    "ceil": (0.0, 0.0),
    "round": (0.0, 0.0),
    "trunc": (0.0, 0.0),
    "fmod": (0.0, 0.0),
}

# (log(1 + f) - f + f^2/2) / f^3 for f in [-1/4, 1/2); error 2^-26.7 of the logarithm
_LOG = (
    0.3333345055580139,
    -0.24999535083770752,
    0.1998981088399887,
    -0.16668161749839783,
    0.14533361792564392,
    -0.13004259765148163,
    0.0981912761926651,
    -0.03956210985779762,
)
# (log((1 + s) / (1 - s)) / s - 2) / s^2 in s^2 for |s| <= 1/5; error 2^-62.5 of the logarithm
_LOG64 = (
    0.6666666666666663,
    0.40000000000040015,
    0.28571428558898876,
    0.22222224015160674,
    0.1818168007132428,
    0.15390710426141213,
    0.1317956747166825,
    0.1380674216150097,
)
# log10(2) as a sum of two doubles
_LOG10_2 = (float.fromhex("0x1.34413509f79ffp-2"), float.fromhex("-0x1.9dc1da994fd21p-59"))
# log(erfc(a)) / a + 1 for 0 <= a <= end, where erf has become 1. Weighted so that the error of erf
# is level: 2^-27.6 and 2^-55.0 of it.
_ERF_END = {"float": 4.0, "double": 6.0}
_ERF = {
    "float": (
        -0.12837916612625122,
        -0.6366195678710938,
        -0.10277630388736725,
        0.01914781890809536,
        0.0001695185637800023,
        -0.001675833365879953,
        0.0006376681849360466,
        -0.00011905871360795572,
        9.428036719327793e-06,
    ),
    "double": (
        -0.12837916709551256,
        -0.6366197723675909,
        -0.10277260330131473,
        0.019128446993074706,
        0.0002091948541845004,
        -0.0016962076718816455,
        0.0005901324403137908,
        -2.590453547338911e-05,
        -6.442038072919127e-05,
        2.957549242613485e-05,
        -3.169413481681779e-06,
        -3.1332595079365e-06,
        2.0374583443503337e-06,
        -5.708267635773025e-07,
        1.1819461954019637e-08,
        6.568289758286395e-08,
        -3.456658023536765e-08,
        1.0768168581178301e-08,
        -2.359374849080666e-09,
        3.758808979875292e-10,
        -4.2994609977167725e-11,
        3.3623904777306315e-12,
        -1.613854497414551e-13,
        3.589751151771312e-15,
    ),
}
# from here on tanh is 1
_TANH_END = {"float": 10.0, "double": 20.0}


def exp(b: Builder, x: V) -> V:
    # every processor with byte vectors of this width has vrange too
    if avx512(b, x.type) == "ps.512" and "avx512bw" in b.features:
        return exp_by_table(b, x)
    f = format_of(x)
    return exp_bounded(b, at_least(b, at_most(b, x, f.exp_high), f.exp_low))


def sigmoid(b: Builder, x: V) -> V:
    """e^-|x| cannot overflow, and over 1 + e^-|x| it keeps the small results of negative x."""
    e = exp_bounded(b, at_least(b, b.fneg(fabs(b, x)), format_of(x).exp_low))
    one = k(b, x, 1.0)
    top = b.select(b.compare("olt", x, k(b, x, 0.0)), e, one)
    return b.op("fdiv", top, b.op("fadd", one, e))


def expm1(b: Builder, x: V) -> V:
    """2 (2^m (e^r - 1) + 2^m - 1/2) with r = x - (m + 1) ln2: the largest power is a number yet."""
    f = format_of(x)
    a = at_least(b, at_most(b, x, f.exp_high), -40.0)  # there it is -1
    t, n = rounded(b, a, 1.0 / math.log(2.0), f.magic + f.bias - 1)
    r = fused(b, n, k(b, x, -f.ln2[0]), a)
    r = fused(b, n, k(b, x, -f.ln2[1]), r)
    p = b.fma(b.op("fmul", r, r), horner(b, r, f.expm1), r)
    scale = power_of_two(b, t)
    half = b.fma(p, scale, b.op("fsub", scale, k(b, x, 0.5)))
    return b.call("llvm.copysign", x.type, b.op("fadd", half, half), x)


def log(b: Builder, x: V) -> V:
    e, m, special = split(b, x)
    f = b.op("fsub", m, k(b, x, 1.0))
    half_square = b.op("fmul", b.op("fmul", f, f), k(b, x, 0.5))
    hi, lo = format_of(x).ln2
    rest = b.op("fmul", e, k(b, x, lo))
    if x.type.elem == "float":
        cube = b.op("fmul", b.op("fmul", f, f), f)
        rest = b.fma(cube, horner(b, f, _LOG), rest)
    else:
        # with s = f / (2 + f): log(1 + f) = 2s + s R(s^2) = f - f^2/2 + s (f^2/2 + R)
        s = b.op("fdiv", f, b.op("fadd", f, k(b, x, 2.0)))
        z = b.op("fmul", s, s)
        rest = b.fma(s, b.fma(z, horner(b, z, _LOG64), half_square), rest)
    rest = b.op("fsub", rest, half_square)
    result = fused(b, e, k(b, x, hi), b.op("fadd", f, rest))
    if special:
        return result
    result = b.select(b.compare("olt", x, k(b, x, math.inf)), result, x)
    zero = b.compare("oeq", x, k(b, x, 0.0))
    outside = b.select(zero, k(b, x, -math.inf), k(b, x, math.nan))
    return b.select(b.compare("ole", x, k(b, x, 0.0)), outside, result)


def tanh(b: Builder, x: V) -> V:
    """e / (e + 2) with e = exp(2|x|) - 1: accurate near 0, and errors of a large e cancel."""
    a = at_most(b, fabs(b, x), _TANH_END[x.type.elem])
    e = expm1_bounded(b, b.op("fadd", a, a))
    q = b.op("fdiv", e, b.op("fadd", e, k(b, x, 2.0)))
    return b.call("llvm.copysign", x.type, q, x)


def erf(b: Builder, x: V) -> V:
    """1 - exp(log(erfc|x|)): one polynomial for the whole range and no division."""
    a = at_most(b, fabs(b, x), _ERF_END[x.type.elem])
    # The 1 that the table leaves out comes back unrounded: -a + a (...). Neon has no instruction
    # that subtracts its addend, and the logarithm is negated instead.
    sign = 1.0 if b.machine.subtracts_addend else -1.0
    rest = horner(b, a, [sign * c for c in _ERF[x.type.elem]])
    tail = b.fma(a, rest, b.fneg(a) if b.machine.subtracts_addend else a)
    return b.call("llvm.copysign", x.type, expm1_bounded(b, tail, sign), x)


def rsqrt(b: Builder, x: V) -> V:
    form = avx512(b, x.type)
    if form is None or x.type.elem == "double":
        return b.op("fdiv", k(b, x, 1.0), _intrinsic("llvm.sqrt", b, x))
    # 14 bits and one Newton step. At 0 and inf the step is NaN and the estimate already right.
    y = masked(b, "rsqrt14", form, x, rounding=False)
    off = b.fma(b.fneg(b.op("fmul", x, y)), y, k(b, x, 1.0))
    better = b.fma(b.op("fmul", y, k(b, x, 0.5)), off, y)
    return b.select(b.compare("ord", off, off), better, y)


def _intrinsic(name: str, b: Builder, x: V) -> V:
    return b.call(name, x.type, x)


_INTRINSICS = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc"}
_INTRINSICS["round"] = "roundeven"  # halves go to the even neighbour
FUNCTIONS: dict[str, Callable[..., V]] = {
    **{f.__name__: f for f in (exp, log, tanh, erf, sigmoid, rsqrt, sin, cos, atan, expm1, fmod)},
    **{op: partial(_intrinsic, f"llvm.{name}") for op, name in _INTRINSICS.items()},
    "log2": log2_of,
    "log10": partial(log2_of, factor=_LOG10_2),
    "pow": power,
}


def emit(b: Builder, op: str, *args: V) -> V:
    """The function called `op` of one value, or of two for "pow" and "fmod"."""
    if op not in FUNCTIONS:
        raise BuildError(f"no vector code for {op!r}; there is for {', '.join(FUNCTIONS)}")
    if args[0].type.elem not in ("float", "double"):
        raise BuildError(f"{op} of {args[0].type}: convert to float or double first")
    return FUNCTIONS[op](b, *args)
