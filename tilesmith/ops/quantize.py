"""Numbers as small integers: a float x stands as round(x / scale) + zero point, and back.

Whole numbers are exact: halves round to the even one, and what does not fit becomes the nearest
value that does.
"""

from __future__ import annotations

from collections.abc import Callable

from tilesmith.base.dtype import FLOAT32, INT32, DType
from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.functions import maximum, minimum, round_
from tilesmith.expr.ints import ONE
from tilesmith.expr.reductions import amax, amin
from tilesmith.expr.values import Value, cast, where
from tilesmith.ops.arguments import (
    axis_of,
    broadcast_shape,
    fixed,
    need_equal,
    need_tensor,
    operator,
    read_broadcast,
    show_shape,
    widen,
)

Read = Callable[[tuple[Value, ...]], Value]


def _small(dtype: str | DType) -> DType:
    d = dtype_named(dtype)
    if not d.is_int or d.bits > 16:
        raise ExpressionError(f"dtype is {d}; it must be an integer of 8 or 16 bits")
    return d


def _spread(what: str, t: Tensor, X: Tensor, axis: int, block: int) -> Read:
    """How the scale or zero point of an element of X is read: one for all, one for each place of
    an axis, or one for each block along it.
    """
    need_tensor(what, t)
    if all(e == ONE for e in t.shape_ints) and t.ndim < 2:
        return lambda i: t[(0,) * t.ndim]
    a = axis_of(axis, X.ndim)
    if t.ndim == 1 and not block:
        need_equal(f"the extent of {what}", t.shape_ints[0], X.shape_ints[a],
                   f"axis {axis} of X is")  # fmt: skip
        return lambda i: t[i[a]]
    n = fixed(f"axis {axis} of X", X.shape_ints[a])
    wanted = [*X.shape_ints]
    if block > 0:
        wanted[a] = ONE * -(-n // block)
    if block < 1 or t.shape_ints != tuple(wanted):
        raise ExpressionError(
            f"{what} has shape {show_shape(t.shape)} for X of shape {show_shape(X.shape)} "
            f"in blocks of {block} along axis {axis}"
        )
    return lambda i: t[(*i[:a], i[a] // block, *i[a + 1 :])]


def _saturated(x: Value, zero: Value | None, to: DType, real: bool = False) -> Value:
    """x in float32, rounded to a whole number, plus the zero point, within the range of `to`.

    The range is a whole number at both ends, so it may be applied before rounding, which processors
    do together with the conversion to an integer. With `real`, the whole number stays a float32.
    """
    low, high = float(to.lowest()), float(to.highest())
    if real:
        away = cast(0.0 if zero is None else zero, FLOAT32)
        return round_(maximum(minimum(x, high - away), low - away)) + away
    if zero is None:
        return cast(cast(round_(maximum(minimum(x, high), low)), INT32), to)
    away = cast(zero, FLOAT32)  # the differences are exact
    whole = cast(round_(maximum(minimum(x, high - away), low - away)), INT32)
    return cast(whole + cast(zero, INT32), to)


@operator
def quantize(
    X: Tensor, scale: Tensor, *zero: Tensor, axis: int = 1, block: int = 0,
    dtype: str | DType = "uint8", precision: str | DType | None = None, name: str = "quantize",
) -> Tensor:  # fmt: skip
    """round(x / scale) + zero, as `dtype`. Scale and zero point are one number, a vector along
    `axis`, or one number for each `block` of elements along it. The quotient is rounded to
    `precision`, which is that of the scale if nothing is said.
    """
    to, held = _small(dtype), dtype_named(precision or scale.dtype)
    if not held.is_float:
        raise ExpressionError(f"precision is {held}; it must be a float")
    by = _spread("scale", scale, X, axis, block)
    at = [_spread("zero", z, X, axis, block) for z in zero]

    def body(*i: Value) -> Value:
        quotient = cast(widen(cast(X[i], held)) / widen(cast(by(i), held)), held)
        return _saturated(widen(quotient), at[0](i) if at else None, to)

    return compute(X.shape_ints, body, name=name)


@operator
def dequantize(
    X: Tensor, scale: Tensor, *zero: Tensor, axis: int = 1, block: int = 0,
    dtype: str | DType | None = None, name: str = "dequantize",
) -> Tensor:  # fmt: skip
    """(x - zero) * scale, in the dtype of the scale or in `dtype`; the rest as in quantize."""
    if not X.dtype.is_int:
        raise ExpressionError(f"X is {X.dtype}; it must be of integers")
    by = _spread("scale", scale, X, axis, block)
    at = [_spread("zero", z, X, axis, block) for z in zero]
    exact = INT32 if X.dtype.bits < 32 else FLOAT32

    def body(*i: Value) -> Value:
        whole = cast(X[i], exact)
        if at:
            whole = whole - cast(at[0](i), exact)
        return cast(cast(whole, FLOAT32) * cast(by(i), FLOAT32), dtype or scale.dtype)

    return compute(X.shape_ints, body, name=name)


@operator
def to_integers(
    X: Tensor, scale: Tensor, zero: Tensor, dtype: str | DType = "uint8", name: str = "to_integers"
) -> Tensor:
    """quantize with one scale and zero point for all elements, so that the order of its dimensions
    does not matter.
    """
    return _alike(quantize(X, scale, zero, dtype=dtype, name=name), scale, zero)


@operator
def to_reals(X: Tensor, scale: Tensor, zero: Tensor, name: str = "to_reals") -> Tensor:
    """dequantize in the same way."""
    return _alike(dequantize(X, scale, zero, name=name), scale, zero)


def _alike(out: Tensor, *terms: Tensor) -> Tensor:
    for t in terms:
        if t.ndim > 1 or any(e != ONE for e in t.shape_ints):
            raise ExpressionError(f"{t!r} must be one number for all elements")
    return out


@operator
def quantization_range(X: Tensor, name: str = "quantization") -> tuple[Tensor, Tensor]:
    """The scale (float32) and zero point (uint8), each of rank 0, with which 0 and all of X fit
    into uint8.
    """
    if X.dtype is not FLOAT32 or any(e.const == 0 for e in X.shape_ints):
        raise ExpressionError(f"X is {X!r}; it must be of float32, and not empty")
    over = [reduce_axis(e, name="k") for e in X.shape_ints]
    again = [reduce_axis(e, name="k") for e in X.shape_ints]

    def extreme(join: Callable[..., Value], axes: list[Value], end: str) -> Tensor:
        def body() -> Value:
            return join(X[tuple(axes)], axis=axes) if axes else X[()]

        return compute((), body, name=f"{name}_{end}")

    low, high = extreme(amin, list(over), "min"), extreme(amax, list(again), "max")

    def scale_of() -> Value:
        top, bottom = maximum(high[()], 0.0), minimum(low[()], 0.0)
        return where(top == bottom, 1.0, top - bottom) / 255.0

    scale = compute((), scale_of, name=f"{name}_scale")

    def zero_of() -> Value:
        place = 0.0 - minimum(low[()], 0.0) / scale[()]
        return _saturated(place, None, dtype_named("uint8"))

    zero = compute((), zero_of, name=f"{name}_zero")
    return scale, zero


@operator
def weighted_sum(
    A: Tensor, B: Tensor, of_a: Tensor, of_b: Tensor, shift: Tensor, *zero: Tensor,
    dtype: str | DType = "uint8", name: str = "weighted_sum",
) -> Tensor:  # fmt: skip
    """round(a * of_a + b * of_b + shift) + zero as `dtype`: the sum of two quantised tensors of one
    shape, if the factors are their scales by that of the result, and the shift is what remains of
    the other zero points. An even zero point may be part of the shift.
    """
    to = _small(dtype)
    if A.shape_ints != B.shape_ints:
        raise ExpressionError(
            f"A has shape {show_shape(A.shape)}, B {show_shape(B.shape)}; they must be equal"
        )
    _alike(A, of_a, of_b, shift, *zero)

    def body(*i: Value) -> Value:
        one, two, rest = (cast(t[(0,) * t.ndim], FLOAT32) for t in (of_a, of_b, shift))
        whole = cast(B[i], FLOAT32) * two + (cast(A[i], FLOAT32) * one + rest)
        return _saturated(whole, zero[0][(0,) * zero[0].ndim] if zero else None, to)

    return compute(A.shape_ints, body, name=name)


@operator
def requantize(
    S: Tensor, factor: Tensor, *terms: Tensor, dtype: str | DType = "uint8", real: bool = False,
    name: str = "requantize",
) -> Tensor:  # fmt: skip
    """round(s * factor + rest) + zero as `dtype`, of sums in int32; `terms` are the zero point and
    the rest, which may be left out, and all are broadcast. With `real`, these whole numbers are
    float32, for an operator in the same kernel.
    """
    to = _small(dtype)
    if len(terms) > 2:
        raise ExpressionError(f"{len(terms)} terms; there are a zero point and a rest")
    _need_fitting(S, **dict(zip(("factor", "zero", "rest"), (factor, *terms), strict=False)))

    def body(*i: Value) -> Value:
        scaled = cast(S[i], FLOAT32) * cast(read_broadcast(factor, i), FLOAT32)
        if len(terms) > 1:
            scaled = scaled + cast(read_broadcast(terms[1], i), FLOAT32)
        return _saturated(scaled, read_broadcast(terms[0], i) if terms else None, to, real)

    return compute(S.shape_ints, body, name=name)


@operator
def requantize_sum(
    S: Tensor, factor: Tensor, rest: Tensor, B: Tensor, of_b: Tensor, *zero: Tensor,
    dtype: str | DType = "uint8", name: str = "requantize_sum",
) -> Tensor:  # fmt: skip
    """round(s * factor + b * of_b + rest) + zero as `dtype`, of sums in int32 and quantised numbers
    b of their shape. The factor and the rest are broadcast. An even zero point may be part of the
    rest.
    """
    to = _small(dtype)
    _need_fitting(S, factor=factor, rest=rest)
    if S.shape_ints != B.shape_ints:
        raise ExpressionError(
            f"S has shape {show_shape(S.shape)}, B {show_shape(B.shape)}; they must be equal"
        )
    _alike(S, of_b, *zero)

    def body(*i: Value) -> Value:
        one, rest_ = (cast(read_broadcast(t, i), FLOAT32) for t in (factor, rest))
        other = cast(B[i], FLOAT32) * cast(of_b[(0,) * of_b.ndim], FLOAT32)
        whole = cast(S[i], FLOAT32) * one + (other + rest_)
        return _saturated(whole, zero[0][(0,) * zero[0].ndim] if zero else None, to)

    return compute(S.shape_ints, body, name=name)


@operator
def scaled_reals(S: Tensor, factor: Tensor, *rest: Tensor, name: str = "scaled_reals") -> Tensor:
    """s * factor + rest in float32, of sums in int32; the others are broadcast."""
    _need_fitting(S, factor=factor)
    for t in rest:
        _need_fitting(S, rest=t)

    def body(*i: Value) -> Value:
        scaled = cast(S[i], FLOAT32) * cast(read_broadcast(factor, i), FLOAT32)
        return scaled + cast(read_broadcast(rest[0], i), FLOAT32) if rest else scaled

    return compute(S.shape_ints, body, name=name)


@operator
def lookup(X: Tensor, table: Tensor, name: str = "lookup") -> Tensor:
    """table[x] for each byte x: any function of a quantised value. An int8 stands for its bits."""
    if X.dtype.bits != 8 or not X.dtype.is_int:
        raise ExpressionError(f"X is {X.dtype}; it must be int8 or uint8")
    if table.shape != (256,):
        raise ExpressionError(f"table has shape {show_shape(table.shape)}; it must be (256)")
    return compute(X.shape_ints, lambda *i: table[cast(X[i], "uint8")], name=name)


def _need_fitting(S: Tensor, **terms: Tensor) -> None:
    for what, t in terms.items():
        need_tensor(what, t)
        if broadcast_shape(S.shape_ints, t.shape_ints) != S.shape_ints:
            raise ExpressionError(
                f"{what} of shape {show_shape(t.shape)} does not fit S {show_shape(S.shape)}"
            )
