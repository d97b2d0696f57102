"""Proves that a map of indices is one-to-one.

The proof solves for the indices, given the values. A value with a single unknown determines it. A
value such as 16*x + y with y in 0..15 determines both x and y (mixed radix). The proof holds for
all values of open sizes. If it fails and the map has few elements, all of them are enumerated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import gcd, prod
from typing import Any

import numpy as np

from tilesmith.expr.intervals import Unknown, bounds
from tilesmith.expr.ints import (
    ZERO,
    Atom,
    FloorDiv,
    Int,
    Opaque,
    atom,
    evaluate_int,
    exact_quotient,
    nonnegative,
    opaque_atoms,
)

_MOST_TRIED = 1 << 18  # elements to enumerate at most, about as long as a schedule may take
_MOST_VALUES = 64  # values one proof may derive at most; real layouts need a handful


def is_injective(values: Sequence[Int], ranges: Mapping[str, Int]) -> bool:
    """True only if different indices give different values. Each name in `ranges` runs from 0 to
    the given number (exclusive); other names are open sizes. False if no proof was found.
    """
    if any(n.const == 0 for n in ranges.values()):
        return True
    moving = {n: e for n, e in ranges.items() if e.const != 1}
    fixed = [p.substitute({n: ZERO for n in ranges if n not in moving}) for p in values]
    return _Proof(fixed, moving).succeeds() or _by_trying(fixed, moving)


class _Proof:
    def __init__(self, values: Sequence[Int], ranges: Mapping[str, Int]) -> None:
        self.wanted = ranges.keys()
        self.ranges = dict(ranges)
        self.values = list(dict.fromkeys(values))
        self.known: set[Atom] = set()
        self.digits = list(self._digits())
        for _, zero in self.digits:
            self._add(zero)

    def _digits(self) -> Iterator[tuple[Atom, Int]]:
        """Equations that hold by definition of floor division: x = b*(x // b) + r with a new digit
        r below b, and the same for x // a with x // (a*b). Yields x and the difference of both
        sides, which is 0.
        """
        divisions = [d for p in self.values for d in opaque_atoms(p) if isinstance(d, FloorDiv)]
        divisions = list(dict.fromkeys(divisions))
        for d in divisions:
            base, by = _divided(d)
            if by.names & self.ranges.keys():
                continue
            finer: list[tuple[Atom, Int]] = []
            if base.name in self.ranges:
                finer.append((base.name, by))
            for e in divisions:
                other, divisor = _divided(e)
                times = exact_quotient(by, divisor) if other == base and e is not d else None
                if times is not None:
                    finer.append((e, times))
            for u, times in finer:
                digit = f"{u!r} % {times} of {d!r}"
                self.ranges[digit] = times
                yield u, atom(u) - times * atom(d) - atom(digit)

    def succeeds(self) -> bool:
        while not self.wanted <= self.known:
            before = len(self.known), len(self.values)
            for p in tuple(self.values):
                self._use(p)
            if (len(self.known), len(self.values)) == before or len(self.values) > _MOST_VALUES:
                return False
        return True

    def _use(self, p: Int) -> None:
        """Derives what follows from knowing the value of p."""
        parts = self._unknown(p)
        if parts is None:
            return
        if len(parts) == 1:
            ((a, c),) = parts.items()
            if nonnegative(c - 1) or nonnegative(-c - 1):
                self.known.add(a)
            return
        for u, zero in self.digits:
            if u in parts and p != zero:
                self._add(p - parts[u] * zero)
        for c in dict.fromkeys(parts.values()):
            self._split(parts, c)
        self._remainder(parts)

    def _unknown(self, p: Int) -> dict[Atom, Int] | None:
        """The coefficients of the unknowns in p; None if p is not linear in them."""
        parts: dict[Atom, Int] = {}
        for m, c in p.terms.items():
            moving = [a for a in m if self._moves(a)]
            if not moving:
                continue
            if len(moving) > 1:
                return None
            rest = list(m)
            rest.remove(moving[0])
            # its coefficient depends on known terms, so it differs between elements
            if any(not isinstance(a, str) or a in self.ranges for a in rest):
                return None
            parts[moving[0]] = parts.get(moving[0], ZERO) + Int({tuple(rest): c})
        return parts

    def _moves(self, a: Atom) -> bool:
        if a in self.known:
            return False
        if isinstance(a, str):
            return a in self.ranges
        names = a.names() & self.ranges.keys()
        if names <= self.known or self._settled(a):
            self.known.add(a)
            return False
        return True

    def _settled(self, a: Opaque) -> bool:
        """Whether a division is constant, or follows from a finer division that is known."""
        if not isinstance(a, FloorDiv) or a.b.names & self.ranges.keys():
            return False
        try:
            low, high = bounds(atom(a), self.ranges)
            if low == high:
                return True
        except Unknown:
            pass
        base, by = _divided(a)
        finer = (_divided(k) for k in self.known if isinstance(k, FloorDiv))
        return any(other == base and exact_quotient(by, b) is not None for other, b in finer)

    def _split(self, parts: dict[Atom, Int], c: Int) -> None:
        """c*x + y determines both x and y if y takes fewer than c consecutive values."""
        if not nonnegative(c - 1):
            return
        x, y = ZERO, ZERO
        for a, factor in parts.items():
            times = exact_quotient(factor, c)
            if times is None:
                y = y + factor * atom(a)
            else:
                x = x + times * atom(a)
        if not x.terms or not y.terms:
            return
        try:
            low, high = bounds(y, self.ranges)
        except Unknown:
            return
        if nonnegative(c - 1 - (high - low)):
            self._add(x)
            self._add(y)

    def _remainder(self, parts: dict[Atom, Int]) -> None:
        """(x + k) % b gives x if k is known and x takes at most b values."""
        for d, c in parts.items():
            if not isinstance(d, FloorDiv) or c != -d.b or (b := d.b.const) is None:
                continue
            rest = {a: k for a, k in parts.items() if a is not d}
            inner = self._unknown(d.a)
            if inner is None or inner != rest or len(rest) != 1:
                continue
            ((a, k),) = rest.items()
            step, extent = k.const, self.ranges[a].const if isinstance(a, str) else None
            if step and extent and extent <= b and gcd(step, b) == 1:
                self.known.add(a)

    def _add(self, p: Int) -> None:
        if p not in self.values:
            self.values.append(p)


def _divided(d: FloorDiv) -> tuple[Int, Int]:
    """The dividend and the divisor of nested divisions: (x // 4) // 16 is x // 64."""
    base, by = d.a, d.b
    while len(base.terms) == 1:
        ((m, c),) = base.terms.items()
        if c != 1 or len(m) != 1 or not isinstance(m[0], FloorDiv):
            break
        base, by = m[0].a, by * m[0].b
    return base, by


def _by_trying(values: Sequence[Int], ranges: Mapping[str, Int]) -> bool:
    for group in _groups(values, ranges):
        extents = [ranges[n].const for n in group]
        own = [p for p in values if p.names & set(group)]
        sizes = [n for n in extents if n is not None]
        if len(sizes) < len(extents) or prod(sizes) > _MOST_TRIED or not own:
            return False
        if any(not p.names <= set(group) for p in own):
            return False  # an extent is an open size
        grid = np.indices(sizes).reshape(len(sizes), -1)
        env: dict[str, Any] = dict(zip(group, grid, strict=True))
        places = [
            np.broadcast_to(np.asarray(evaluate_int(p, env, _no_opaque)), grid.shape[1:])
            for p in own
        ]
        if np.unique(np.stack(places), axis=1).shape[1] < grid.shape[1]:
            return False
    return True


def _groups(values: Sequence[Int], ranges: Mapping[str, Int]) -> Iterator[list[str]]:
    """Connected components of the indices: indices that occur in one value are tried together."""
    left = dict.fromkeys(ranges)
    while left:
        group = {next(iter(left))}
        while (
            more := group.union(*(p.names & left.keys() for p in values if p.names & group))
        ) != group:
            group = more
        for n in group:
            del left[n]
        yield sorted(group)


def _no_opaque(a: Opaque) -> int:
    raise AssertionError(a)
