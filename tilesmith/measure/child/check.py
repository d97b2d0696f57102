"""Compares a kernel's output with that of the oracle, and describes where they differ.

Each element has a limit of its own, which ir/error_bounds.py reckons from what is computed in which
type. A limit of 0 asks for equality, and NaN allows anything. An infinity or NaN that the oracle
has must be there. Limits are kept as the upper half of a float32, rounded up: 16 bits an element.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tilesmith.ir.error_bounds import Bounded
from tilesmith.ir.function import Function

Array = np.ndarray[Any, Any]
Bits = np.ndarray[Any, np.dtype[np.uint16]]

_PIECE = 1 << 15  # elements that are compared at a time
_SAMPLE = 1 << 16  # elements from which a draw is judged


def to_bits(limit: Array) -> Bits:
    """The least 16-bit limits that are not below these."""
    words = np.ascontiguousarray(limit, np.float32).view(np.uint32)
    up = (words + np.uint32(0xFFFF)) >> np.uint32(16)
    # Adding must not turn NaN into something else.
    return np.where(np.isnan(limit), np.uint32(0x7FC0), up).astype(np.uint16)


def from_bits(bits: Bits) -> Array:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def share_that_tells(result: Bounded) -> float:
    """The share of the elements at which a wrong value would be seen: numbers with a limit that is
    small beside them or beside the others. Little of it if nearly all are the same.
    """
    flat = result.value.reshape(-1)
    if flat.size == 0:
        return 1.0
    step = -(-flat.size // _SAMPLE)
    value = flat[::step].astype(np.float64)
    limit: Any = 0.0 if result.error is None else result.error.reshape(-1)[::step]
    finite = np.isfinite(value)
    if not finite.any():
        return 0.0
    with np.errstate(over="ignore"):
        typical = np.sqrt(np.square(value[finite]).mean())
    tells = finite & (limit <= 0.25 * np.maximum(np.abs(value), typical))
    low, high = value[finite].min(), value[finite].max()
    at_low, at_high = np.mean(value == low), np.mean(value == high)
    # Most are clipped at both ends, or, of truth values, one is rare.
    most = (
        max(at_low, at_high) if flat.dtype.kind in "biu" and high - low <= 1 else at_low + at_high
    )
    is_flat = value.size > 8 and most > 0.95
    return float(tells.mean()) * (0.25 if is_flat else 1.0)


class Expected:
    """An output of the oracle, with the error that each element may have. Every run worker makes
    one, so that it holds no arrays of its own for floats of 32 or 64 bits.
    """

    def __init__(self, name: str, want: Array, limits: Bits) -> None:
        self.name, self.want, self.limits = name, want, limits
        self.is_exact = not limits.any()
        self._is_float = want.dtype.kind not in "biu"
        # 16-bit floats are compared as 32-bit ones, because NumPy is slow with 16-bit ones.
        is_small = want.dtype.itemsize <= (4 if self._is_float else 2)
        self._wide = np.dtype(np.float32 if is_small else np.float64)

    def differs(self, got: Array) -> str | None:
        """None, or the text that names the element with the largest error."""
        if self.want.dtype == bool:  # a byte that is neither 0 nor 1 is wrong
            got = got.view(np.uint8)
        if self.is_exact and not self._is_float and np.array_equal(got, self.want):
            return None
        given, want, bits = got.reshape(-1), self.want.reshape(-1), self.limits.reshape(-1)
        count, worst = 0, (-1.0, 0)
        with np.errstate(all="ignore"):
            for at in _pieces(want.size):
                off, bad = self._off(given[at], want[at], bits[at])
                if bad is None:
                    continue
                count += int(bad.sum())
                excess = np.where(bad, np.where(np.isnan(off), np.inf, off), -1.0)
                k = int(np.argmax(excess))
                if excess[k] > worst[0]:
                    worst = float(excess[k]), at.start + k
        return None if count == 0 else self._describe(got, *worst, count)

    def _off(self, given: Array, want: Array, bits: Bits) -> tuple[Array, Array | None]:
        """The errors in a piece, and where they are too large; None if nowhere. A piece at a time
        stays in the caches, where comparing whole arrays would mostly wait for new memory.
        """
        here, right = (x.astype(self._wide, copy=False) for x in (given, want))
        off = np.subtract(here, right)
        np.abs(off, out=off)
        limit = np.float32(0.0) if self.is_exact else from_bits(bits)
        if self._is_float:
            good = off <= limit  # false for NaN
            if not good.all():
                good |= (here == right) | (np.isnan(here) & np.isnan(right)) | np.isnan(limit)
        else:  # large ones that differ may be equal as floats
            good = (given == want) | ((off <= limit) & (limit > 0))
        return off, None if good.all() else ~good

    def _describe(self, got: Array, error: float, where: int, count: int) -> str:
        at = np.unravel_index(where, self.want.shape)
        index = ", ".join(str(int(i)) for i in at)
        return (
            f"{self.name}[{index}] is {got[at]}, not {self.want[at]}: max error {error:.3g} at "
            f"index [{index}]; {count} of {self.want.size} elements are off"
        )


def _pieces(size: int) -> Iterator[slice]:
    for start in range(0, size, _PIECE):
        yield slice(start, start + _PIECE)


def expected_outputs(
    func: Function, outputs: list[Array], limits: list[Bits]
) -> dict[str, Expected]:
    """By the names of the outputs."""
    return {
        b.name: Expected(b.name, want, limit)
        for b, want, limit in zip(func.outputs, outputs, limits, strict=True)
    }
