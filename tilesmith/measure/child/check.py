"""Compares a kernel's output with that of the oracle, and describes where they differ.

The tolerance follows from rounding. Let u be the roundoff of the coarsest type that is stored or
computed in, and K the number of terms of each sum. Rounding errors add up like a random walk, so
they grow like u * sqrt(K). After cancellation they are relative to the typical result, not to the
one at hand:

    |got - want| <= 8 * u * (8 + sum of sqrt(K)) * (|want| + rms of want)

Where inputs are whole numbers and the type holds all sums exactly, only one rounding of the result
is allowed. Integers must be equal, unless they are computed from floats: then rounding may change
one in a thousand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from tilesmith.expr.dynamic import below, loads_of
from tilesmith.expr.nodes import Binary, Cast, Const, Expr, Load, Select, Unary, children
from tilesmith.expr.walk import count_paths, fold, preorder
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import walk
from tilesmith.measure.child.task_arrays import TaskArrays
from tilesmith.task.inputs import coarsest_roundoff, needs_whole_numbers, num_terms, roundoff

Array = np.ndarray[Any, Any]

_FACTOR, _FIXED = 8.0, 8.0
_TIPPED_SHARE = 1e-3
_PIECE = 1 << 15  # elements that are compared at a time


@dataclass(frozen=True, slots=True)
class Tolerance:
    relative: float  # allowed error relative to |want|
    typical: float  # allowed error relative to the root mean square of want
    share: float  # share of integers that may differ


def tolerance(func: Function, signed: bool = True) -> Tolerance:
    """`signed`: inputs have both signs."""
    u = coarsest_roundoff(func)
    share = _TIPPED_SHARE if _computes_in_floats(func) else 0.0
    if needs_whole_numbers(func) and _is_exact(func, signed):
        return Tolerance(2 * u, 0.0, share)
    growth = _FIXED + sum(sqrt(num_terms(b)) for _, b in walk(func.body) if b.combiner)
    return Tolerance(_FACTOR * u * growth, _FACTOR * u * growth, share)


class Expected:
    """An output of the oracle, with the error that each element may have. Every run worker makes
    one, so that it holds no arrays of its own for floats of 32 or 64 bits.
    """

    def __init__(self, name: str, want: Array, allowed: Tolerance) -> None:
        self.name, self.want, self._allowed = name, want, allowed
        self._is_float = want.dtype.kind not in "biu"
        if not self._is_float:
            return
        # 16-bit floats are compared as 32-bit ones, because NumPy is slow with 16-bit ones.
        self._wide = want.astype(np.float32) if want.dtype.itemsize == 2 else want
        self._finite, squares, count = True, 0.0, 0
        for _, piece in _pieces(self._wide):
            finite = np.isfinite(piece)
            if not finite.all():
                self._finite, piece = False, piece[finite]
            squares += float(np.square(piece, dtype=np.float64).sum())
            count += piece.size
        rms = sqrt(squares / count) if count else 0.0
        self._least = allowed.typical * rms + float(np.finfo(self._wide.dtype).tiny)

    @property
    def limits(self) -> tuple[float, float] | None:
        """The error that each element may have: relative to it, and beside that. Integers have to
        be equal, or a few of them may differ. None if some are NaN or infinite.
        """
        if not self._is_float:
            return 0.0, 0.0
        return (self._allowed.relative, self._least) if self._finite else None

    def _limit(self, want: Array) -> Array:
        """The error that each of these elements may have."""
        limit = np.abs(want)
        limit *= want.dtype.type(self._allowed.relative)
        limit += want.dtype.type(self._least)
        return limit

    def differs(self, got: Array) -> str | None:
        """None, or the text that names the element with the largest error."""
        if self.want.size == 0:
            return None
        if not self._is_float:
            return self._differs_as_integer(got)
        if self._finite and self._is_near(got):
            return None
        with np.errstate(all="ignore"):
            error = np.abs(got.astype(self._wide.dtype, copy=False) - self._wide)
            bad = ~(error <= self._limit(self._wide))  # negated, so that NaN is bad
            if not self._finite:
                same = got.astype(self._wide.dtype, copy=False) == self._wide
                both = np.isnan(self._wide) & np.isnan(got.astype(self._wide.dtype, copy=False))
                bad &= ~(same | both)
        if not bad.any():
            return None
        excess = np.where(bad, np.where(np.isnan(error), np.inf, error), -1.0)
        return self._describe(got, excess, int(bad.sum()))

    def _is_near(self, got: Array) -> bool:
        """Whether all elements are right. A piece at a time stays in the caches, where comparing
        whole arrays of many MiB would mostly wait for new memory.
        """
        given, error = got.reshape(-1), np.empty(_PIECE, self._wide.dtype)
        with np.errstate(all="ignore"):
            for at, want in _pieces(self._wide):
                here = given[at].astype(want.dtype, copy=False)
                off = np.subtract(here, want, out=error[: len(want)])
                # What every element may have; false for NaN.
                if -self._least <= off.min() and off.max() <= self._least:
                    continue
                if not (np.abs(off, out=off) <= self._limit(want)).all():
                    return False
        return True

    def _differs_as_integer(self, got: Array) -> str | None:
        bad = got.view(np.uint8) != self.want.view(np.uint8) if got.dtype == bool else (
            got != self.want
        )  # fmt: skip
        count = int(bad.sum())
        if count == 0 or count <= self._allowed.share * self.want.size:
            return None
        gap = np.abs(got.astype(np.float64) - self.want.astype(np.float64))
        return self._describe(got, np.where(bad, gap, -1.0), count)

    def _describe(self, got: Array, excess: Array, count: int) -> str:
        at = np.unravel_index(int(np.argmax(excess)), self.want.shape)
        index = ", ".join(str(int(i)) for i in at)
        return (
            f"{self.name}[{index}] is {got[at]}, not {self.want[at]}: max error "
            f"{float(excess[at]):.3g} at index [{index}]; {count} of {self.want.size} elements are "
            "off"
        )


def _pieces(a: Array) -> Iterator[tuple[slice, Array]]:
    flat = a.reshape(-1)
    for start in range(0, flat.size, _PIECE):
        at = slice(start, start + _PIECE)
        yield at, flat[at]


def expected_outputs(task: TaskArrays) -> dict[str, Expected]:
    """By the names of the outputs."""
    floats = [x for x in task.inputs if x.dtype.kind not in "biu" and x.size]
    allowed = tolerance(task.func, signed=all((x < 0).any() for x in floats))
    return {
        b.name: Expected(b.name, want, allowed)
        for b, want in zip(task.func.outputs, task.outputs, strict=True)
    }


def _computes_in_floats(func: Function) -> bool:
    """Whether any float is computed, rather than only moved or compared."""

    def computes(e: Expr) -> bool:
        return any(
            x.dtype.is_float and isinstance(x, Binary | Unary | Cast) for x in preorder(e, children)
        )

    return any(
        computes(w.value) or (b.combiner is not None and b.combiner.op not in ("max", "min"))
        for _, b in walk(func.body)
        for w in b.writes
        if w.value.dtype.is_float or computes(w.value)
    )


def _factors(e: Expr) -> tuple[Expr, ...]:
    return children(e) if isinstance(e, Cast) or (isinstance(e, Binary) and e.op == "mul") else ()


def _is_exact(func: Function, signed: bool) -> bool:
    """Whether every value is a whole number that its type holds exactly, in any order of summation,
    for the whole-number inputs of `example_inputs`.
    """
    inputs = {b.name for b in func.inputs}
    largest: dict[str, float] = dict.fromkeys(inputs, 1.0 if signed else 2.0)

    def bound(e: Expr, inner: list[float]) -> float:
        """An upper bound of |e| from those of its operands; infinite if it may be fractional."""
        match e:
            case Const(value=v):
                return abs(float(v)) if float(v).is_integer() else float("inf")
            case Load(buffer=b):
                return largest.get(b, float("inf"))
            case Binary(op="add" | "sub"):
                return inner[0] + inner[1]
            case Binary(op="mul"):
                return inner[0] * inner[1]
            case Binary(op="max" | "min") | Select():
                return max(inner[-2:])
            case Cast() | Unary(op="neg" | "abs"):
                return inner[0]
            case _:
                return float("inf")

    def changes_sign(e: Expr) -> bool:
        """Whether e has a factor that is a plain input read once, with random sign."""
        paths = count_paths(e, below)
        read = Counter[str]()
        for load in loads_of(e):
            read[load.buffer] += paths[id(load)]
        return signed and any(
            isinstance(f, Load) and f.buffer in inputs and read[f.buffer] == 1
            for f in preorder(e, _factors)
        )

    for _, b in walk(func.body):
        for w in b.writes:
            most = fold(w.value, children, bound)
            if b.combiner is not None:
                if b.combiner.op not in ("add", "max", "min"):
                    return False
                if b.combiner.op == "add":
                    # A random walk of K steps ends beyond 5 * sqrt(K) once in a million.
                    n = num_terms(b)
                    most *= min(n, 5 * sqrt(n)) if changes_sign(w.value) else n
            u = roundoff(w.value.dtype)
            if not most <= (1 / u if u else 2.0**31):
                return False
            largest[w.buffer] = max(most, largest.get(w.buffer, 0.0))
    return True
