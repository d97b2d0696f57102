"""Ranges of values that calibration saw, and the scales that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, isfinite

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.graph.graph import Array

_STEPS = 255  # between the smallest and the largest integer of 8 bits
_LARGEST = 127  # of symmetric weights


@dataclass(frozen=True, slots=True)
class Scale:
    """A real number x stands as round(x / scale) + zero, in an integer type of 8 bits."""

    scale: Array  # float32; of rank 0, or in a shape that is broadcast to weights
    zero: int
    dtype: str

    def rounded(self, x: Array) -> Array:
        """The numbers that integers stand for, instead of x."""
        return np.asarray((self.integers(x) - np.float32(self.zero)) * self.scale, np.float32)

    def integers(self, x: Array) -> Array:
        limits = np.iinfo(self.dtype)
        whole = np.rint(x / self.scale) + np.float32(self.zero)
        return np.asarray(np.clip(whole, limits.min, limits.max))


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the largest number of a value; infinite or NaN if a number was."""

    low: float
    high: float

    @property
    def is_finite(self) -> bool:
        return isfinite(self.low) and isfinite(self.high)

    @property
    def is_zero(self) -> bool:
        """Whether nothing but 0 was seen, from which no scale follows."""
        return self.low == self.high == 0

    def joined(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high))

    def scale(self, symmetric: bool) -> Scale:
        """0 is always among the numbers: padding and activations hold it. Symmetric scales have no
        zero point.
        """
        low, high = min(self.low, 0.0), max(self.high, 0.0)
        if symmetric and low < 0:
            return Scale(_float(max(-low, high) / _LARGEST), 0, "int8")
        scale = _float((high - low) / _STEPS)
        return Scale(scale, round(-low / float(scale)), "uint8")


def _float(scale: float) -> Array:
    """As float32, and never too small to divide by: such a value holds nothing but 0."""
    found = np.float32(scale)
    return np.asarray(found if found >= np.finfo(np.float32).tiny else 1.0, np.float32)


def weight_scale(w: Array, axis: int) -> Scale:
    """Symmetric, with one scale for each place along an axis."""
    others = tuple(d for d in range(w.ndim) if d != axis)
    most = np.abs(w).max(axis=others, keepdims=True, initial=0).astype(np.float32) / _LARGEST
    scale = np.where(most >= np.finfo(np.float32).tiny, most, np.float32(1))
    return Scale(scale.astype(np.float32), 0, "int8")


class Extremes:
    """The range of a value over several arrays, without the share of its numbers beyond a
    percentile at either end.
    """

    def __init__(self, percentile: float, arrays: int) -> None:
        """`arrays` is how many there will be, all of one size."""
        self._beyond, self._arrays = 1 - percentile / 100, arrays
        self._kept: tuple[list[Array], list[Array]] = [], []  # least and largest numbers of each

    def add(self, a: Array) -> None:
        count = min(a.size, self._rank(a.size * self._arrays) + 1)
        flat = a.reshape(-1)
        if not np.isfinite(flat).all():
            flat, count = np.array([-inf, inf], np.float32), 1
        if count == 1:
            ends = flat.min(keepdims=True), flat.max(keepdims=True)
        else:
            low = np.partition(flat, count - 1)[:count]
            high = np.partition(flat, flat.size - count)[-count:]
            ends = low, high
        for kept, end in zip(self._kept, ends, strict=True):
            kept.append(end)
        self._size = a.size

    def range(self) -> Range:
        rank = self._rank(self._size * len(self._kept[0]))
        low, high = (np.sort(np.concatenate(kept)) for kept in self._kept)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            return Range(-inf, inf)
        at = min(rank, low.size - 1)
        return Range(float(low[at]), float(high[-1 - at]))

    def _rank(self, count: int) -> int:
        """How many of `count` numbers are left out at either end."""
        return ceil(count * self._beyond - 1e-9) if self._beyond else 0


def joined(ranges: Sequence[Range]) -> Range:
    found = ranges[0]
    for one in ranges[1:]:
        found = found.joined(one)
    return found
