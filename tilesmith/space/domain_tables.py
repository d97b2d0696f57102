"""The domain of a decision: a table of all tile sizes of a loop, or of the values of a choice."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np

from tilesmith.base.errors import ScheduleError
from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.space.domains import Domain, Matrix, Numbers

_MOST_ROWS = 50_000
_MOST_PAIRS = 1 << 20  # (value, row) pairs combined in one step, which bounds memory
_FINE = 4096  # round factors: multiples of 16 up to here, beyond it numbers of five binary digits
_LARGEST = 2**31 - 1
_LONGEST = 2**60  # products of factors stay within 64 bits
_LARGEST_PRIME = 10**6
_WASTE = 1.25  # the most iterations of a tiling, padding included, relative to the extent


@lru_cache(maxsize=512)  # variants of a sketch share them
def domain_of(sample: SampleTile | SampleChoice, extent: int | None) -> Domain:
    """The domain of a sample. `extent` is that of the tiled loop."""
    if isinstance(sample, SampleChoice):
        return Domain(sample.columns, np.array(sample.values, np.int32)[:, None], tile=False)
    assert extent is not None
    if sample.candidates:
        table = np.array(sample.candidates, np.int32)
        inner = table[:, 1:].prod(axis=1, dtype=np.int64)
        table = table[table[:, 0] == -(-extent // inner)]
        if not len(table):
            raise ScheduleError(
                f"none of the candidates for {sample.loop} covers its {extent} iterations with the "
                "smallest possible outermost factor"
            )
        return Domain(sample.columns, table, tile=True, extent=extent)
    table = tile_table(extent, sample.parts, sample.policy, sample.max_innermost, sample.lanes)
    return Domain(sample.columns, table, tile=True, extent=extent, exact=sample.exact)


@cache
def tile_table(extent: int, parts: int, policy: str, max_innermost: int, lanes: int) -> Matrix:
    """The ways to tile `extent`, outermost factor first. If there are more than 50,000, an evenly
    spread sample of them.
    """
    if extent == 0:  # no iterations: exact factors multiply to 0
        return np.array([[0 if policy == "divisors" else 1] + [1] * (parts - 1)], np.int32)
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
        if not keep.any():  # a short loop: take the least padding possible
            keep = outer * inner == (outer * inner).min()
    return _narrow(np.concatenate([outer[:, None], rows], axis=1)[keep], extent)


def _narrow(table: Numbers, extent: int) -> Matrix:
    """Only rows whose factors fit 32 bits."""
    table = table[(table <= _LARGEST).all(axis=1)]
    if not len(table):
        raise ScheduleError(
            f"a loop of {extent} iterations is too long to be tiled: a factor is {_LARGEST} at most"
        )
    return np.ascontiguousarray(table.astype(np.int32))


def _extended(rows: Numbers, values: Numbers, most: int) -> Numbers:
    """Every row with every value in front whose product is at most `most`, sorted by that value. If
    there are too many, an evenly spread sample. `values` must be sorted.
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
    """An evenly spread sample of at most 50,000 rows, which bounds memory."""
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
    # long loops: small numbers, divisors, and round numbers in between
    parted = [np.arange(1, 65), np.arange(16, _FINE + 1, 16), powers, _divisors(extent)]
    parted += [np.arange(32, 64) << k for k in range(_FINE.bit_length() - 6, extent.bit_length())]
    steps = np.unique(np.concatenate(parted))
    return np.asarray(steps[steps <= extent], np.int64)


def _divisors(extent: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """All divisors, sorted. Prime factors above 10**6 are not split off, which matters only for
    extents above 10**12.
    """
    divisors, left, p = [1], extent, 2
    while p * p <= left and p <= _LARGEST_PRIME:
        powers = [1]
        while left % p == 0:
            left //= p
            powers.append(powers[-1] * p)
        if len(powers) > 1:
            divisors = [d * q for d in divisors for q in powers]
        p += 1 if p == 2 else 2
    if left > 1:
        divisors += [d * left for d in divisors]
    return np.array(sorted(divisors), np.int64)
