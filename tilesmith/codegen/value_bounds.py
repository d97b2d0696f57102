"""What is known of the values of an expression without running it: limits that they are within, and
whether one can be NaN. Back ends leave out the repair of what cannot happen.
"""

from __future__ import annotations

from math import inf, isfinite, isnan

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DType
from tilesmith.expr.nodes import Binary, Cast, Const, Expr, Unary

_DEPTH = 8  # of the expression that is looked at; deeper parts count as unknown
_EXACT = 24  # bits of integers that float32 represents


@dataclass(frozen=True, slots=True)
class Bounds:
    """Every value that is not NaN lies in [low, high]; `number`: none is NaN."""

    low: float = -inf
    high: float = inf
    number: bool = False

    def is_within(self, low: float, high: float) -> bool:
        return low <= self.low and self.high <= high


def bounds_of(e: Expr, depth: int = _DEPTH) -> Bounds:
    d = e.dtype
    if not d.is_float:
        return _of_integers(d)
    if depth == 0:
        return Bounds()
    match e:
        case Const(value=value):
            x = float(value)
            return Bounds() if isnan(x) else Bounds(x, x, number=True)
        case Cast(x=x) if not x.dtype.is_float:
            exact = d.bits >= 32 and x.dtype.bits <= _EXACT
            return _of_integers(x.dtype) if exact else Bounds()
        case Unary(op="round", x=x):
            inner = bounds_of(x, depth - 1)
            if not isfinite(inner.low) or not isfinite(inner.high):
                return Bounds(number=inner.number)
            return Bounds(round(inner.low), round(inner.high), inner.number)
        case Binary(op="add" | "sub" | "max" | "min" as op, a=a, b=b):
            return _joined(op, bounds_of(a, depth - 1), bounds_of(b, depth - 1), d)
    return Bounds()


def _of_integers(d: DType) -> Bounds:
    return Bounds(float(d.lowest()), float(d.highest()), number=True)


def _joined(op: str, a: Bounds, b: Bounds, d: DType) -> Bounds:
    number = a.number and b.number
    match op:
        case "max":
            return Bounds(max(a.low, b.low), max(a.high, b.high), number)
        case "min":
            return Bounds(min(a.low, b.low), min(a.high, b.high), number)
    if op == "sub":
        b = Bounds(-b.high, -b.low, b.number)
    low, high = a.low + b.low, a.high + b.high
    # Sums of small whole numbers are exact; others could be rounded beyond their limits.
    ends = (a.low, a.high, b.low, b.high)
    small = all(isfinite(x) and x == int(x) and abs(x) < 2 ** (_EXACT - 2) for x in ends)
    return Bounds(low, high, number) if small and d.bits >= 32 else Bounds()
