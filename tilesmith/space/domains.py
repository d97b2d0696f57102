"""Domains of numeric decisions, as tables: all that may be chosen for a group of columns, one row
each, so that drawing, checking and changing a whole population are a few NumPy calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.errors import ScheduleError
from tilesmith.schedule.sample import SampleChoice, SampleTile

Matrix = np.ndarray[Any, np.dtype[np.int32]]
Rng = np.random.Generator
Numbers = np.ndarray[Any, Any]

_MOST_ROWS = 50_000
_MOST_PAIRS = 1 << 20  # of a value and a row that are looked at together
_FINE = 4096  # multiples of 16 up to here are round numbers, beyond it those of five binary digits
_LARGEST = 2**31 - 1
_LONGEST = 2**60  # products of factors stay within 64 bits
_LARGEST_PRIME = 10**6
_WASTE = 1.25  # a tile that does not divide may do this much work for nothing at most
# Of tiles that need not divide, so much of what is drawn is exact; has a dividing innermost factor
# and wastes little; wastes little; is any other. Tails cost compile time and speed.
_SHARES = np.array([0.5, 0.25, 0.15, 0.1])
_LITTLE = 1.1
_MOST_FAVOURED = 256  # one row over another: a prime has few exact tiles, and these are poor
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # odd, and far from every small ratio


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
        """Keys of the table's rows in ascending order, and where each row stands."""
        keys = encode(self.table)
        order = np.argsort(keys)
        return keys[order], order

    def index(self, rows: Matrix) -> Numbers:
        """Where in the table each row stands; -1 for one that is not there."""
        keys, order = self._order
        wanted = encode(rows)
        at = np.searchsorted(keys, wanted)
        np.minimum(at, len(keys) - 1, out=at)
        return np.where(keys.take(at) == wanted, order.take(at), -1)

    def contains(self, rows: Matrix) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return np.asarray(self.index(rows) >= 0)

    def nearest(self, rows: Matrix) -> Matrix:
        """The choices most like these, which may be of a loop of another extent: the inner a factor
        is, the more it counts, and the outermost makes up for the rest.
        """
        width = len(self.columns)
        weights = 2.0 ** np.arange(width) if self.tile else np.ones(width)
        weights[0] *= 0.1 if self.tile and width > 1 else 1.0
        table, wanted = (np.log2(np.maximum(x, 0) + 0.5) for x in (self.table, rows))
        at = [int(np.argmin(np.abs(table - w) @ weights)) for w in wanted]
        return self.table.take(np.array(at, np.int64), axis=0)

    def sample(self, rng: Rng, n: int) -> Matrix:
        """All rows alike, or, of tiles that need not divide, those more often that waste little."""
        out = np.empty((len(self.columns), n), np.int32)
        self.sample_columns(rng, out)
        return np.ascontiguousarray(out.T)

    def sample_columns(self, rng: Rng, out: Matrix) -> None:
        """The same, written to one line of `out` per column: several times as fast."""
        if self.size == 1:
            out[...] = self.table.T
            return
        drawn = self._drawn
        at = rng.integers(0, self.size if drawn is None else len(drawn), out.shape[1], np.int32)
        at = at if drawn is None else drawn.take(at)
        for line, column in zip(out, self._by_column, strict=True):
            column.take(at, out=line, mode="clip")  # bounds are known; clip does not copy first

    @cached_property
    def _by_column(self) -> Matrix:
        return np.ascontiguousarray(self.table.T)

    @cached_property
    def _drawn(self) -> Numbers | None:
        """Positions in the table, each as many times as it is favoured; None: all alike."""
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
        """A small change of each row; another choice where there is none."""
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
        """What one small change of a row leads to; every other choice where these are few."""
        (at,) = self.index(row[None])
        if self.tile and len(row) > 1 and at >= 0:
            table, counts = self._neighbours(np.array([at]))
            return np.asarray(self.table.take(np.unique(table[at, : counts[at]]), axis=0))
        return np.asarray(np.delete(self.table, at, axis=0)) if at >= 0 else self.table

    def _other(self, rng: Rng, at: Numbers) -> Numbers:
        """Any row but the one at hand, if there is another."""
        return np.asarray((at + rng.integers(1, max(self.size, 2), len(at))) % self.size)

    def _neighbours(self, at: Numbers) -> tuple[Numbers, Numbers]:
        """For the rows at these positions, the rows that one small change leads to (first in their
        line), and how many.

        A prime factor goes to another level; if tiles need not divide, an inner factor grows or
        shrinks a little and the outermost makes up for it. A large table is looked at where that is
        asked for: the first candidates are wanted soon.
        """
        table, counts = self._near
        wanted = np.unique(at % self.size)
        wanted = wanted[counts.take(wanted) < 0]
        if len(wanted):
            rows = self.table.take(wanted, axis=0)
            found = np.stack([self.index(change) for change in self._changes(rows)], axis=1)
            found[found == wanted[:, None]] = -1
            table[wanted] = -np.sort(-found, axis=1)
            counts[wanted] = (found >= 0).sum(axis=1)
        return table, counts

    @cached_property
    def _near(self) -> tuple[Numbers, Numbers]:
        """What `_neighbours` has found; a count of -1 where it was not asked yet."""
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
    """One number per row; two that differ are alike by a miracle only."""
    return np.asarray(rows.astype(np.uint64) @ _powers(rows.shape[1]))


@cache
def _powers(count: int) -> Numbers:
    """Of the golden number, the highest first, modulo 2**64."""
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


