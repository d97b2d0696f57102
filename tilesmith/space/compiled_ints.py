"""Compiles integer expressions over a variant's columns to functions of a matrix of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilesmith.expr.ints import Atom, FloorDiv, Int, Maximum, Monomial
from tilesmith.space.domains import Matrix

Column = np.ndarray[Any, Any]


def compile_int(p: Int, columns: tuple[str, ...]) -> Callable[[Matrix], Column]:
    """Compiles a polynomial over columns to a function of a whole matrix."""
    every = compile_ints([p], columns)
    return lambda rows: every(rows)[0]


def compile_ints(
    values: Sequence[Int], columns: tuple[str, ...]
) -> Callable[[Matrix], list[Column]]:
    """Compiles several polynomials; products that they share are computed once, in 64 bits."""
    index = {c: k for k, c in enumerate(columns)}

    def of_factor(a: Atom, rows: Matrix, products: dict[Monomial, Column]) -> Column:
        if isinstance(a, str):
            return rows[:, index[a]].astype(np.int64)
        assert isinstance(a, Maximum | FloorDiv), a
        left, right = total(a.a, rows, products), total(a.b, rows, products)
        return np.maximum(left, right) if isinstance(a, Maximum) else left // right

    def of_product(m: Monomial, rows: Matrix, products: dict[Monomial, Column]) -> Column:
        if m not in products:
            last = of_factor(m[-1], rows, products)
            products[m] = last if len(m) == 1 else of_product(m[:-1], rows, products) * last
        return products[m]

    def total(p: Int, rows: Matrix, products: dict[Monomial, Column]) -> Column:
        out: Column | None = None
        for m, c in p.terms.items():
            term = of_product(m, rows, products) if m else np.ones(len(rows), np.int64)
            term = term if c == 1 else term * c
            out = term if out is None else out + term
        return np.zeros(len(rows), np.int64) if out is None else out

    def every(rows: Matrix) -> list[Column]:
        products: dict[Monomial, Column] = {}
        return [total(p, rows, products) for p in values]

    return every
