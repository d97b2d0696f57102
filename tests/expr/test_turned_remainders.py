"""Bounds of polynomials that a remainder is taken from, such as those of `x % n < n`."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilesmith.expr.intervals import Unknown, bounds
from tilesmith.expr.ints import Int, of, var

X, Y, Z = var("x"), var("y"), var("z")
EXTENTS = {"x": of(7), "y": of(12), "z": of(5)}


def values(p: Int) -> list[int]:
    ranges = (range(e.number) for e in EXTENTS.values())
    points = itertools.product(*ranges)
    return [p.substitute(dict(zip(EXTENTS, map(of, v), strict=True))).number for v in points]


@pytest.mark.parametrize(
    ("p", "want"),
    [
        (27 - (8 * X + Y) % of(28), (0, 27)),
        (3 - (X // of(2)) % of(2), (2, 3)),
        # as `clean` leaves (32*x + y) // 4 % 8 when it has taken the multiples out
        (7 - (8 * X + Y // of(4)) + 8 * ((32 * X + Y) // of(32)), (0, 7)),
        (13 - 2 * X - (Y // of(2)) % of(2), (0, 13)),
        (16 * (Y // of(4)), (0, 32)),
    ],
)
def test_they_are_tight(p: Int, want: tuple[int, int]) -> None:
    low, high = bounds(p, EXTENTS)
    assert (low.const, high.const) == want
    every = values(p)
    assert want[0] <= min(every)
    assert max(every) <= want[1]


def test_random_ones_hold() -> None:
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(60):
        a, b = (int(n) for n in rng.integers(2, 9, 2))
        s, t, u, c = (int(n) for n in rng.integers(-4, 5, 4))
        x = int(rng.integers(1, 6)) * X + int(rng.integers(1, 6)) * Y + Z
        p = s * (x // of(a) % of(b)) + t * (x % of(a)) + u * (x // of(a * b)) + c * X
        try:
            low, high = bounds(p, EXTENTS)
        except Unknown:
            continue
        found += 1
        every = values(p)
        assert low.const is not None
        assert high.const is not None
        assert low.const <= min(every)
        assert max(every) <= high.const
    assert found > 20
