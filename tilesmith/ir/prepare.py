"""What a caller does to its array of a parameter ahead of time, as `Buffer.prepared`: steps that
are applied in order, before the array is put into the buffer's memory layout (`pack`).

`with_step` is the one place that decides the order: dimensions are merged, then multiplied by
matrices, then zeros are appended, then sums. The stored form has a place for each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.expr.ints import Int, of

Array = np.ndarray[Any, Any]
Shape = tuple[Int, ...]
Matrix = tuple[tuple[float, ...], ...]  # a tuple of rows

_PIECE = 1 << 15  # elements that are multiplied at a time: the results stay in the cache
SUM_DIGITS = 4  # to the base 256, of a sum that is appended to a constant


@dataclass(frozen=True, slots=True)
class Merge:
    """Neighbouring dimensions of the array become one, which moves no element. An output is given
    back in the shape `given`.
    """

    given: Shape

    def before(self, _: Shape) -> Shape:
        """The shape before the step, from that behind it."""
        return self.given

    def apply(self, a: Array, shape: Shape) -> Array:
        """The array after the step, which then has that shape."""
        return a.reshape([n.number for n in shape])

    def __str__(self) -> str:
        return f"merged from [{', '.join(map(str, self.given))}]"


@dataclass(frozen=True, slots=True)
class Basis:
    """Multiplies the array by matrices, each along a dimension; the product is rounded once."""

    matrices: tuple[tuple[int, Matrix], ...]

    def before(self, shape: Shape) -> Shape:
        columns = {d: of(len(rows[0])) for d, rows in self.matrices}
        return tuple(columns.get(d, n) for d, n in enumerate(shape))

    def apply(self, a: Array, _: Shape) -> Array:
        extents = {d: len(rows) for d, rows in self.matrices}
        others = [d for d in range(a.ndim) if d not in extents]
        out = np.empty([extents.get(d, n) for d, n in enumerate(a.shape)], a.dtype)
        if not others or not a.size:
            out[...] = self._product(a)
            return out
        axis, count = others[0], a.shape[others[0]]
        step = max(1, _PIECE * count // a.size)
        for first in range(0, count, step):
            at = (*[slice(None)] * axis, slice(first, first + step))
            out[at] = self._product(a[at])
        return out

    def _product(self, a: Array) -> Array:
        exact = a.astype(np.float64, order="C")
        for d, rows in self.matrices:
            before, after = exact.shape[:d], exact.shape[d + 1 :]
            flat = exact.reshape(prod(before), exact.shape[d], prod(after))
            exact = (np.array(rows) @ flat).reshape(*before, len(rows), *after)
        return exact

    def __str__(self) -> str:
        return f"in the basis of {', '.join(f'd{d}' for d, _ in self.matrices)}"


@dataclass(frozen=True, slots=True)
class AppendZeros:
    """Appends so many zeros along each dimension."""

    counts: tuple[int, ...]

    def before(self, shape: Shape) -> Shape:
        return tuple(n - zeros for n, zeros in zip(shape, self.counts, strict=True))

    def apply(self, a: Array, _: Shape) -> Array:
        return np.pad(a, [(0, n) for n in self.counts])

    def __str__(self) -> str:
        return f"with {self.counts} zeros behind"


@dataclass(frozen=True, slots=True)
class AppendSums:
    """Sums an array of 8 bits over dimensions, zeros included. The sums, in digits to the base 256,
    are appended to the first of these dimensions, at 0 of the others.
    """

    over: tuple[int, ...]

    def before(self, shape: Shape) -> Shape:
        return tuple(n - SUM_DIGITS if d == self.over[0] else n for d, n in enumerate(shape))

    def apply(self, a: Array, _: Shape) -> Array:
        over = self.over
        rest = a.sum(axis=over, keepdims=True, dtype=np.int64)
        shape = [SUM_DIGITS if d == over[0] else n for d, n in enumerate(a.shape)]
        added = np.zeros(shape, a.dtype)
        for k in range(SUM_DIGITS):
            digit = rest.astype(a.dtype)  # wraps, and a negative digit makes the next one larger
            at = [slice(k, k + 1) if d == over[0] else slice(1 if d in over else None)
                  for d in range(a.ndim)]  # fmt: skip
            added[tuple(at)] = digit
            rest = (rest - digit) >> 8
        return np.concatenate([a, added], axis=over[0])

    def __str__(self) -> str:
        return f"with sums over {', '.join(f'd{d}' for d in self.over)}"


Prepare = Merge | Basis | AppendZeros | AppendSums
_ORDER = (Merge, Basis, AppendZeros, AppendSums)


def with_step(prepared: Iterable[Prepare], step: Prepare) -> tuple[Prepare, ...]:
    """With a further step, in its place. Matrices join those along other dimensions; of the other
    kinds there is one, and a new one takes its place.
    """
    kept: list[Prepare] = []
    for old in prepared:
        if isinstance(old, Basis) and isinstance(step, Basis):
            step = Basis(tuple(sorted((dict(old.matrices) | dict(step.matrices)).items())))
        elif type(old) is not type(step):
            kept.append(old)
    return tuple(sorted((*kept, step), key=lambda s: _ORDER.index(type(s))))


def shape_before(prepared: tuple[Prepare, ...], shape: Shape) -> Shape:
    """The shape of the caller's array, from that behind all steps."""
    for step in reversed(prepared):
        shape = step.before(shape)
    return shape


def apply_all(prepared: tuple[Prepare, ...], a: Array, shape: Shape) -> Array:
    """The caller's array after all steps; `shape` is what it then has."""
    for k, step in enumerate(prepared, 1):
        a = step.apply(a, shape_before(prepared[k:], shape))
    return a


def to_json(prepared: tuple[Prepare, ...], integers: Callable[[Shape], list[Any]]) -> list[Any]:
    """[matrices, zeros, shape before merging, sums], without what is empty at the end."""
    out: list[Any] = [(), (), (), ()]
    for step in prepared:
        match step:
            case Basis(matrices=matrices):
                out[0] = matrices
            case AppendZeros(counts=counts):
                out[1] = counts
            case Merge(given=given):
                out[2] = integers(given)
            case AppendSums(over=over):
                out[3] = over
    while out and not out[-1]:
        out.pop()
    return out


def from_json(data: list[Any], integers: Callable[[Any], Shape]) -> tuple[Prepare, ...]:
    """What `to_json` gave. Raises a ValueError or TypeError for anything else."""
    stored: list[Any] = [*data, *[()] * (4 - len(data))]
    matrices, zeros, given, sums = stored
    steps: list[Prepare] = []
    if given:
        steps.append(Merge(integers(given)))
    if matrices:
        steps.append(Basis(tuple((_number(d), _matrix(rows)) for d, rows in matrices)))
    if zeros:
        steps.append(AppendZeros(tuple(map(_number, zeros))))
    if sums:
        steps.append(AppendSums(tuple(map(_number, sums))))
    return tuple(steps)


def _number(data: Any) -> int:
    if type(data) is not int:
        raise ValueError(f"{data!r} stands where a number is due")
    return data


def _matrix(rows: Any) -> Matrix:
    return tuple(tuple(map(float, row)) for row in rows)
