"""Building blocks of the vector functions: polynomials, clamps, scaling and splitting of exponents,
all branch-free, for float and double.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from tilesmith.base.dataclass import dataclass
from tilesmith.codegen.llvm.builder import I1, I32, Builder, Type, V, number


@dataclass(frozen=True, slots=True)
class Format:
    """The layout of an IEEE format, and the constants of exp and log in it."""

    int_elem: str
    mantissa: int  # stored bits
    bias: int
    tiny: float  # the smallest normal number
    exp_low: float  # exp of this rounds to 0
    exp_high: float  # exp of this is infinite
    ln2: tuple[float, float]  # high and low part, both positive
    exp_narrow: tuple[float, ...]  # exp(r) for |r| <= ln2/2
    exp_wide: tuple[float, ...]  # exp(r) for |r| <= ln2
    expm1: tuple[float, ...]  # (exp(r) - 1 - r) / r^2 for |r| <= ln2/2

    @property
    def magic(self) -> float:
        """Adding it rounds to a whole number, which is then in the low bits."""
        return 1.5 * 2.0**self.mantissa


# Every polynomial in these modules is a minimax fit for relative error, made with a Remez exchange
# in 50 digits; its coefficients, lowest power first, were rounded one by one and the rest refitted.
# exp starts 1 + r so that exp(0) is 1. The high part of ln2 is rounded down: with both parts
# positive, log of an infinity comes out as inf + inf and not inf - inf.
FORMATS = {
    "float": Format(
        int_elem="i32",
        mantissa=23,
        bias=127,
        tiny=2.0**-126,
        exp_low=-104.0,  # under 2^-150, half the smallest denormal
        exp_high=89.0,  # over 2^128
        ln2=(float.fromhex("0x1.62e42ep-1"), float.fromhex("0x1.efa39ep-25")),
        exp_narrow=(  # error 2^-28.2
            1.0,
            1.0,
            0.4999999403953552,
            0.16666516661643982,
            0.04166810214519501,
            0.008369204588234425,
            0.0013839317252859473,
        ),
        exp_wide=(  # error 2^-26.0
            1.0,
            1.0,
            0.5000003576278687,
            0.1666661649942398,
            0.04166116937994957,
            0.008335908874869347,
            0.0014106163289397955,
            0.00019643960695248097,
        ),
        expm1=(  # error 2^-26.1 of exp(r) - 1
            0.4999999701976776,
            0.16666539013385773,
            0.04166775569319725,
            0.008367124013602734,
            0.0013835678109899163,
        ),
    ),
    "double": Format(
        int_elem="i64",
        mantissa=52,
        bias=1023,
        tiny=2.0**-1022,
        exp_low=-746.0,  # under 2^-1075
        exp_high=710.0,  # over 2^1024
        ln2=(float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.abc9e3b39803fp-56")),
        exp_narrow=(  # error 2^-57.2
            1.0,
            1.0,
            0.5000000000000011,
            0.16666666666666344,
            0.04166666666652453,
            0.008333333333440246,
            0.0013888888946215119,
            0.00019841269781252816,
            2.480148929610938e-05,
            2.7557229156890596e-06,
            2.7631948568062725e-07,
            2.5142549461600002e-08,
        ),
        exp_wide=(  # error 2^-56.5
            1.0,
            1.0,
            0.4999999999999993,
            0.16666666666666935,
            0.041666666666702094,
            0.008333333333270274,
            0.0013888888883578634,
            0.0001984126989253878,
            2.4801590828536054e-05,
            2.7557300722969676e-06,
            2.7556158413692133e-07,
            2.5055023431078406e-08,
            2.10622999333623e-09,
            1.5936106021657038e-10,
        ),
        expm1=(  # error 2^-61.6 of exp(r) - 1
            0.5,
            0.16666666666666674,
            0.04166666666666658,
            0.008333333333323277,
            0.001388888888894162,
            0.00019841269882506763,
            2.4801587199068973e-05,
            2.755724747303257e-06,
            2.7557387034682853e-07,
            2.510799803895743e-08,
            2.087878095184642e-09,
        ),
    ),
}

# (exp(r) - 1) / r for |r| <= ln2/64; error 2^-24.1 of exp(r)
_EXPM1_SHORT = (1.0000146627426147, 0.4999999701976776)
_SHORT_END = 0.011  # a little over ln2/64
_SMALLER = V("2", I32)  # of vrange: the operand of smaller magnitude, with the sign of the first
SPLIT = 0.75  # mantissas are taken in [SPLIT, 2 * SPLIT): what vgetmant calls 3/4 to 3/2


def format_of(x: V) -> Format:
    return FORMATS[x.type.elem]


def k(b: Builder, x: V, value: float) -> V:
    """A constant of x's type."""
    return b.const(x.type, value)


