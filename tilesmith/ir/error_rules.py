"""How rounding errors pass through one operation: the values and errors of its operands in, a bound
on the error of its result out. `error_bounds.py` says what a bound means.

An error is an array, or None for 0 everywhere; NaN means that any result is right.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from tilesmith.base.dtype import BFLOAT16, FLOAT32, FLOAT64, DType
from tilesmith.expr import semantics

Array = np.ndarray[Any, Any]
Error = Any

# Roundings of an operation, in units of 2 u: what OpenCL allows, which is more than CUDA and our
# own functions need (codegen/llvm/vecmath.py).
_ROUNDINGS = {"div": 4.0, "sqrt": 4.0, "rsqrt": 4.0, "pow": 32.0}
_FUNCTION_ROUNDINGS = 16.0
# The largest slope of functions that are bounded: as good as their values at two more points.
_SLOPES = {"erf": 1.13, "tanh": 1.0, "sigmoid": 0.25, "sin": 1.0, "cos": 1.0, "atan": 1.0}
_EXACT_UNARY = frozenset(("neg", "abs", "not"))
_STEPS = frozenset(("floor", "ceil", "round", "trunc"))
_COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
_HIGHEST = {"float16": 65504.0, "bfloat16": 3.3895e38}


def narrows(source: DType, to: DType) -> bool:
    """Whether a cast may round. Floats become integers by truncation, which is exact."""
    if not to.is_float or source.kind == "b":
        return False
    if source.is_float:
        return to.roundoff > source.roundoff or (to is not source and to.bits == source.bits)
    return source.bits - (source.kind == "i") > to.digits


def own_roundings(op: str, d: DType) -> float:
    """The error of an operation itself, relative to its result, in units of the result's u."""
    if not d.is_float or op in _EXACT_UNARY | _STEPS or op in ("max", "min", "fmod"):
        return 0.0
    if op in ("add", "sub", "mul"):
        return 2.0
    more = 2 * _ROUNDINGS.get(op, _FUNCTION_ROUNDINGS)
    # 16-bit floats: functions are computed in float32.
    return more if d.bits > 16 else 2.0 + more * FLOAT32.roundoff / d.roundoff


def magnitude(a: Any) -> Array:
    """|a|, as float32 at least."""
    a = np.asarray(a)
    wide = np.float64 if a.dtype.itemsize == 8 or a.dtype.kind in "iu" else np.float32
    out: Array = np.abs(a.astype(wide, copy=False))
    return out


def least(d: DType) -> float:
    """An error that every rounding may have: devices may flush subnormal numbers to zero."""
    if d.bits == 16 and d is not BFLOAT16:
        return float(2.0**-24)
    return float(2.0**-126)  # bounds are float32, also those of float64


def plus(a: Error, b: Error) -> Error:
    return b if a is None else a if b is None else a + b


def _around(f: Callable[..., Any], r: Any, *ends: tuple[Any, Error]) -> Error:
    """The largest distance of f from r at the ends of its operands' errors; NaN if f is not defined
    at one.
    """
    if all(e is None for _, e in ends):
        return None
    wide = [np.asarray(x, np.float64) for x, _ in ends]
    sides = [(x,) if e is None else (x - e, x + e) for x, (_, e) in zip(wide, ends, strict=True)]
    base, out = np.asarray(r, np.float64), np.float64(0.0)
    for corner in product(*sides):
        out = np.maximum(out, np.abs(f(*corner) - base))
    exact = np.ones((), bool)
    for _, e in ends:
        exact = exact & (True if e is None else np.equal(e, 0))
    return np.where(exact, 0.0, out)


def _rounded(passed: Error, r: Any, d: DType, roundings: float, may_fuse: bool = False) -> Error:
    """The errors that came with the operands, and those of the operation itself."""
    may_be_wider = may_fuse or d.bits == 16
    size = magnitude(r)
    own = size * (roundings * d.roundoff) + least(d)
    total = own if passed is None else own + passed
    highest = float(d.highest()) if d.bits > 16 else _HIGHEST[d.name]
    finite = np.isfinite(size)
    if finite.all() and not (size + total > highest).any():
        return total
    # Infinite or NaN: as certain as its operands were. What may be computed in a wider type, or
    # fused with what follows, need not overflow.
    doubtful = np.False_ if passed is None else ~(np.asarray(passed) == 0)
    special = np.where(doubtful | (np.isinf(size) & may_be_wider), np.nan, 0.0)
    return np.where(finite, np.where(size + total > highest, np.nan, total), special)


def unary(op: str, x: Any, e: Error, r: Any, d: DType) -> Error:
    if op in _EXACT_UNARY:
        return e
    if not d.is_float:
        return None if e is None else np.where(np.equal(e, 0), 0.0, np.nan)

    def f(z: Array) -> Any:
        return semantics.unary(op, z, FLOAT64)

    slope = _SLOPES.get(op)
    passed = _around(f, r, (x, e)) if e is None or slope is None else np.minimum(slope * e, 2.0)
    if op in _STEPS:
        return passed
    if op in ("sin", "cos"):  # near their zeros, the error is that of the argument
        passed = plus(passed, 2 * _FUNCTION_ROUNDINGS * (d if d.bits > 16 else FLOAT32).roundoff)
    return _rounded(passed, r, d, own_roundings(op, d))


