"""Polynomials over columns, and bounds of them, as functions of many rows."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.expr.ints import Int, floordiv, maximum, of, var
from tilesmith.space.domains import compile_bounds, compile_ints

COLUMNS = ("a", "b", "c", "d")


def values() -> list[Int]:
    a, b, c, d = map(var, COLUMNS)
    return [
        a * b, a * b * c, c * d + a, maximum(a * b, c * 7), floordiv(a * b * c, d) * d + 1, of(5),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_rows_within_bounds_are_those_whose_values_are(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, 40, (rng.integers(0, 3000), len(COLUMNS)), np.int32)
    if seed % 2:
        rows = np.asfortranarray(rows)
    every = values()
    # From bounds that most rows keep to those that hardly any keeps.
    most = [int(rng.choice([3, 60, 900, 1 << 40])) for _ in every]
    least = [int(rng.choice([0, 0, 20])) for _ in every]
    want = np.ones(len(rows), bool)
    for v, low, high in zip(compile_ints(every, COLUMNS)(rows), least, most, strict=True):
        want &= (v >= low) & (v <= high)
    bounds = list(zip(every, least, most, strict=True))
    found = compile_bounds(bounds, COLUMNS)(rows)
    assert found.tolist() == np.flatnonzero(want).tolist()


def test_products_are_of_64_bits() -> None:
    a, b = var("a"), var("b")
    rows = np.full((1, 4), 1 << 20, np.int32)
    assert compile_ints([a * b], COLUMNS)(rows)[0].tolist() == [1 << 40]
    assert compile_bounds([(a * b, 0, 1 << 39)], COLUMNS)(rows).tolist() == []
    assert compile_bounds([(a * b, 0, 1 << 40)], COLUMNS)(rows).tolist() == [0]
    assert compile_bounds([], COLUMNS)(rows).tolist() == [0]
