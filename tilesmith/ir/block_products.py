"""Sums of products of strided views, by matrix products of blocks.

The views have one axis for each axis of the result, and then one for each axis that is summed; the
step of an axis that a view does not depend on is 0. They are divided into the two operands of a
matrix product. Blocks of both are copied into small arrays, multiplied by BLAS and added to the
result: views of overlapping windows may be hundreds of times as large as their arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.ir.pieces import Box, boxes, each, size_of

Array = np.ndarray[Any, Any]
# Elements of a block of the larger operand, which stays in a core's caches, of the smaller one,
# which is kept for several blocks of the other, and of the result; columns of the latter.
_BLOCK_ELEMENTS, _KEPT_ELEMENTS, _RESULT_ELEMENTS, _MAX_COLUMNS = 1 << 20, 1 << 22, 1 << 19, 1 << 10
_JOBS_EACH = 4  # for every thread, so that all of them end at about the same time


def add_products(
    views: Sequence[Array], out: Array, wide: np.dtype[Any], terms: int, num_threads: int
) -> None:
    """Adds the sums of the products of all views to `out`. Matrix products are of the type `wide`;
    each sums at most so many terms, and their results are added in double.
    """
    _Product(views, out, wide, terms).run(num_threads)


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
    def __init__(self, views: Sequence[Array], out: Array, wide: np.dtype[Any], terms: int) -> None:
        self._extents = extents = views[0].shape
        self._out, self._wide, self._terms = out, wide, terms
        spatial, self._summed = range(out.ndim), tuple(range(out.ndim, len(extents)))
        left, right = _divided(views, spatial, extents)
        reads = [[_reads(views_, axis) for axis in spatial] for views_ in (left, right)]
        self._shared = tuple(k for k in spatial if reads[0][k] and reads[1][k])
        self._right = tuple(k for k in spatial if reads[1][k] and not reads[0][k])
        self._left = tuple(k for k in spatial if not reads[1][k])
        self._a = self._operand(left, self._left)
        self._b = self._operand(right, self._right)
        # The result's inner axis is that of the product, so that adding it up is fast.
        last = max((k for k in (*self._left, *self._right) if extents[k] > 1), default=-1)
        self._turned = last in self._left

    def _operand(self, views: tuple[Array, ...], own: tuple[int, ...]) -> _Operand:
        """Blocks are copied along the axis with the smallest step for its length."""

        def step(axis: int) -> float:
            steps = [abs(v.strides[axis]) for v in views if v.strides[axis]]
            return float(min(steps, default=1 << 60) / self._extents[axis])

        inner = min((*own, *self._summed), key=step, default=-1)
        return _Operand(views, (self._shared, own, self._summed), inner not in own)

    def run(self, num_threads: int) -> None:
        summed = [*boxes(self._sizes(self._summed), self._terms)]
        longest = max(size_of(s) for s in summed)
        kept = max(1, _KEPT_ELEMENTS // prod(self._sizes(self._summed)))
        columns = [*boxes(self._sizes(self._right), min(kept, _MAX_COLUMNS))]
        widest = max(size_of(c) for c in columns)
        most = max(1, min(_BLOCK_ELEMENTS // longest, _RESULT_ELEMENTS // widest))
        # For each element of the shared axes in a block, there is a block of the right operand.
        most_shared = max(1, _KEPT_ELEMENTS // (widest * longest))
        most = min(most, most_shared * prod(self._sizes(self._left)))
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
                # Nothing else names the blocks: those of the last row would stay in memory.
                part = np.matmul(
                    b if self._turned else a, (a if self._turned else b).swapaxes(1, 2)
                )
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
