"""Sums of products of plain reads, by matrix products of blocks: the fast path of the oracle.

Every factor is a strided view of its array, one axis for each iterator. The factors are divided
into two operands of a matrix product. Blocks of them are copied into small arrays, multiplied by
BLAS and added to the result, so that memory stays bounded where views of overlapping windows are
hundreds of times as large as their arrays.

Sums are taken in double where that is cheap (a small problem), where they are long, or where the
type is double. Otherwise at most `_SINGLE_TERMS` terms are summed in single precision, and these
sums in double: the error is at most 2^-13 of the sum of the terms' magnitudes, whatever their
number. A kernel with sums in single precision is less accurate. Sums of small integers are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.dtype import DType
from tilesmith.expr.ints import FloorDiv, opaque_atoms
from tilesmith.expr.nodes import Binary, Cast, Expr, Load
from tilesmith.ir.nodes import Block
from tilesmith.ir.pieces import Box, boxes, each, size_of

Array = np.ndarray[Any, Any]
# Elements of a block of the larger operand, which stays in a core's caches, of the smaller one,
# which is kept for several blocks of the other, and of the result; columns of the latter.
_BLOCK_ELEMENTS, _KEPT_ELEMENTS, _RESULT_ELEMENTS, _MAX_COLUMNS = 1 << 20, 1 << 22, 1 << 19, 1 << 10
_SINGLE_TERMS, _DOUBLE_TERMS = 1 << 11, 1 << 16  # of one matrix product
_MIN_EXACT_TERMS = 1 << 8  # integers are summed in single precision if so many terms are exact
_JOBS_EACH = 4  # for every thread, so that all of them end at about the same time


def contract(b: Block, memory: dict[str, Array], num_threads: int = 1) -> bool:
    """Computes the block if it is a sum of products of plain reads. False if it is not."""
    assert b.combiner is not None
    w = b.writes[0]
    if b.combiner.op != "add" or len(b.writes) != 1:
        return False
    if tuple(p.name for p in w.index) != tuple(i.name for i in b.spatial):
        return False
    factors = _factors(w.value)
    if factors is None:
        return False
    grid, plan = _grid(b, [load for load, _ in factors]), _precision(b, factors)
    if grid is None or plan is None:
        return False
    wide, terms = plan
    views = [_view(grid, memory[load.buffer], load, dtype, wide) for load, dtype in factors]
    known = [v for v in views if v is not None]
    target = memory[w.buffer]
    if len(known) < len(views) or not target.flags.c_contiguous:
        return False
    out = target.reshape([grid.extents[d] for d in grid.spatial])
    _Product(grid, known, out, wide, terms).run(num_threads)
    return True


def _factors(value: Expr) -> list[tuple[Load, DType]] | None:
    """The loads of a product, each with the dtype it is cast to; None if it has anything else. The
    casts of integers need not be made: all that follows is modulo the width of their result.
    """
    whole = value.dtype.is_int
    out: list[tuple[Load, DType]] = []

    def split(e: Expr) -> bool:
        if isinstance(e, Binary) and e.op == "mul":
            return split(e.a) and split(e.b)
        load = e.x if isinstance(e, Cast) and (e.dtype.is_float or whole) else e
        if isinstance(load, Load) and (load.dtype.is_int or not whole):
            out.append((load, e.dtype))
            return True
        return False

    return out if split(value) and len(out) <= 3 else None


def _precision(b: Block, factors: list[tuple[Load, DType]]) -> tuple[np.dtype[Any], int] | None:
    """The type of the matrix products, and how many terms one may sum; None if integers would not
    be exact.
    """
    single, double = np.dtype(np.float32), np.dtype(np.float64)
    row = prod(i.extent.const or 0 for i in b.reducing)
    value = b.writes[0].value.dtype
    if value.is_int:
        bits = sum(load.dtype.bits - (load.dtype.kind == "i") for load, _ in factors)
        if row << bits >= 1 << 52:
            return None
        exact = (1 << 24) >> bits
        return (single, exact) if exact >= _MIN_EXACT_TERMS else (double, _DOUBLE_TERMS)
    points = row * prod(i.extent.const or 0 for i in b.spatial)
    if value.bits == 64 or row > 1 << 14 or points < 1 << 26:
        return double, _DOUBLE_TERMS
    return single, _SINGLE_TERMS


@dataclass(frozen=True, slots=True)
class _Grid:
    """The axes of views: the iterators, where one that an index divides becomes two (quotient and
    remainder). Their numbers are given by name, as `i`, or `i/` and `i%`.
    """

    axes: dict[str, int]
    extents: tuple[int, ...]
    divisors: dict[str, int]
    num_spatial: int

    @property
    def spatial(self) -> range:
        return range(self.num_spatial)

    @property
    def reducing(self) -> range:
        return range(self.num_spatial, len(self.extents))


def _grid(b: Block, loads: list[Load]) -> _Grid | None:
    extent = {i.name: i.extent.const or 0 for i in b.iters}
    divisors = _divisors(loads, extent)
    if divisors is None:
        return None
    axes: dict[str, int] = {}
    extents: list[int] = []
    num_spatial = 0
    for i in (*b.spatial, *b.reducing):
        c = divisors.get(i.name)
        parts = {i.name: extent[i.name]} if c is None else {
            f"{i.name}/": extent[i.name] // c, f"{i.name}%": c
        }  # fmt: skip
        for name, n in parts.items():
            axes[name] = len(extents)
            extents.append(n)
        num_spatial += len(parts) if i.kind == "S" else 0
    return _Grid(axes, tuple(extents), divisors, num_spatial)


def _divisors(loads: list[Load], extent: dict[str, int]) -> dict[str, int] | None:
    """The divisor of each iterator that an index divides, such as a channel by the channels of a
    group; None if one has several or is not divided evenly.
    """
    out: dict[str, int] = {}
    for p in (p for load in loads for p in load.index):
        for a in opaque_atoms(p):
            if not isinstance(a, FloorDiv) or a.a.name not in extent or not a.b.const:
                return None
            name, c = a.a.name, a.b.const
            if extent[name] % c or out.setdefault(name, c) != c:
                return None
    return out


def _view(
    grid: _Grid, a: Array, load: Load, dtype: DType, wide: np.dtype[Any]
) -> Array | None:  # fmt: skip
    """The elements that a load reads at all points; None if it is not affine or may read beside
    its array.
    """
    if not dtype.is_int:
        a = a.astype(dtype.numpy, copy=False)
    a = np.ascontiguousarray(a)
    steps = [0] * len(grid.extents)  # in elements
    offset, size = 0, a.size
    for p, n in zip(load.index, a.shape, strict=True):
        size //= max(n, 1)
        low = high = 0
        for m, c in p.terms.items():
            if len(m) > 1 or (m and not isinstance(m[0], str | FloorDiv)):
                return None
            if not m:
                low, high, offset = low + c, high + c, offset + c * size
                continue
            for axis, by in _digits(grid, m[0], c):
                steps[axis] += by * size
                low += min(0, by * (grid.extents[axis] - 1))
                high += max(0, by * (grid.extents[axis] - 1))
        if low < 0 or high >= n:
            return None
    touched = prod(n for n, s in zip(grid.extents, steps, strict=True) if s)
    if touched > a.size:  # it would be converted many times
        a = a.astype(wide, copy=False)
    return np.lib.stride_tricks.as_strided(
        a.reshape(-1)[offset:], grid.extents, [s * a.itemsize for s in steps], writeable=False
    )


def _digits(grid: _Grid, atom: Any, c: int) -> list[tuple[int, int]]:
    """The axes of `c * atom`, each with its step."""
    if isinstance(atom, FloorDiv):
        return [(grid.axes[f"{atom.a.name}/"], c)]
    if (by := grid.divisors.get(atom)) is not None:
        return [(grid.axes[f"{atom}/"], c * by), (grid.axes[f"{atom}%"], c)]
    return [(grid.axes[atom], c)]


@dataclass(frozen=True, slots=True)
class _Operand:
    """The product of some factors. A block of it is an array of three axes: what both operands have
    of the result's axes, what only this one has, and what is summed.
    """

    views: tuple[Array, ...]
    groups: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    summed_last: bool  # how a block lies in memory

    def block(self, shared: Box, own: Box, summed: Box, scratch: Array) -> Array:
        """A block, in the memory of `scratch`."""
        order = (0, 1, 2) if self.summed_last else (0, 2, 1)
        parts = (shared, own, summed)
        at = [slice(0, 1)] * self.views[0].ndim
        for axes, box in zip(self.groups, parts, strict=True):
            for axis, cut in zip(axes, box, strict=True):
                at[axis] = cut
        used = [*chain.from_iterable(self.groups[k] for k in order)]
        rest = [k for k in range(len(at)) if k not in used]
        sizes = [size_of(parts[k]) for k in order]
        flat = scratch[: prod(sizes)]
        pieces = [v[tuple(at)].transpose(*used, *rest) for v in self.views]
        np.copyto(flat.reshape(pieces[0].shape), pieces[0], casting="unsafe")
        for piece in pieces[1:]:
            flat.reshape(piece.shape)[...] *= piece.astype(flat.dtype, copy=False)
        block = flat.reshape(sizes)
        return block if self.summed_last else block.swapaxes(1, 2)


class _Product:
    """Adds the sums of products of `views` to `out`."""

    def __init__(
        self, grid: _Grid, views: Sequence[Array], out: Array, wide: np.dtype[Any], terms: int
    ) -> None:
        self._extents, self._out, self._wide, self._terms = grid.extents, out, wide, terms
        spatial, self._summed = [*grid.spatial], (*grid.reducing,)
        left, right = _divided(views, spatial, grid.extents)
        reads = [[_reads(views_, axis) for axis in spatial] for views_ in (left, right)]
        self._shared = tuple(k for k in spatial if reads[0][k] and reads[1][k])
        self._right = tuple(k for k in spatial if reads[1][k] and not reads[0][k])
        self._left = tuple(k for k in spatial if not reads[1][k])
        self._a = self._operand(left, self._left)
        self._b = self._operand(right, self._right)
        # The result's inner axis is that of the product, so that adding it up is fast.
        last = max((k for k in (*self._left, *self._right) if grid.extents[k] > 1), default=-1)
        self._turned = last in self._left

    def _operand(self, views: tuple[Array, ...], own: tuple[int, ...]) -> _Operand:
        """Blocks are copied along the axis with the smallest step for its length."""

        def step(axis: int) -> float:
            steps = [abs(v.strides[axis]) for v in views if v.strides[axis]]
            return min(steps, default=1 << 60) / self._extents[axis]

        inner = min((*own, *self._summed), key=step, default=-1)
        return _Operand(views, (self._shared, own, self._summed), inner not in own)

    def run(self, num_threads: int) -> None:
        summed = [*boxes(self._sizes(self._summed), self._terms)]
        longest = max(size_of(s) for s in summed)
        kept = max(1, _KEPT_ELEMENTS // prod(self._sizes(self._summed)))
        columns = [*boxes(self._sizes(self._right), min(kept, _MAX_COLUMNS))]
        widest = max(size_of(c) for c in columns)
        most = max(1, min(_BLOCK_ELEMENTS // longest, _RESULT_ELEMENTS // widest))
        rows = [*boxes(self._sizes((*self._shared, *self._left)), most)]
        count = max(1, min(len(rows), _JOBS_EACH * num_threads if num_threads > 1 else 1))
        cuts = [len(rows) * k // count for k in range(count + 1)]
        jobs = [(rows[start:stop], c) for c in columns for start, stop in pairwise(cuts)]

        def job(work: tuple[list[Box], Box]) -> None:
            self._blocks(*work, summed)

        each(job, jobs, num_threads)

    def _sizes(self, axes: Sequence[int]) -> list[int]:
        return [self._extents[k] for k in axes]

    def _blocks(self, rows: list[Box], own: Box, summed: list[Box]) -> None:
        """Of the result, these rows and columns."""
        split = len(self._shared)
        longest = max(size_of(s) for s in summed)
        memory = np.empty(max(size_of(r) for r in rows) * longest, self._wide)
        kept: dict[int, Array] = {}
        kept_of: Box | None = None
        for row in rows:
            shared, left = row[:split], row[split:]
            if kept_of != shared:
                kept, kept_of = {}, shared
            total: Array | None = None
            for k, terms in enumerate(summed):
                a = self._a.block(shared, left, terms, memory)
                b = kept.get(k)
                if b is None:
                    n = size_of(shared) * size_of(own) * size_of(terms)
                    b = self._b.block(shared, own, terms, np.empty(n, self._wide))
                    if n * len(summed) <= _KEPT_ELEMENTS:
                        kept[k] = b
                x, y = (b, a) if self._turned else (a, b)
                part = np.matmul(x, y.swapaxes(1, 2))
                total = part if total is None else np.add(total, part, dtype=np.float64)
            assert total is not None
            self._add(total, shared, left, own)

    def _add(self, total: Array, shared: Box, left: Box, right: Box) -> None:
        groups = [(self._shared, shared), (self._left, left), (self._right, right)]
        if self._turned:
            groups[1:] = groups[:0:-1]
        axes = [k for g, _ in groups for k in g]
        at: tuple[Any, ...] = (..., *(s for _, box in groups for s in box))
        region = self._out.transpose(axes)[at]
        part = total.reshape(region.shape)
        if self._out.dtype.kind in "iu":
            region += part.astype(np.int64).astype(region.dtype)
        else:
            region[...] = region + part


def _reads(views: Sequence[Array], axis: int) -> bool:
    return any(v.strides[axis] for v in views)


def _divided(
    views: Sequence[Array], spatial: Sequence[int], extents: Sequence[int]
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Two operands: the one with fewer elements on the right. Of all divisions into one factor and
    the rest, that with the fewest axes in both.
    """
    if len(views) == 1:
        one = np.lib.stride_tricks.as_strided(
            np.ones((), views[0].dtype), extents, [0] * len(extents)
        )
        return (views[0],), (one,)

    def elements(group: Sequence[Array]) -> int:
        return prod(n for k, n in enumerate(extents) if _reads(group, k))

    best: tuple[int, tuple[Array, ...], tuple[Array, ...]] | None = None
    for k, v in enumerate(views):
        rest = (*views[:k], *views[k + 1 :])
        both = prod(extents[d] for d in spatial if _reads((v,), d) and _reads(rest, d))
        if best is None or both < best[0]:
            best = both, rest, (v,)
    assert best is not None
    _, left, right = best
    return (left, right) if elements(left) >= elements(right) else (right, left)
