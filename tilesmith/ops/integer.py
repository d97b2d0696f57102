"""Operators of integers: divisions, remainders, powers and bits; tensors in, a tensor of their
joint shape out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilesmith.base.errors import ExpressionError
from tilesmith.expr import functions, values
from tilesmith.expr.dsl import Tensor
from tilesmith.expr.values import Number, Value
from tilesmith.ops.arguments import operator, stated
from tilesmith.ops.elementwise import OfTwo, Term, each, joined


@operator
def trunc_divide(A: Term, B: Term, name: str = "trunc_divide") -> Tensor:
    """A / B rounded towards 0, as C divides integers."""
    return joined(A, B, functions.trunc_divide, name)


@operator
def floor_divide(A: Term, B: Term, name: str = "floor_divide") -> Tensor:
    """A / B rounded down, as in Python. Of floats it is the whole number that the remainder leaves:
    1.0 // 0.1 is 9, though 1.0 / 0.1 rounds to 10.
    """

    def f(a: Value | Number, b: Value | Number) -> Value:
        va, vb = values.as_value(a), values.as_value(b)
        if not (va.dtype.is_float or vb.dtype.is_float):
            return va // vb
        rest = functions.fmod(a, b)
        whole = (va - rest) / vb  # within a rounding of a whole number
        less = (rest != 0) & ((rest < 0) != (vb < 0))
        near = functions.round_(values.where(less, whole - 1, whole))
        return values.where(vb == 0, va / vb, near)

    return joined(A, B, f, name)


@operator
def remainder(A: Term, B: Term, name: str = "remainder") -> Tensor:
    """A - floor(A / B) * B, with the sign of B, as in Python. Floats give it exactly."""

    def f(a: Value | Number, b: Value | Number) -> Value:
        va, vb = values.as_value(a), values.as_value(b)
        if not (va.dtype.is_float or vb.dtype.is_float):
            return values.binary("mod", a, b)
        # A quotient would be rounded; fmod is exact, and lacks B only where the signs differ.
        rest = functions.fmod(a, b)
        zero = values.cast(values.where(vb < 0, -0.0, 0.0), rest.dtype)
        return values.where(rest == 0, zero, values.where((rest < 0) == (vb < 0), rest, rest + b))

    return joined(A, B, f, name)


@operator
def fmod(A: Term, B: Term, name: str = "fmod") -> Tensor:
    """A - trunc(A / B) * B, with the sign of A, as in C."""
    return joined(A, B, functions.fmod, name)


@operator
def integer_power(A: Term, B: Term, name: str = "integer_power") -> Tensor:
    """A ** B of integers in the dtype of A, exact but that it wraps around; a negative exponent
    gives what 1 / A ** -B is towards 0.
    """

    def f(a: Value, b: Value) -> Value:
        base = values.as_value(a)
        e = values.cast(values.as_value(b), "int64")
        # Of 0, 1 and -1 a large power is one of the same parity; all others have wrapped by then.
        left = values.where(e < 64, e, 62 + e % 2)
        out, square = values.where(left % 2 == 1, base, 1), base
        for _ in range(5):
            left, square = left // 2, square * square
            out = values.where(left % 2 == 1, out * square, out)
        if base.dtype.kind == "u":
            inverse = values.where(base == 1, base, 0)
        else:
            odd = values.where(e % 2 == 0, 1, base)
            inverse = values.where((base == 1) | (base == -1), odd, 0)
        return values.cast(values.where(e < 0, inverse, out), base.dtype)

    return joined(A, B, f, name)


def _need_ints(*terms: Term) -> None:
    for x in terms:
        if isinstance(x, Tensor) and not x.dtype.is_int:
            raise ExpressionError(f"an operand is {x.dtype}; it must be of an integer dtype")


def _of_bits(name: str, f: Callable[[Any, Any], Value], doc: str) -> OfTwo:
    label = name

    def made(A: Term, B: Term, name: str = label) -> Tensor:
        _need_ints(A, B)
        return joined(A, B, f, name)

    return stated(made, label, doc)


bitwise_and = _of_bits("bitwise_and", functions.bitwise_and, "The bitwise and of integers.")
bitwise_or = _of_bits("bitwise_or", functions.bitwise_or, "The bitwise or of integers.")
bitwise_xor = _of_bits(
    "bitwise_xor", functions.bitwise_xor, "The bitwise exclusive or of integers."
)
left_shift = _of_bits(
    "left_shift", functions.left_shift, "A << B. A shift by the width or more leaves 0."
)
right_shift = _of_bits(
    "right_shift",
    functions.right_shift,
    "A >> B: signed integers keep their sign. A shift by the width or more leaves 0, or -1.",
)


@operator
def bitwise_not(X: Tensor, name: str = "bitwise_not") -> Tensor:
    """Integers with every bit inverted."""
    _need_ints(X)
    return each(X, functions.bitwise_not, name)