def horner(b: Builder, x: V, coefficients: Sequence[float]) -> V:
    """c0 + x (c1 + x (c2 ...)). Horner has the fewest instructions; loops hide its latency."""
    acc = k(b, x, coefficients[-1])
    ahead = addends(b, x, coefficients[:-1])
    # Vectors of so many registers are scheduled by hand: each step of a polynomial is issued for
    # all of them. LLVM would delay some of them to the end, and spill.
    at_once = b.machine.function_vectors
    wide = at_once > 1 and x.type.lanes * x.type.bits >= at_once * b.machine.vectors[-1].bits
    for c in reversed(ahead):
        if wide:
            b.fence()
        acc = b.fma(acc, x, c())
    if wide:
        b.fence()
    return acc


def addends(b: Builder, x: V, values: Sequence[float]) -> list[Callable[[], V]]:
    """Constants of x's type that fused multiply-adds take as addends, one call for each use.

    Where the instruction overwrites its addend (Neon), a constant in a register is copied first:
    one more instruction on the pipes that multiply. A load runs on others. It is volatile because
    LLVM would move it out of the loop, and copy.
    """
    if not b.machine.overwrites_addend or x.type.lanes == 1:
        return [partial(k, b, x, value) for value in values]
    table = b.table(x.type, values)
    return [partial(b.entry, x.type, table, at) for at in range(len(values))]


def fused(b: Builder, x: V, y: V, z: V) -> V:
    """x y + z rounded once on every target, for cases in which the low bits of the product matter.

    Without such an instruction, float is computed in double, and double by Dekker's product.
    """
    if b.fuses:
        return b.fma(x, y, z)
    if x.type.elem == "float":
        wide = [b.cast("fpext", v, "double") for v in (x, y, z)]
        return b.cast("fptrunc", b.fma(*wide), "float")
    p = b.op("fmul", x, y)
    (x1, x2), (y1, y2) = _halves(b, x), _halves(b, y)
    low = b.op("fsub", b.op("fmul", x1, y1), p)
    for u, v in ((x1, y2), (x2, y1), (x2, y2)):
        low = b.op("fadd", low, b.op("fmul", u, v))
    s = b.op("fadd", p, z)  # and its rounding error (Knuth)
    back = b.op("fsub", s, p)
    off = b.op("fadd", b.op("fsub", p, b.op("fsub", s, back)), b.op("fsub", z, back))
    return b.op("fadd", s, b.op("fadd", low, off))


def _halves(b: Builder, x: V) -> tuple[V, V]:
    """x as a sum of two numbers with half as many bits each (Veltkamp)."""
    c = b.op("fmul", x, k(b, x, 2.0**27 + 1))
    high = b.op("fsub", c, b.op("fsub", c, x))
    return high, b.op("fsub", x, high)


def called(b: Builder, name: str, body: Callable[..., None], *args: V) -> V:
    """A call of a function of the module, for code that branches. `body` emits it, up to its `ret`,
    once for each type.
    """
    t = args[0].type
    symbol = f"@tilesmith.{name}.{t.suffix}"
    if symbol not in b.declarations:
        inner = Builder(b.machine, b.features)
        inner.declarations = b.declarations
        own = [V(f"%x{n}", a.type) for n, a in enumerate(args)]
        body(inner, *own)
        head = f"define internal {t} {symbol}({', '.join(map(str, own))}) nounwind {{"
        b.declarations[symbol] = "\n".join((head, *inner.lines, "}"))
    return b.value(t, f"call {t} {symbol}({', '.join(map(str, args))})")


def is_any(b: Builder, mask: V) -> V:
    """Whether a lane is set."""
    return mask if mask.type.lanes == 1 else b.call("llvm.vector.reduce.or", I1, mask)


def at_most(b: Builder, x: V, limit: float) -> V:
    """min(x, limit), and NaN for NaN, in one instruction where there is one."""
    return _limited(b, x, limit, "llvm.minimum", "olt")


