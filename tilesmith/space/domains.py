"""Domains of numeric decisions, as tables with a row per choice, so that sampling, checking and
mutating a whole population are a few NumPy calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

import numpy as np

Matrix = np.ndarray[Any, np.dtype[np.int32]]
Rng = np.random.Generator
Numbers = np.ndarray[Any, Any]

# Sampling weights of tiles that need not divide: exact ones; those with little padding and a
# dividing innermost factor; with little padding; others. Tails cost compile time and speed.
_SHARES = np.array([0.5, 0.25, 0.15, 0.1])
_LITTLE = 1.1
_MOST_FAVOURED = 256  # bounds the ratio of two weights: a prime has few exact tiles, and poor ones
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / the golden ratio, rounded to an odd number


@dataclass(frozen=True, eq=False)
class Domain:
    """`columns` are chosen together: each row of `table` is one choice."""

    columns: tuple[str, ...]
    table: Matrix
    tile: bool  # factors of one loop, which can be moved between levels
    extent: int = 0  # of that loop
    exact: bool = True  # the factors multiply to it

    @property
    def size(self) -> int:
        return len(self.table)

    @cached_property
    def _order(self) -> tuple[Numbers, Numbers]:
        """Sorted hashes of the table's rows, and the permutation that sorts them."""
        keys = encode(self.table)
        order = np.argsort(keys)
        return keys[order], order

    def index(self, rows: Matrix) -> Numbers:
        """The position of each row in the table; -1 for one that is not in it."""
        keys, order = self._order
        wanted = encode(rows)
        at = np.searchsorted(keys, wanted)
        np.minimum(at, len(keys) - 1, out=at)
        return np.where(keys.take(at) == wanted, order.take(at), -1)

    def contains(self, rows: Matrix) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return np.asarray(self.index(rows) >= 0)

    def nearest(self, rows: Matrix) -> Matrix:
        """For each row, the choice nearest to it; the rows may be of a loop of another extent.
        Inner factors have larger weights in the distance.
        """
        width = len(self.columns)
        weights = 2.0 ** np.arange(width) if self.tile else np.ones(width)
        weights[0] *= 0.1 if self.tile and width > 1 else 1.0
        table, wanted = (np.log2(np.maximum(x, 0) + 0.5) for x in (self.table, rows))
        at = [int(np.argmin(np.abs(table - w) @ weights)) for w in wanted]
        return self.table.take(np.array(at, np.int64), axis=0)

    def sample(self, rng: Rng, n: int) -> Matrix:
        """Uniform, except that tiles with little padding are drawn more often than others."""
        out = np.empty((len(self.columns), n), np.int32)
        self.sample_columns(rng, out)
        return np.ascontiguousarray(out.T)

    def sample_columns(self, rng: Rng, out: Matrix) -> None:
        """`sample`, written to one line of `out` per column, which is several times as fast."""
        if self.size == 1:
            out[...] = self.table.T
            return
        drawn = self._drawn
        at = rng.integers(0, self.size if drawn is None else len(drawn), out.shape[1], np.int32)
        at = at if drawn is None else drawn.take(at)
        for line, column in zip(out, self._by_column, strict=True):
            column.take(at, out=line, mode="clip")  # in bounds anyway; "clip" avoids a copy

    @cached_property
    def _by_column(self) -> Matrix:
        return np.ascontiguousarray(self.table.T)

    @cached_property
    def _drawn(self) -> Numbers | None:
        """Positions in the table, repeated by their weight; None if all weights are equal."""
        if self.exact or not self.tile:
            return None
        covered = self.table.prod(axis=1, dtype=np.int64)
        even = self.extent % np.maximum(self.table[:, -1], 1) == 0
        little = covered <= _LITTLE * self.extent
        kind = np.select([covered == self.extent, little & even, little], [0, 1, 2], 3)
        each = _SHARES / np.maximum(np.bincount(kind, minlength=len(_SHARES)), 1)
        times = np.clip(np.rint(each / each[kind].min()), 1, _MOST_FAVOURED).astype(np.int64)
        return np.repeat(np.arange(self.size, dtype=np.int32), times[kind])

    def mutate(self, rng: Rng, rows: Matrix) -> Matrix:
        """A small change of each row, or another choice if the row has no neighbours."""
        at = self.index(rows)
        if not self.tile or rows.shape[1] == 1:
            return self.table.take(self._other(rng, at), axis=0)
        table, counts = self._neighbours(at)
        many = counts.take(at)
        pick = (rng.random(len(rows), np.float32) * many).astype(np.int64)
        np.minimum(pick, many - 1, out=pick)
        after = table.take(at * table.shape[1] + pick, mode="clip")
        alone = np.flatnonzero(many == 0)
        if len(alone):
            after[alone] = self._other(rng, at.take(alone))
        return np.asarray(self.table.take(after, axis=0))

    def neighbours(self, row: Matrix) -> Matrix:
        """The rows one small change away; for choices all other values."""
        (at,) = self.index(row[None])
        if self.tile and len(row) > 1 and at >= 0:
            table, counts = self._neighbours(np.array([at]))
            return np.asarray(self.table.take(np.unique(table[at, : counts[at]]), axis=0))
        return np.asarray(np.delete(self.table, at, axis=0)) if at >= 0 else self.table

    def _other(self, rng: Rng, at: Numbers) -> Numbers:
        """A random other row, if there is one."""
        return np.asarray((at + rng.integers(1, max(self.size, 2), len(at))) % self.size)

    def _neighbours(self, at: Numbers) -> tuple[Numbers, Numbers]:
        """The positions of the neighbours of these rows, padded to a matrix, and their counts.

        A neighbour has a prime factor moved to another level. If tiles need not divide, it may also
        have an inner factor slightly larger or smaller and the outermost one adapted. Neighbours
        are computed at first use, so that large tables do not delay the first candidates.
        """
        table, counts = self._near
        wanted = np.unique(at % self.size)
        wanted = wanted[counts.take(wanted) < 0]
        if len(wanted):
            rows = self.table.take(wanted, axis=0)
            positions = np.stack([self.index(change) for change in self._changes(rows)], axis=1)
            positions[positions == wanted[:, None]] = -1
            table[wanted] = -np.sort(-positions, axis=1)
            counts[wanted] = (positions >= 0).sum(axis=1)
        return table, counts

    @cached_property
    def _near(self) -> tuple[Numbers, Numbers]:
        """The cache of `_neighbours`; a count of -1 marks rows that are not computed yet."""
        width = self.table.shape[1]
        moves = width * (width - 1) + (0 if self.exact else 4 * (width - 1))
        return np.empty((self.size, moves), np.int32), np.full(self.size, -1, np.int64)

    def _changes(self, rows: Matrix) -> list[Matrix]:
        width = rows.shape[1]
        moved = [_move(rows, a, b) for a in range(width) for b in range(width) if a != b]
        if self.exact:
            return moved
        return moved + [self._nudge(rows, c, way) for c in range(1, width) for way in range(4)]

    def _nudge(self, rows: Matrix, column: int, way: int) -> Matrix:
        new = rows.copy()
        have = new[:, column]
        new[:, column] = np.maximum((have + 1, have - 1, have * 2, have // 2)[way], 1)
        new[:, 0] = -(-self.extent // new[:, 1:].prod(axis=1, dtype=np.int64))
        return new


def _move(rows: Matrix, a: int, b: int) -> Matrix:
    """The smallest prime factor of column a goes to column b."""
    new = rows.copy()
    p = _PRIME[np.minimum(new[:, a], len(_PRIME) - 1)]
    new[:, a] //= p
    new[:, b] *= p
    return new


def encode(rows: Matrix) -> Numbers:
    """A 64-bit hash of each row. Collisions are possible but negligible (about n**2 / 2**65)."""
    return np.asarray(rows.astype(np.uint64) @ _powers(rows.shape[1]))


@cache
def _powers(count: int) -> Numbers:
    """Multipliers of the polynomial hash in `encode`."""
    return np.array([pow(int(_GOLDEN), k, 1 << 64) for k in reversed(range(count))], np.uint64)


def _smallest_primes(n: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    out = np.arange(n, dtype=np.int32)
    out[0] = 1
    for p in range(2, int(n**0.5) + 1):
        if out[p] == p:
            multiples = out[p * p :: p]
            multiples[multiples == np.arange(p * p, n, p, dtype=np.int32)] = p
    return out


_PRIME = _smallest_primes(65536)


def count(domains: tuple[Domain, ...]) -> int:
    return prod(d.size for d in domains)
