"""Elements of an array at all points of a grid, as a view, where each index depends on one axis of
the grid at most. Gathering them by arrays of indices would take many times as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilesmith.expr.ints import Int

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a grid: its number, and the values of its iterator."""

    number: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Cut:
    """The positions start, start + step, ... in a dimension of an array, one for each value of an
    iterator; a single position if `axis` is None.
    """

    axis: int | None
    start: int
    step: int
    count: int

    @property
    def last(self) -> int:
        return self.start + self.step * (self.count - 1)

    def is_within(self, extent: int) -> bool:
        return min(self.start, self.last) >= 0 and max(self.start, self.last) < extent

    @property
    def slice(self) -> slice:
        end = self.last + (1 if self.step > 0 else -1)
        return slice(self.start, end if end >= 0 else None, self.step)

    def positions(self, extent: int) -> Array:
        """Clipped to the dimension."""
        return np.clip(self.start + self.step * np.arange(self.count), 0, max(extent - 1, 0))


def cuts_of(index: Sequence[Int], axes: Mapping[str, Axis]) -> list[Cut] | None:
    """One for each dimension. None if an index is not affine in one iterator, or if two dimensions
    depend on the same one.
    """
    out: list[Cut] = []
    for p in index:
        offset, found = 0, None
        for m, c in p.terms.items():
            if not m:
                offset = c
            elif len(m) == 1 and isinstance(m[0], str) and m[0] in axes and found is None:
                found = axes[m[0]], c
            else:
                return None
        if found is None:
            out.append(Cut(None, offset, 1, 1))
            continue
        axis, c = found
        if any(cut.axis == axis.number for cut in out):
            return None
        out.append(Cut(axis.number, offset + c * axis.start, c, axis.stop - axis.start))
    return out


def view(a: Array, cuts: Sequence[Cut], rank: int) -> Array:
    """The elements on a grid of this rank; axes that nothing depends on have length 1. What lies
    outside of the array is clipped to it, which makes a copy.
    """
    inside = [cut.is_within(n) for cut, n in zip(cuts, a.shape, strict=True)]
    cut = [c.slice if ok else slice(None) for c, ok in zip(cuts, inside, strict=True)]
    a = a[tuple(cut)] if cut else a
    for d, (c, ok) in enumerate(zip(cuts, inside, strict=True)):
        if not ok:
            a = a.take(c.positions(a.shape[d]), axis=d)
    dims = {c.axis: d for d, c in enumerate(cuts) if c.axis is not None}
    single = [d for d, c in enumerate(cuts) if c.axis is None]
    a = a.transpose(*(dims[k] for k in sorted(dims)), *single)
    at = tuple(slice(None) if k in dims else None for k in range(rank))
    return a[(*at, ..., *(0 for _ in single))]
