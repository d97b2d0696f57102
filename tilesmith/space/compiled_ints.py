"""Compiles integer expressions over a variant's columns to functions of a matrix of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilesmith.expr.ints import Atom, FloorDiv, Int, Maximum, Monomial
from tilesmith.space.domains import Matrix

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
