"""A Function over fewer slices, whose results repeat as those of the whole: what the oracle
evaluates where the whole would take it seconds.

Rows of a product, columns, batches and channels are computed from rows, columns, batches and
channels of the inputs alone. Where such slices of the inputs repeat, so do the slices of the
results, and each is evaluated once. A kernel runs at the full size, and every element of its
results is compared. Which slice stands where is drawn at random, so that one read at a wrong place
is seen; the first and the last, next to which most mistakes are made, occur once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.expr.dynamic import below, index_loads, loads_of
from tilesmith.expr.ints import Int, of
from tilesmith.expr.nodes import IntValue, Load
from tilesmith.expr.walk import preorder
from tilesmith.ir.contract import factors_of
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, Buffer, rewrite_blocks, walk

Array = np.ndarray[Any, Any]
Place = tuple[str, int | str]  # a buffer and a dimension, or a block and an iterator

_FEWEST = 11  # slices that differ
_FEWEST_IF_SLOW = 5  # where more would take the oracle seconds; the ends and three others
_ENOUGH_POINTS = 1 << 22  # the oracle evaluates so many in about 0.2 s
_SLOW_POINTS = 1 << 25
_PRODUCTS = 32  # points of a sum of products that take as long as one other


@dataclass(frozen=True, slots=True)
class Slices:
    """`func` is the smaller Function; `axes` gives, for a dimension of a buffer that repeats, the
    number of its axis. Dimensions that repeat together have the same one; `lengths` are the sizes
    of the axes, of the whole and of the smaller Function.
    """

    func: Function
    axes: Mapping[Place, int]
    lengths: tuple[tuple[int, int], ...]

    def drawn(self, seed: int) -> list[Array]:
        """For each axis, which slice stands where."""
        rng = np.random.default_rng(seed)
        return [_drawn(rng, whole, few) for whole, few in self.lengths]

    def spread(self, b: Buffer, few: Array, at: list[Array], out: Array) -> None:
        """Fills the whole array of a buffer from that of the smaller Function."""
        dims = [d for d in range(few.ndim) if (b.name, d) in self.axes]
        for d in reversed(dims[1:]):  # the innermost while there is little to move
            few = few.take(at[self.axes[b.name, d]], axis=d)
        if not dims:
            out[...] = few
        else:
            few.take(at[self.axes[b.name, dims[0]]], axis=dims[0], out=out, mode="clip")


def _drawn(rng: np.random.Generator, whole: int, few: int) -> Array:
    """No slice stands beside one that is the same."""
    steps = rng.integers(1, few - 2, whole - 2)
    middle = 1 + np.cumsum(steps) % (few - 2)
    return np.concatenate([[0], middle, [few - 1]])


@lru_cache(maxsize=64)
def fewer_slices(func: Function) -> Slices:
    """The same Function if it is small, or if none of its axes can be shortened."""
    blocks = [b for _, b in walk(func.body)]
    if _cost(blocks, {}) <= _ENOUGH_POINTS:
        return Slices(func, {}, ())
    axes = [*_axes(func, blocks)]
    size = {place: (k, n) for k, (n, places) in enumerate(axes) for place in places}
    few = [n for n, _ in axes]

    def extents() -> dict[Place, int]:
        return {place: few[k] for place, (k, _) in size.items()}

    for fewest, points in ((_FEWEST, _ENOUGH_POINTS), (_FEWEST_IF_SLOW, _SLOW_POINTS)):
        while any(n > fewest for n in few) and _cost(blocks, extents()) > points:
            k = max(range(len(few)), key=few.__getitem__)
            few[k] = max(few[k] // 2, fewest)
    shorter = [k for k, (n, _) in enumerate(axes) if few[k] < n]
    number = {k: at for at, k in enumerate(shorter)}
    kept = {place: number[k] for place, (k, _) in size.items() if k in number}
    lengths = tuple((axes[k][0], few[k]) for k in shorter)
    return Slices(_shortened(func, {p: lengths[k][1] for p, k in kept.items()}), kept, lengths)


def _cost(blocks: list[Block], extents: Mapping[Place, int]) -> float:
    total = 0.0
    for b in blocks:
        points = prod(extents.get((b.name, i.name), i.extent.number) for i in b.iters)
        factors = factors_of(b.writes[0].value) if b.combiner else None
        total += points / (_PRODUCTS if factors and len(factors) > 1 else 1)
    return total


def _axes(func: Function, blocks: list[Block]) -> Iterator[tuple[int, list[Place]]]:
    """The axes that can be shortened: their length, and all that runs along them. Every access to
    a buffer, at such a dimension, is at the value of a spatial iterator, which has no other use.
    """
    extent: dict[Place, int] = {}
    above: dict[Place, Place] = {}
    fixed: set[Place] = set()
    place: Place
    for f in (*func.params, *func.buffers):
        for d, n in enumerate(f.shape):
            place = f.name, d
            extent[place], above[place] = n.number, place
            if f.prepared or f.layout is not None:
                fixed.add(place)
    for b in blocks:
        for i in b.iters:
            place = b.name, i.name
            extent[place], above[place] = i.extent.number, place
            if i.kind != "S" or b.tile:
                fixed.add(place)

    def top(x: Place) -> Place:
        while above[x] != x:
            x = above[x]
        return x

    for b in blocks:
        for p in (*b.domain, *_values(b)):
            fixed |= {(b.name, n) for n in p.names}
        for load in _accesses(b):
            for d, p in enumerate(load.index):
                place, by = (load.buffer, d), (b.name, p.name or "")
                if by in extent and extent[by] == extent[place]:
                    above[top(by)] = top(place)
                else:
                    fixed |= {place, *((b.name, n) for n in p.names)}
    ends = {top(x) for x in fixed if x in above}
    groups: dict[Place, list[Place]] = {}
    for x in above:
        groups.setdefault(top(x), []).append(x)
    for end, places in groups.items():
        if end not in ends and extent[end] > _FEWEST_IF_SLOW:
            yield extent[end], places


def _accesses(b: Block) -> Iterator[Load]:
    for w in b.writes:
        yield w.held
        yield from loads_of(w.value)
        for p in w.index:
            yield from index_loads(p)
    for p in b.domain:
        yield from index_loads(p)


def _values(b: Block) -> Iterator[Int]:
    """Indices that are used as numbers."""
    for w in b.writes:
        yield from (x.value for x in preorder(w.value, below) if isinstance(x, IntValue))


def _shortened(func: Function, extents: Mapping[Place, int]) -> Function:
    """The oracle asks for blocks only, so that the loops around them may stay."""

    def size(place: Place, n: Int) -> Int:
        return of(extents[place]) if place in extents else n

    def buffer(b: Buffer) -> Buffer:
        return replace(b, shape=tuple(size((b.name, d), n) for d, n in enumerate(b.shape)))

    def block(b: Block) -> Block:
        iters = (replace(i, extent=size((b.name, i.name), i.extent)) for i in b.iters)
        return replace(b, iters=tuple(iters))

    return replace(
        func,
        params=tuple(map(buffer, func.params)),
        buffers=tuple(map(buffer, func.buffers)),
        body=rewrite_blocks(func.body, block),
    )