def at_least(b: Builder, x: V, limit: float) -> V:
    return _limited(b, x, limit, "llvm.maximum", "ogt")


def _limited(b: Builder, x: V, limit: float, function: str, test: str) -> V:
    bound = k(b, x, limit)
    if b.machine.propagates_nan:
        return b.call(function, x.type, x, bound)
    # minps returns its second operand when either is NaN
    return b.select(b.compare(test, bound, x), bound, x)


def fabs(b: Builder, x: V) -> V:
    return b.call("llvm.fabs", x.type, x)


def bits(b: Builder, x: V) -> V:
    return b.cast("bitcast", x, format_of(x).int_elem)


def unbits(b: Builder, i: V, elem: str) -> V:
    return b.cast("bitcast", i, elem)


def avx512(b: Builder, t: Type) -> str | None:
    """The suffix of AVX-512's own intrinsics for vectors of t ("ps.512"); None without them."""
    features = cast("frozenset[str]", getattr(b, "features", frozenset()))
    width = t.bits * t.lanes
    if "avx512f" not in features or width not in (128, 256, 512):
        return None
    if width < 512 and "avx512vl" not in features:
        return None
    return f"{'ps' if t.elem == 'float' else 'pd'}.{width}"


def masked(b: Builder, name: str, form: str, *args: V, rounding: bool = True) -> V:
    """An AVX-512 intrinsic with every lane on; 512-bit forms also take a rounding mode."""
    t = args[0].type
    tail = [V("zeroinitializer", t), V("-1", Type(f"i{max(8, t.lanes)}"))]
    if rounding and form.endswith("512"):
        tail.append(V("4", I32))  # the current rounding mode
    return b.call(f"llvm.x86.avx512.{name}.{form}", t, *args, *tail, overload="")


def _fold(b: Builder, x: V) -> float:
    """How many powers of two one factor stands for: 1, or 2 where results may be denormal.

    Without scalef one factor 2^n cannot reach the denormals: e^x = 2^m e^r 2^m with |r| <= ln2
    costs a degree or two more and still rounds once, in the last product.
    """
    return 1.0 if avx512(b, x.type) else 2.0


def _biased_magic(b: Builder, x: V) -> float:
    f = format_of(x)
    return f.magic if avx512(b, x.type) else f.magic + f.bias


def _exp_scaled(b: Builder, r: V, n: V, t: V, fold: float) -> V:
    """exp(r) 2^(fold n), where t is n after the magic number was added."""
    f = format_of(r)
    p = horner(b, r, f.exp_narrow if fold == 1.0 else f.exp_wide)
    if form := avx512(b, r.type):
        return masked(b, "mask.scalef", form, p, n)
    scale = power_of_two(b, t)
    for _ in range(int(fold)):
        p = b.op("fmul", p, scale)
    return p


def rounded(b: Builder, x: V, factor: float, magic: float) -> tuple[V, V]:
    """x factor as a whole number n, and t = n + magic, which has it in its low bits."""
    (addend,) = addends(b, x, (magic,))
    t = b.fma(x, k(b, x, factor), addend())
    return t, b.op("fsub", t, k(b, x, magic))


def exp_by_table(b: Builder, x: V) -> V:
    """exp(x) of any x with an error of 1.9 ulp, for vectors of 16 floats.

    2^(i/32) comes from two registers by a permutation, so that a square is enough for the rest.
    Rounded to 32nds, n has the fraction i in the lowest bits of t; scalef rounds n down.

    What is left, r, is brought into its range where x is so large that it is noise, and is a number
    even where x is infinite: of a positive p, scalef then makes infinity or 0 by n alone, and a NaN
    comes back through n. That is one instruction, and x would take two.
    """
    f = format_of(x)
    magic = k(b, x, f.magic / 32)
    t = b.fma(x, k(b, x, 1.0 / math.log(2.0)), magic)
    n = b.op("fsub", t, magic)
    r = fused(b, n, k(b, x, -f.ln2[0]), x)
    r = fused(b, n, k(b, x, -f.ln2[1]), r)
    r = masked(b, "mask.range", "ps.512", r, k(b, x, _SHORT_END), _SMALLER)
    low, high = (_table(x.type, [2.0 ** (i / 32) for i in range(at, at + 16)]) for at in (0, 16))
    root = b.target_call("llvm.x86.avx512.vpermi2var.ps.512", x.type, low, bits(b, t), high)
    rest = b.op("fmul", r, horner(b, r, _EXPM1_SHORT))
    return masked(b, "mask.scalef", "ps.512", b.fma(root, rest, root), n)


