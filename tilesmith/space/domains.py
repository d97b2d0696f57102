"""Domains of numeric decisions, as tables: all that may be chosen for a group of columns, one row
each, so that drawing, checking and changing a whole population are a few NumPy calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.errors import ScheduleError
from tilesmith.schedule.sample import SampleChoice, SampleTile

Matrix = np.ndarray[Any, np.dtype[np.int32]]
Rng = np.random.Generator

_MOST_ROWS = 200_000
_WASTE = 1.25  # a tile that does not divide may do this much work for nothing at most
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
    def _keys(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        keys = self._encode(self.table)
        order = np.argsort(keys)
        return keys[order], order

    def _encode(self, rows: Matrix) -> np.ndarray[Any, Any]:
        """One number per row: no two of a table are alike, nor are strange ones but by a miracle."""
        out = rows[:, 0].astype(np.uint64)
        for c in range(1, rows.shape[1]):
            out *= _GOLDEN
            out += rows[:, c].astype(np.uint64)
        return out

    def contains(self, rows: Matrix) -> np.ndarray[Any, np.dtype[np.bool_]]:
        keys, _ = self._keys
        wanted = self._encode(rows)
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.asarray(keys[at] == wanted)

    def sample(self, rng: Rng, n: int) -> Matrix:
        return self.table[rng.integers(0, len(self.table), n)]

    def mutate(self, rng: Rng, rows: Matrix) -> Matrix:
        """A small change of each row; a fresh choice where none of a few small ones is allowed."""
        if not self.tile or rows.shape[1] < 2:
            return self.sample(rng, len(rows))
        new = rows.copy()
        left = np.arange(len(rows))
        for attempt in range(4):
            nudge = not self.exact and attempt % 2 == 0
            tried = (self._nudge if nudge else self._move)(rng, rows[left])
            ok = self.contains(tried) & (tried != rows[left]).any(axis=1)
            new[left[ok]] = tried[ok]
            left = left[~ok]
            if not len(left):
                return new
        new[left] = self.sample(rng, len(left))
        return new

    def _move(self, rng: Rng, rows: Matrix) -> Matrix:
        """A prime factor goes to another level."""
        n, width = rows.shape
        new = rows.copy()
        a = rng.integers(0, width, n)
        b = (a + rng.integers(1, width, n)) % width
        at = np.arange(n)
        have = rows[at, a]
        p = _PRIME[np.minimum(have, len(_PRIME) - 1)]
        new[at, a] = have // p
        new[at, b] = rows[at, b] * p
        return new

    def _nudge(self, rng: Rng, rows: Matrix) -> Matrix:
        """An inner factor grows or shrinks a little, and the outermost makes up for it."""
        n, width = rows.shape
        new = rows.copy()
        at, a = np.arange(n), rng.integers(1, width, n)
        have = rows[at, a]
        step = rng.integers(0, 4, n)
        grown = np.where(step == 0, have + 1, np.where(step == 1, have - 1, have))
        new[at, a] = np.maximum(
            np.where(step == 2, 2 * have, np.where(step == 3, have // 2, grown)), 1
        )
        inner = new[:, 1:].prod(axis=1, dtype=np.int64)
        new[:, 0] = -(-self.extent // inner)
        return new


def _smallest_primes(n: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    out = np.arange(n, dtype=np.int32)
    out[0] = 1
    for p in range(2, int(n**0.5) + 1):
        if out[p] == p:
            multiples = out[p * p :: p]
            multiples[multiples == np.arange(p * p, n, p, dtype=np.int32)] = p
    return out


_PRIME = _smallest_primes(65536)


def domain_of(sample: SampleTile | SampleChoice, extent: int | None) -> Domain:
    """What may be chosen. `extent` is that of the tiled loop."""
    if isinstance(sample, SampleChoice):
        return Domain(sample.columns, np.array(sample.values, np.int32)[:, None], tile=False)
    if sample.candidates:
        table = np.array(sample.candidates, np.int32)
        assert extent is not None
        table = table[np.prod(table.astype(np.int64), axis=1) >= extent]
        if not len(table):
            raise ScheduleError(
                f"none of the candidates for {sample.loop} covers its {extent} iterations"
            )
        return Domain(sample.columns, table, tile=True, extent=extent)
    assert extent is not None
    table = tile_table(extent, sample.parts, sample.policy, sample.max_innermost, sample.lanes)
    return Domain(sample.columns, table, tile=True, extent=extent, exact=sample.exact)


@cache
def tile_table(extent: int, parts: int, policy: str, max_innermost: int, lanes: int) -> Matrix:
    """All ways to cut `extent`, outermost factor first."""
    if extent == 0:
        return np.ones((1, parts), np.int32)
    if parts == 1:
        return np.array([[extent]], np.int32)
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
    for _ in range(parts - 2):
        bigger = np.concatenate(
            [np.repeat(values, len(rows))[:, None], np.tile(rows, (len(values), 1))], axis=1
        )
        product = bigger.prod(axis=1)
        keep = product <= (extent if exact else extent * _WASTE)
        if exact:
            keep &= extent % product == 0
        rows = _thin(bigger[keep])
    inner = rows.prod(axis=1)
    outer = -(-extent // inner)
    if exact:
        keep = extent % inner == 0
    else:
        keep = outer * inner <= extent * _WASTE
        if not keep.any():  # a short loop: the least waste there is
            keep = outer * inner == (outer * inner).min()
    table = np.concatenate([outer[:, None], rows], axis=1)[keep]
    return np.ascontiguousarray(table.astype(np.int32))


def _thin(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """At most so many, evenly taken: a larger table would cost memory, not quality."""
    if len(rows) <= _MOST_ROWS:
        return rows
    return rows[:: -(-len(rows) // _MOST_ROWS)]


def _factors(extent: int, policy: str, parts: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    every: np.ndarray[Any, np.dtype[np.int64]] = np.arange(1, extent + 1)
    divisors: np.ndarray[Any, np.dtype[np.int64]] = every[extent % every == 0]
    powers: np.ndarray[Any, np.dtype[np.int64]] = 2 ** np.arange(0, extent.bit_length())
    match policy:
        case "divisors":
            return divisors
        case "powers":
            return powers
        case "both":
            return np.asarray(np.union1d(divisors, powers), np.int64)
    if extent ** min(parts - 1, 2) <= 1 << 21:
        return every
    # long loops: small numbers, what divides, and round numbers in between
    small: np.ndarray[Any, np.dtype[np.int64]] = every[:64]
    steps = np.unique(np.concatenate([every[15::16], powers, divisors, small]))
    return np.asarray(steps[steps <= extent], np.int64)


def count(domains: tuple[Domain, ...]) -> int:
    return prod(d.size for d in domains)
