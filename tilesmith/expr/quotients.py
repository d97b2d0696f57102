"""Divisions in indices: without terms too small to change them, and none of a loop that is split
where the quotient changes.
"""

from __future__ import annotations

from functools import cache
from math import isqrt

from tilesmith.expr.intervals import Unknown, bounds
from tilesmith.expr.ints import ZERO, FloorDiv, Int, atom, floordiv, of, opaque_atoms, product

Ranges = dict[str, Int]


def simple_quotients(p: Int, ranges: Ranges) -> Int:
    """p with simpler divisions: with i in 64, `(64*k + i) // 192` is `k // 3`."""
    if p.plain:
        return p
    out = ZERO
    for m, c in p.terms.items():
        parts = (_quotient(a, ranges) if isinstance(a, FloorDiv) else atom(a) for a in m)
        out = out + product([of(c), *parts])
    return out


def _quotient(a: FloorDiv, ranges: Ranges) -> Int:
    top, n = simple_quotients(a.a, ranges), a.b.const
    for step in _divisors(n or 1):
        large = Int({m: c - c % step for m, c in top.terms.items() if c - c % step})
        try:
            low, high = bounds(top - large, ranges)
        except Unknown:
            continue
        if (
            low.const is not None
            and low.const >= 0
            and high.const is not None
            and high.const < step
        ):
            whole = Int({m: c // step for m, c in large.terms.items()})
            return floordiv(whole, of((n or 1) // step))
    return floordiv(top, a.b)


@cache
def _divisors(n: int) -> tuple[int, ...]:
    """Those above 1, the largest first."""
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return tuple(sorted({d for s in small for d in (s, n // s)} - {1}, reverse=True))


def turns(p: Int, loop: str, extent: int) -> int | None:
    """The fewest iterations of a loop, of which it has a multiple, that stay within one quotient of
    p; None if there is no such number.
    """
    found = []
    for a in opaque_atoms(p):
        step = a.a.coefficient(loop).const if isinstance(a, FloorDiv) else None
        n = a.b.const if isinstance(a, FloorDiv) else None
        if step and n and step > 0 and n % step == 0:
            found.append(n // step)
    return min((k for k in found if 1 < k < extent and extent % k == 0), default=None)