def _table(t: Type, values: Sequence[float]) -> V:
    entries = ", ".join(f"{t.elem} {number(Type(t.elem), v)}" for v in values)
    return V(f"<{entries}>", t)


def exp_bounded(b: Builder, x: V) -> V:
    """exp(x) for x within the format's exp_low and exp_high."""
    f = format_of(x)
    fold = _fold(b, x)
    t, n = rounded(b, x, 1.0 / (fold * math.log(2.0)), _biased_magic(b, x))
    # Cody and Waite's reduction; the first fma is exact as the product's low bits cancel with x
    r = fused(b, n, k(b, x, -fold * f.ln2[0]), x)
    r = fused(b, n, k(b, x, -fold * f.ln2[1]), r)
    return _exp_scaled(b, r, n, t, fold)


def exp2_bounded(b: Builder, x: V, low: V) -> V:
    """2^(x + low) for |x| not much over the range of exponents."""
    fold = _fold(b, x)
    t, n = rounded(b, x, 1.0 / fold, _biased_magic(b, x))
    r = b.op("fadd", b.fma(n, k(b, x, -fold), x), low)
    return _exp_scaled(b, b.op("fmul", r, k(b, x, math.log(2.0))), n, t, fold)


def expm1_bounded(b: Builder, x: V, sign: float = 1.0) -> V:
    """sign (exp(sign x) - 1) for |x| up to about 40, within few ulp also near 0."""
    f = format_of(x)
    t, n = rounded(b, x, sign / math.log(2.0), f.magic + f.bias)
    # One step is enough: what ln2 is off by times n matters less the further exp(x) is from 1.
    r = fused(b, n, k(b, x, -sign * math.log(2.0)), x)
    signed = [c * sign ** (i + 1) for i, c in enumerate(f.expm1)]
    p = b.fma(b.op("fmul", r, r), horner(b, r, signed), r)
    scale = power_of_two(b, t)
    one = k(b, x, 1.0)
    return b.fma(p, scale, b.op("fsub", *((scale, one) if sign > 0 else (one, scale))))


def power_of_two(b: Builder, t: V) -> V:
    """2^n from t = n + (magic + bias): the low bits already are the biased exponent."""
    i = bits(b, t)
    return unbits(b, b.op("shl", i, k(b, i, format_of(t).mantissa)), t.type.elem)


def split(b: Builder, x: V) -> tuple[V, V, bool]:
    """(e, m, special) with x = 2^e m and m in [SPLIT, 2 SPLIT), for positive x, denormals included.

    `special` says that 0 and inf gave e = -inf and inf with m = 1, and NaN and negatives m = NaN.
    """
    f = format_of(x)
    if form := avx512(b, x.type):
        # immediate: interval 3/4 to 3/2 (3), sign control "NaN if negative, but +1 for -0" (3 << 2)
        m = masked(b, "mask.getmant", form, x, V("15", I32))
        high = masked(b, "mask.getexp", form, x)
        return b.op("fsub", high, masked(b, "mask.getexp", form, m)), m, True
    low = b.compare("olt", x, k(b, x, f.tiny))
    lift = f.mantissa + 1
    x = b.select(low, b.op("fmul", x, k(b, x, 2.0**lift)), x)
    i = bits(b, x)
    one = 1 << f.mantissa
    base = (f.bias - 1) * one + one // 2  # the bits of SPLIT
    # Biased to stay positive, the exponent becomes a float by being or-ed under 2^mantissa:
    # AVX2 has neither a 64-bit arithmetic shift nor a conversion of 64-bit integers.
    d = b.op("add", i, k(b, i, f.bias * one - base))
    e = b.op("lshr", d, k(b, i, f.mantissa))
    e = b.op("or", e, k(b, i, (f.bias + f.mantissa) * one))
    origin = 2.0**f.mantissa + f.bias
    shift = b.select(low, k(b, x, origin + lift), k(b, x, origin))
    exponent = b.op("fsub", unbits(b, e, x.type.elem), shift)
    d = b.op("add", b.op("and", d, k(b, i, one - 1)), k(b, i, base))
    return exponent, unbits(b, d, x.type.elem), False
