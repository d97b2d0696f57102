"""Domains of numeric decisions, as tables with a row per choice, so that sampling, checking and
mutating a whole population are a few NumPy calls; and integer expressions over the columns of such
tables, compiled to functions of a matrix of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import Atom, FloorDiv, Int, Maximum, Monomial
from tilesmith.schedule.sample import SampleChoice, SampleTile

Matrix = np.ndarray[Any, np.dtype[np.int32]]
Rng = np.random.Generator
Numbers = np.ndarray[Any, Any]

# Sampling weights of tiles that need not divide: exact ones; those with little padding and a
# dividing innermost factor; with little padding; others. Tails cost compile time and speed.
_SHARES = np.array([0.5, 0.25, 0.15, 0.1])
_LITTLE = 1.1
_SLOTS = 4096  # that probabilities are rounded to
_MOST_FAVOURED = 256  # bounds the ratio of two weights: a prime has few exact tiles, and poor ones
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / the golden ratio, rounded to an odd number


class _Neighbourhood:
    """The small changes of each choice of a table. They are computed at first use, so that large
    tables do not delay the first candidates, and once for all loops of the same extent.
    """

    def __init__(self, table: Matrix, extent: int, exact: bool) -> None:
        self.table, self.extent, self.exact = table, extent, exact

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

    def of(self, at: Numbers) -> tuple[Numbers, Numbers]:
        """The positions of the neighbours of these rows, padded to a matrix, and their counts.

        A neighbour has a prime factor moved to another level. If tiles need not divide, it may also
        have an inner factor slightly larger or smaller and the outermost one adapted.
        """
        table, counts = self._known
        unknown = at[counts.take(at, mode="wrap") < 0]
        if len(unknown):
            wanted = np.unique(unknown % len(self.table))
            changed = self._changes(self.table.take(wanted, axis=0))
            positions = self.index(changed.reshape(-1, changed.shape[-1]))
            positions = positions.reshape(len(changed), len(wanted)).T
            positions[positions == wanted[:, None]] = -1
            table[wanted] = -np.sort(-positions, axis=1)
            counts[wanted] = (positions >= 0).sum(axis=1)
        return table, counts

    @cached_property
    def _known(self) -> tuple[Numbers, Numbers]:
        """The results of `of`; a count of -1 marks rows that are not computed yet."""
        width = self.table.shape[1]
        moves = width * (width - 1) + (0 if self.exact else 4 * (width - 1))
        return np.empty((len(self.table), moves), np.int32), np.full(len(self.table), -1, np.int64)

    def _changes(self, rows: Matrix) -> Matrix:
        """All changes of each row, of the shape (changes, rows, columns)."""
        width = rows.shape[1]
        source, to = _moves(width)
        # the smallest prime factor of one column goes to another
        primes = _PRIME[np.minimum(rows, len(_PRIME) - 1)]
        moved = np.repeat(rows[None], len(source), axis=0)
        each = np.arange(len(source))
        factors = primes.T[source]
        moved[each, :, source] //= factors
        moved[each, :, to] *= factors
        if self.exact:
            return moved
        # each inner column alone, in four ways; the outermost one covers what is left
        inner, each = rows.T[1:], np.arange(width - 1)
        near = np.maximum(np.stack((inner + 1, inner - 1, inner * 2, inner // 2), axis=1), 1)
        nudged = np.empty((*near.shape, width), rows.dtype)
        nudged[...] = rows
        nudged[each, :, :, each + 1] = near
        others = inner.prod(axis=0, dtype=np.int64) // inner
        nudged[..., 0] = -(-self.extent // (others[:, None] * near))
        return np.concatenate([moved, nudged.reshape(-1, *rows.shape)])


@cache
def _moves(width: int) -> tuple[Numbers, Numbers]:
    """All pairs of two different columns, as two arrays."""
    pairs = [(a, b) for a in range(width) for b in range(width) if a != b]
    source, to = np.array(pairs, np.intp).reshape(-1, 2).T
    return source, to


@dataclass(frozen=True, eq=False)
class Domain:
    """`columns` are chosen together: each row of `table` is one choice."""

    columns: tuple[str, ...]
    table: Matrix
    tile: bool  # factors of one loop, which can be moved between levels
    extent: int = 0  # of that loop
    exact: bool = True  # the factors multiply to it
    shared: _Neighbourhood | None = None  # of all domains with this table
    probabilities: tuple[float, ...] = ()  # of the rows of a choice, if they differ

    @property
    def size(self) -> int:
        return len(self.table)

    @cached_property
    def _near(self) -> _Neighbourhood:
        return self.shared or _Neighbourhood(self.table, self.extent, self.exact)

    def index(self, rows: Matrix) -> Numbers:
        """The position of each row in the table; -1 for one that is not in it."""
        return self._near.index(rows)

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
        """Uniform, except that tiles with little padding are drawn more often than others, and
        numbers with probabilities by these.
        """
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
        if self.probabilities:
            shares = np.array(self.probabilities) / sum(self.probabilities)
            times = np.where(shares > 0, np.maximum(np.rint(shares * _SLOTS), 1), 0)
            return np.repeat(np.arange(self.size, dtype=np.int32), times.astype(np.int64))
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
        table, counts = self._near.of(at)
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
            table, counts = self._near.of(np.array([at]))
            return np.asarray(self.table.take(np.unique(table[at, : counts[at]]), axis=0))
        return np.asarray(np.delete(self.table, at, axis=0)) if at >= 0 else self.table

    def _other(self, rng: Rng, at: Numbers) -> Numbers:
        """A random other row, if there is one."""
        return np.asarray((at + rng.integers(1, max(self.size, 2), len(at))) % self.size)


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
        table = np.array(sample.values, np.int32)[:, None]
        return Domain(sample.columns, table, tile=False, probabilities=sample.probabilities)
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
    shared = _neighbourhood(
        extent, sample.parts, sample.policy, sample.max_innermost, sample.lanes, sample.exact
    )
    return Domain(sample.columns, table, True, extent, sample.exact, shared)


@lru_cache(maxsize=256)
def _neighbourhood(
    extent: int, parts: int, policy: str, max_innermost: int, lanes: int, exact: bool
) -> _Neighbourhood:
    table = tile_table(extent, parts, policy, max_innermost, lanes)
    return _Neighbourhood(table, extent, exact)


_STEPS = (1, 2, 4, 8)


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
    if policy == "steps":
        return _with_steps(tile_table(extent, parts - 1, "vector", max_innermost, lanes))
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


def _with_steps(table: Matrix) -> Matrix:
    """The innermost factor as two, of which the second one is few steps."""
    width = table[:, -1:]
    cut = [(np.concatenate([table[:, :-1], width // n, width * 0 + n], axis=1), n) for n in _STEPS]
    return np.concatenate([rows[(width % n == 0)[:, 0]] for rows, n in cut])


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


@dataclass(frozen=True)
class Limit:
    """`value` must lie in [least, most]; both bounds are numbers."""

    name: str
    value: Int
    most: int
    least: int = 0


Column = np.ndarray[Any, Any]
_Products = dict[Monomial, Column]  # those computed so far


def compile_int(p: Int, columns: tuple[str, ...]) -> Callable[[Matrix], Column]:
    """Compiles a polynomial over columns to a function of a whole matrix."""
    every = compile_ints([p], columns)
    return lambda rows: every(rows)[0]


def compile_ints(
    values: Sequence[Int], columns: tuple[str, ...]
) -> Callable[[Matrix], list[Column]]:
    """Compiles several polynomials; products that they share are computed once."""
    index = {c: k for k, c in enumerate(columns)}

    def every(rows: Matrix) -> list[Column]:
        products: _Products = {}
        return [_total(p, index, rows, products) for p in values]

    return every


def compile_bounds(
    bounds: Sequence[tuple[Int, int, int]], columns: tuple[str, ...]
) -> Callable[[Matrix], Column]:
    """Compiles (value, least, most) to the positions of the rows that are within all bounds.

    The simplest values come first, and the others are computed only for the rows that are left:
    of random rows for a GPU, one in a thousand may be within all bounds.
    """
    index = {c: k for k, c in enumerate(columns)}
    ordered = sorted(bounds, key=lambda b: _num_factors(b[0]))

    def within(rows: Matrix) -> Column:
        at, good = np.arange(len(rows)), np.ones(len(rows), bool)
        products: _Products = {}
        for value, least, most in ordered:
            v = _total(value, index, rows, products)
            good &= v <= most
            if least:
                good &= v >= least
            count = np.count_nonzero(good)
            if 2 * count < len(good):
                keep = np.flatnonzero(good)
                at, good, products = at.take(keep), np.ones(count, bool), {}
                rows = rows.T.take(keep, axis=1).T  # column by column, as it is read
        return at[good]

    return within


def _num_factors(p: Int) -> int:
    """About how long it takes to compute."""
    return sum(1 + sum(map(_num_in_factor, m)) for m in p.terms)


def _num_in_factor(a: Atom) -> int:
    return _num_factors(a.a) + _num_factors(a.b) if isinstance(a, Maximum | FloorDiv) else 1


def _factor(a: Atom, index: Mapping[str, int], rows: Matrix, products: _Products) -> Column:
    if isinstance(a, str):
        return rows[:, index[a]].astype(np.int64)
    assert isinstance(a, Maximum | FloorDiv), a
    left, right = (_total(x, index, rows, products) for x in (a.a, a.b))
    return np.maximum(left, right) if isinstance(a, Maximum) else left // right


def _product(m: Monomial, index: Mapping[str, int], rows: Matrix, products: _Products) -> Column:
    if m not in products:
        last = _factor(m[-1], index, rows, products)
        products[m] = last if len(m) == 1 else _product(m[:-1], index, rows, products) * last
    return products[m]


def _total(p: Int, index: Mapping[str, int], rows: Matrix, products: _Products) -> Column:
    """The polynomial's values, in 64 bits."""
    out: Column | None = None
    for m, c in p.terms.items():
        term = _product(m, index, rows, products) if m else np.ones(len(rows), np.int64)
        term = term if c == 1 else term * c
        out = term if out is None else out + term
    return np.zeros(len(rows), np.int64) if out is None else out