def binary(op: str, a: Any, b: Any, ea: Error, eb: Error, r: Any, d: DType) -> Error:
    """`d` is the type of the operands."""
    if op in _COMPARISONS:
        both = plus(ea, eb)
        if both is None:
            return None
        gap = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))
        return np.where((both == 0) | (gap > both), 0.0, 1.0)
    if op in ("max", "min"):
        return ea if eb is None else eb if ea is None else np.maximum(ea, eb)
    if op in ("and", "or"):
        return plus(ea, eb)
    if op in ("add", "sub"):
        passed = plus(ea, eb)
        return _where_inexact(op, a, b, passed, r, d) if d.is_float else passed
    if op == "mul":
        passed = plus(
            None if ea is None else magnitude(b) * ea, None if eb is None else magnitude(a) * eb
        )
        if ea is not None and eb is not None:
            passed = passed + ea * eb
        return _where_inexact(op, a, b, passed, r, d) if d.is_float else passed
    if op in ("floordiv", "mod", "fmod") and d.is_float:
        return _divided(op, a, b, ea, eb, r, d)

    def f(x: Array, y: Array) -> Any:
        if d.is_float:
            return semantics.binary(op, x, y, FLOAT64)
        x, y = (semantics.cast(np.rint(z), d) for z in (x, y))
        return np.asarray(semantics.binary(op, x, y, d), np.float64)

    passed = _around(f, r, (a, ea), (b, eb))
    if passed is not None and op in ("div", "pow", "floordiv", "truncdiv"):
        # A pole between the ends.
        passed = np.where(magnitude(b) > (0.0 if eb is None else eb), passed, np.nan)
    return _rounded(passed, r, d, own_roundings(op, d)) if d.is_float else passed


def _where_inexact(op: str, a: Any, b: Any, passed: Error, r: Any, d: DType) -> Error:
    """Of a sum, difference or product, which rounds nothing if double precision gives the same."""
    total = _rounded(passed, r, d, 2.0, may_fuse=op == "mul")
    if d.bits == 64:
        return total
    wide = semantics.binary(op, np.asarray(a, np.float64), np.asarray(b, np.float64), FLOAT64)
    exact = wide == r
    if passed is not None:
        exact &= np.equal(passed, 0)
    elif np.all(exact):
        return None
    return np.where(exact, 0.0, total)


def _divided(op: str, a: Any, b: Any, ea: Error, eb: Error, r: Any, d: DType) -> Error:
    """a // b and the remainders, which jump where the quotient is whole."""
    if op == "fmod" and ea is None and eb is None:
        return None
    quotient = np.asarray(a, np.float64) / np.asarray(b, np.float64)
    near = plus(
        _around(np.divide, quotient, (a, ea), (b, eb)), 8 * d.roundoff * magnitude(quotient)
    )
    is_fixed = np.floor(quotient - near) == np.floor(quotient + near)
    if op == "floordiv":
        return np.where(is_fixed, 0.0, np.where(np.isnan(near), np.nan, 1.0))
    passed = plus(ea, None if eb is None else eb * magnitude(quotient))
    passed = plus(passed, 4 * d.roundoff * magnitude(a))
    return np.where(is_fixed, passed, passed + magnitude(b))


def cast(x: Any, e: Error, r: Any, source: DType, to: DType) -> Error:
    if to.kind == "b":
        return None if e is None else np.where((e == 0) | (magnitude(x) > e), 0.0, 1.0)
    if to.is_float:
        if not narrows(source, to):
            return e
        size = magnitude(r)
        own = size * (2 * to.roundoff) + least(to)
        total = own if e is None else own + e
        exact = np.equal(np.asarray(x, np.float64), np.asarray(r, np.float64))
        total = np.where(exact if e is None else exact & np.equal(e, 0), 0.0, total)
        # An overflow is certain if the value is beyond the largest number by more than its error.
        given = magnitude(x)
        highest = _HIGHEST.get(to.name, float(to.highest()))
        sure = given - (0.0 if e is None else e) > highest * (1 + 2 * to.roundoff)
        over = np.where(sure | np.isinf(given), 0.0, np.inf)
        over = np.where(np.isnan(size), 0.0 if e is None else np.where(e == 0, 0.0, np.nan), over)
        total = np.where(size + total > highest, np.inf, total)
        return np.where(np.isfinite(size), total, over)
    if not source.is_float:
        return e
    return _around(lambda z: np.asarray(semantics.cast(z, to), np.float64), r, (x, e))


def select(c: Any, a: Any, b: Any, ec: Error, ea: Error, eb: Error) -> Error:
    taken: Error = None
    if ea is not None or eb is not None:
        taken = np.where(c, 0.0 if ea is None else ea, 0.0 if eb is None else eb)
    if ec is None:
        return taken
    gap = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))
    both = plus(gap, plus(ea, eb))
    return np.where(ec == 0, 0.0 if taken is None else taken, both)
