"""Element types, interned by name such as "float32", with their NumPy dtype and promotion rules."""

from __future__ import annotations

from functools import cache
from math import inf, isinf, isnan
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ExpressionError, TargetError
from tilesmith.base.given import checks_given


@checks_given(error=TargetError)
@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type. There is one object per type, so `is` and `==` agree."""

    name: str
    kind: str  # "f" float, "i" signed, "u" unsigned, "b" bool
    bits: int  # of one element in memory

    @property
    def nbytes(self) -> int:
        """Bytes of an element in an array."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        """Whether it is an integer type."""
        return self.kind in "iu"

    @property
    def digits(self) -> int:
        """Binary digits of a float, with the leading one."""
        return 8 if self.name == "bfloat16" else {16: 11, 32: 24, 64: 53}[self.bits]

    @property
    def roundoff(self) -> float:
        """Half the distance from 1 to the next number; 0 for integers."""
        return float(2.0**-self.digits) if self.is_float else 0.0

    @property
    def largest(self) -> float:
        """The largest finite number of a float."""
        exponent = {"float16": 15, "float64": 1023}.get(self.name, 127)
        return float((2.0 - 2.0 ** (1 - self.digits)) * 2.0**exponent)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The same type of NumPy (or of ml_dtypes)."""
        return _numpy(self.name)

    def lowest(self) -> int | float | bool:
        """The smallest value: the identity of a maximum."""
        if self.is_float:
            return float("-inf")
        if self.kind == "b":
            return False
        return -(1 << self.bits - 1) if self.kind == "i" else 0

    def highest(self) -> int | float | bool:
        """The largest value: the identity of a minimum."""
        if self.is_float:
            return float("inf")
        if self.kind == "b":
            return True
        return (1 << self.bits - 1) - 1 if self.kind == "i" else (1 << self.bits) - 1

    def wrap(self, value: int | float | bool) -> int | float | bool:
        """A Python number as this dtype represents it. Integers wrap around, and floats that are
        too large become infinite. A float becomes the nearest integer towards zero that fits; NaN
        becomes 0.
        """
        if self.kind == "f":
            return self._finite(value)
        if self.kind == "b":
            return bool(value)
        if isinstance(value, float) and not self.lowest() <= value <= self.highest():
            if isnan(value):
                return 0
            return self.lowest() if value < 0 else self.highest()
        low = int(value) & ((1 << self.bits) - 1)
        return low - (1 << self.bits) if self.kind == "i" and low >> (self.bits - 1) else low

    def _finite(self, value: int | float | bool) -> float:
        """Infinite if a cast would make it so; otherwise unchanged, not rounded."""
        try:
            number = float(value)
        except OverflowError:  # an integer beyond float64
            return inf if value > 0 else -inf
        with np.errstate(over="ignore"):
            held = np.float64(number).astype(np.float32).astype(self.numpy)
            if self.name in ("float16", "float64"):
                held = np.float64(number).astype(self.numpy)
        return float(held) if isinf(float(held)) else number

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (self.name,)


_ALL = {
    d.name: d
    for d in (
        DType("float16", "f", 16),
        DType("bfloat16", "f", 16),
        DType("float32", "f", 32),
        DType("float64", "f", 64),
        DType("int8", "i", 8),
        DType("int16", "i", 16),
        DType("int32", "i", 32),
        DType("int64", "i", 64),
        DType("uint8", "u", 8),
        DType("uint16", "u", 16),
        DType("uint32", "u", 32),
        DType("uint64", "u", 64),
        DType("bool", "b", 8),
    )
}
FLOAT16, BFLOAT16, FLOAT32, FLOAT64 = (
    _ALL[n] for n in ("float16", "bfloat16", "float32", "float64")
)
INT8, INT32, INT64, UINT8, BOOL = (_ALL[n] for n in ("int8", "int32", "int64", "uint8", "bool"))
DTYPES = tuple(_ALL)


@checks_given(error=TargetError)
def dtype(name: str | DType | np.dtype[Any] | type) -> DType:
    """The DType of a name, a NumPy dtype or a NumPy scalar type."""
    if isinstance(name, DType):
        return name
    key = name if isinstance(name, str) else np.dtype(name).name
    try:
        return _ALL[key]
    except KeyError:
        raise ExpressionError(f"unknown dtype {key!r}; known are {', '.join(_ALL)}") from None


@cache
def _numpy(name: str) -> np.dtype[Any]:
    if name == "bfloat16":  # NumPy itself has none
        import ml_dtypes

        twin: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return twin
    return np.dtype(name)


def promote(a: DType, b: DType) -> DType:
    """The dtype of `a + b`. As in NumPy, except that an integer never widens a float: int32 with
    float16 is float16. And no two integers become a float: int64 with uint64 is int64, which wraps.
    """
    if a is b:
        return a
    if a.kind == "b" or b.kind == "b":
        return b if a.kind == "b" else a
    if a.is_float and b.is_float:
        if a.bits == b.bits:  # float16 with bfloat16: neither represents the other
            return FLOAT32
        return a if a.bits > b.bits else b
    if a.is_float or b.is_float:
        return a if a.is_float else b
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind == "i" else (b, a)
    bits = max(signed.bits, min(2 * unsigned.bits, 64))
    return _ALL[f"int{bits}"]