@lru_cache(maxsize=512)  # variants of a sketch share them
def domain_of(sample: SampleTile | SampleChoice, extent: int | None) -> Domain:
    """What may be chosen. `extent` is that of the tiled loop."""
    if isinstance(sample, SampleChoice):
        return Domain(sample.columns, np.array(sample.values, np.int32)[:, None], tile=False)
    assert extent is not None
    if sample.candidates:
        table = np.array(sample.candidates, np.int32)
        inner = table[:, 1:].prod(axis=1, dtype=np.int64)
        table = table[table[:, 0] == -(-extent // inner)]
        if not len(table):
            raise ScheduleError(
                f"none of the candidates for {sample.loop} covers its {extent} iterations with as "
                "few outermost ones as it takes"
            )
        return Domain(sample.columns, table, tile=True, extent=extent)
    table = tile_table(extent, sample.parts, sample.policy, sample.max_innermost, sample.lanes)
    return Domain(sample.columns, table, tile=True, extent=extent, exact=sample.exact)


@cache
def tile_table(extent: int, parts: int, policy: str, max_innermost: int, lanes: int) -> Matrix:
    """Ways to cut `extent`, outermost factor first: all of them, or some that are spread evenly
    where there are more than a table should hold.
    """
    if extent == 0:
        return np.ones((1, parts), np.int32)
    if extent > _LONGEST:
        raise ScheduleError(
            f"a loop of {extent} iterations is too long to be tiled: {_LONGEST} is the most"
        )
    if parts == 1:
        return _narrow(np.array([[extent]]), extent)
    exact = policy == "divisors"
    values = _factors(extent, policy, parts)
    innermost = values
    if max_innermost:
        innermost = values[values <= max_innermost]
    if policy == "vector" and lanes > 1:
        fits = (innermost % lanes == 0) | ((innermost < lanes) & (lanes % innermost == 0))
        whole = (
            np.array([min(extent, max_innermost or extent)]) if extent < lanes else innermost[fits]
        )
        innermost = np.unique(np.concatenate([innermost[fits], whole]))
    rows = innermost[:, None].astype(np.int64)
    most = extent if exact else int(extent * _WASTE)
    for _ in range(parts - 2):
        rows = _extended(rows, values, most)
        if exact:
            rows = rows[extent % rows.prod(axis=1) == 0]
        rows = _thin(rows)
    inner = rows.prod(axis=1)
    outer = -(-extent // inner)
    if exact:
        keep = extent % inner == 0
    else:
        keep = outer * inner <= extent * _WASTE
        if not keep.any():  # a short loop: the least waste there is
            keep = outer * inner == (outer * inner).min()
    return _narrow(np.concatenate([outer[:, None], rows], axis=1)[keep], extent)


def _narrow(table: Numbers, extent: int) -> Matrix:
    """Only factors of 32 bits, as rows of a population are."""
    table = table[(table <= _LARGEST).all(axis=1)]
    if not len(table):
        raise ScheduleError(
            f"a loop of {extent} iterations is too long to be tiled: a factor is {_LARGEST} at most"
        )
    return np.ascontiguousarray(table.astype(np.int32))


def _extended(rows: Numbers, values: Numbers, most: int) -> Numbers:
    """Every value in front of every row, where their product is `most` or less. The values ascend,
    and so do the first factors of what comes out. Of too many, some that are spread evenly.
    """
    inner = rows.prod(axis=1)
    counts = np.searchsorted(values, most // inner, side="right")
    ends = np.cumsum(counts)
    every = int(ends[-1])
    at = np.arange(0, every, -(-every // _MOST_PAIRS) if every else 1)
    row = np.searchsorted(ends, at, side="right")
    first = values[at - (ends - counts)[row]]
    order = np.argsort(first, kind="stable")
    return np.concatenate([first[order, None], rows[row[order]]], axis=1)


def _thin(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """At most so many, evenly taken: a larger table would cost memory, not quality."""
    if len(rows) <= _MOST_ROWS:
        return rows
    return rows[:: -(-len(rows) // _MOST_ROWS)]


def _factors(extent: int, policy: str, parts: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    powers: np.ndarray[Any, np.dtype[np.int64]] = 2 ** np.arange(0, extent.bit_length())
    match policy:
        case "divisors":
            return _divisors(extent)
        case "powers":
            return powers
        case "both":
            return np.asarray(np.union1d(_divisors(extent), powers), np.int64)
    if extent ** min(parts - 1, 2) <= 1 << 21:
        return np.arange(1, extent + 1)
    # long loops: small numbers, what divides, and round numbers in between
    parted = [np.arange(1, 65), np.arange(16, _FINE + 1, 16), powers, _divisors(extent)]
    parted += [np.arange(32, 64) << k for k in range(_FINE.bit_length() - 6, extent.bit_length())]
    steps = np.unique(np.concatenate(parted))
    return np.asarray(steps[steps <= extent], np.int64)


def _divisors(extent: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """All of them, ascending. Of an extent beyond 10**12 those whose prime factors are at most
    10**6, with what is left as one factor.
    """
    found, left, p = [1], extent, 2
    while p * p <= left and p <= _LARGEST_PRIME:
        powers = [1]
        while left % p == 0:
            left //= p
            powers.append(powers[-1] * p)
        if len(powers) > 1:
            found = [d * q for d in found for q in powers]
        p += 1 if p == 2 else 2
    if left > 1:
        found += [d * left for d in found]
    return np.array(sorted(found), np.int64)


def count(domains: tuple[Domain, ...]) -> int:
    return prod(d.size for d in domains)
