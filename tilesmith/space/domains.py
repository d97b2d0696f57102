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


@dataclass(frozen=True, eq=False)
class Domain:
    """`columns` are chosen together: each row of `table` is one choice."""

    columns: tuple[str, ...]
    table: Matrix
    tile: bool  # factors of one loop, which can be moved between levels

    @property
    def size(self) -> int:
        return len(self.table)

    @cached_property
    def _keys(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        keys = self._encode(self.table)
        order = np.argsort(keys)
        return keys[order], order

    def _encode(self, rows: Matrix) -> np.ndarray[Any, Any]:
        """One number per row; factors stay below 2**16."""
        out = np.zeros(len(rows), np.uint64)
        for c in range(rows.shape[1]):
            out = out * np.uint64(65521) + rows[:, c].astype(np.uint64)
        return out

    def contains(self, rows: Matrix) -> np.ndarray[Any, np.dtype[np.bool_]]:
        keys, _ = self._keys
        wanted = self._encode(rows)
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.asarray(keys[at] == wanted)

    def sample(self, rng: Rng, n: int) -> Matrix:
        return self.table[rng.integers(0, len(self.table), n)]

    def mutate(self, rng: Rng, rows: Matrix) -> Matrix:
        """A small change of each row: a prime factor moves to another level, or a fresh choice."""
        n, width = rows.shape
        fresh = self.sample(rng, n)
        if not self.tile or width < 2:
            return fresh
        new = rows.copy()
        a = rng.integers(0, width, n)
        b = (a + rng.integers(1, width, n)) % width
        at = np.arange(n)
        have = rows[at, a]
        p = _PRIME[np.minimum(have, len(_PRIME) - 1)]
        new[at, a] = have // p
        new[at, b] = rows[at, b] * p
        ok = (p > 1) & self.contains(new)
        return np.where(ok[:, None], new, fresh)


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
        return Domain(sample.columns, table, tile=True)
    assert extent is not None
    table = tile_table(extent, sample.parts, sample.policy, sample.max_innermost, sample.lanes)
    return Domain(sample.columns, table, tile=True)


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
    every = np.arange(1, extent + 1)
    divisors = every[extent % every == 0]
    powers = 2 ** np.arange(0, extent.bit_length())
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
