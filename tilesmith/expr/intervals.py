"""Ranges and proofs of `Int`s: the bounds of a polynomial while loops run, whether it is never
negative, given what is known of sizes, linear addresses, simpler quotients, and whether a map of
indices is one-to-one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from math import gcd, isqrt, prod
from typing import Any

import numpy as np

from tilesmith.expr.ints import (
    ONE,
    ZERO,
    Atom,
    FloorDiv,
    Int,
    IntLike,
    Monomial,
    Opaque,
    atom,
    evaluate_int,
    exact_quotient,
    floordiv,
    nonnegative,
    of,
    opaque_atoms,
    product,
)


class Unknown(Exception):
    """An interval has no closed form."""


def bounds(p: Int, inner: Mapping[str, Int]) -> tuple[Int, Int]:
    """The smallest and largest value of p while each name in `inner` runs over [0, extent), as
    expressions over the other names.
    """
    if p.names.isdisjoint(inner):
        return p, p
    if p.plain and (affine := _affine_bounds(p, inner)) is not None:
        return affine
    low: dict[Monomial, int] = {}
    coefficients: dict[Atom, Int] = {}
    for m, c in p.terms.items():
        moving = [a for a in m if (a in inner if isinstance(a, str) else a.names() & inner.keys())]
        if not moving:
            low[m] = c
            continue
        if len(moving) > 1:
            raise Unknown(f"{p} is not affine")
        rest = list(m)
        rest.remove(moving[0])
        coefficients[moving[0]] = coefficients.get(moving[0], ZERO) + Int({tuple(rest): c})
    divisions = [a for a in coefficients if isinstance(a, FloorDiv)]
    if len(divisions) > 1:  # the dividend may contain another remainder: outer ones first
        divisions.sort(key=lambda a: -sum(1 for _ in opaque_atoms(a.a)))
    if divisions:
        if (found := _remainder_bounds(p, coefficients, divisions, inner)) is not None:
            return found
        turned = {a: -c for a, c in coefficients.items()}
        if (found := _remainder_bounds(-p, turned, divisions, inner, whole=True)) is not None:
            return -found[1], -found[0]
    lo = hi = Int(low)
    for a, factor in coefficients.items():
        if isinstance(a, str):
            a_low, a_high = ZERO, inner[a] - 1
        elif isinstance(a, FloorDiv) and a.b.names.isdisjoint(inner):
            x_low, x_high = bounds(a.a, inner)
            a_low, a_high = x_low // a.b, x_high // a.b
        else:
            raise Unknown(f"{a} has no closed range")
        if nonnegative(factor):
            lo, hi = lo + factor * a_low, hi + factor * a_high
        elif nonnegative(-factor):
            lo, hi = lo + factor * a_high, hi + factor * a_low
        else:
            raise Unknown(f"the sign of {factor} is not known")
    return lo, hi


def _remainder_bounds(
    p: Int, coefficients: Mapping[Atom, Int], divisions: list[FloorDiv], inner: Mapping[str, Int],
    whole: bool = False,
) -> tuple[Int, Int] | None:  # fmt: skip
    """The bounds of a polynomial that holds a remainder; None if it holds none that is added. With
    `whole`, the dividend is there as well: a quotient alone is no remainder.
    """
    for d in divisions:  # s*x - s*b*(x // b) is s*(x % b), which lies in [0, s*(b - 1)]
        scale = exact_quotient(-coefficients[d], d.b)
        if scale is None or not nonnegative(scale):
            continue
        rest_p = p - scale * (d.a - d.b * atom(d))
        if any(d in m for m in rest_p.terms) or (
            whole and any(m in rest_p.terms for m in d.a.terms if m)
        ):
            continue
        rest_low, rest_high = bounds(rest_p, inner)
        x_low, x_high = bounds(d.a, inner)
        if nonnegative(x_low) and nonnegative(d.b - 1 - x_high):
            return rest_low + scale * x_low, rest_high + scale * x_high
        return rest_low, rest_high + scale * (d.b - 1)
    # s*(y + x // a) - s*b*((a*y + x) // (a*b)) is s*((y + x // a) % b)
    for d in divisions:
        for e in divisions:
            times = exact_quotient(d.b, e.b) if e is not d else None
            scale = coefficients[e]
            if times is None or coefficients[d] != -scale * times or not nonnegative(scale):
                continue
            if (more := ZERO if e.a == d.a else exact_quotient(d.a - e.a, e.b)) is not None:
                rest_p = p - scale * (atom(e) + more - times * atom(d))
                rest_low, rest_high = bounds(rest_p, inner)
                return rest_low, rest_high + scale * (times - 1)
    for d in divisions:  # s*(x // b) - s*t*e is s*((x - t*b*e) // b), where x may hold e as well
        for e in divisions:
            scale = coefficients[d]
            if e is d or d.b.const is None or e not in set(opaque_atoms(d.a)):
                continue
            times = exact_quotient(-coefficients[e], scale) if nonnegative(scale) else None
            if times is not None and not whole:
                rest_low, rest_high = bounds(p - scale * (atom(d) - times * atom(e)), inner)
                x_low, x_high = bounds(d.a - times * d.b * atom(e), inner)
                return rest_low + scale * (x_low // d.b), rest_high + scale * (x_high // d.b)
    return None


def _affine_bounds(p: Int, inner: Mapping[str, Int]) -> tuple[Int, Int] | None:
    """The same in Python's integers, for sums of loops with constant extents."""
    low = high = 0
    rest: dict[Monomial, int] = {}
    for m, c in p.terms.items():
        if len(m) > 1:
            return None
        extent = inner.get(m[0]) if m else None  # type: ignore[arg-type]
        if extent is None:
            rest[m] = c
        elif (n := extent.const) is None:
            return None
        elif c > 0:
            high += c * (n - 1)
        else:
            low += c * (n - 1)
    free = Int(rest)
    return free + low, free + high


Rules = Mapping[Monomial, Int]


def reduce_modulo(p: Int, rules: Rules) -> Int:
    """The normal form of p under `product of sizes -> extent`. Left sides share no variables, so
    the form is unique.
    """
    if not rules:
        return p
    changed = True
    while changed:
        changed, out = False, ZERO
        for m, c in p.terms.items():
            for left, right in rules.items():
                rest = list(m)
                try:
                    for a in left:
                        rest.remove(a)
                except ValueError:
                    continue
                out = out + Int({tuple(rest): c}) * right
                changed = True
                break
            else:
                out = out + Int({m: c})
        p = out
    return p


def proves(p: Int, ranges: Mapping[str, Int], rules: Rules) -> bool:
    """True only if p >= 0 for all values of the loops in `ranges` and all sizes that satisfy
    `rules`.
    """
    try:
        low, _ = bounds(p, ranges)
    except Unknown:
        return False
    return nonnegative(reduce_modulo(low, rules))


# Linear addresses: the strides of a shape, and the offset of an element.
def row_major(shape: Sequence[Int], align: tuple[int, int, int] | None = None) -> tuple[Int, ...]:
    """The strides in elements; that of the last dimension is 1.

    `align` is (dimension, multiple, offset): the stride of that dimension is padded to `offset`
    modulo `multiple`, if it is a number.
    """
    return _row_major(tuple(shape), align)


@lru_cache(maxsize=1 << 12)  # each pass asks for those of every access
def _row_major(shape: tuple[Int, ...], align: tuple[int, int, int] | None) -> tuple[Int, ...]:
    out: list[Int] = []
    step = ONE
    for d in reversed(range(len(shape))):
        if align is not None and align[0] == d and (n := step.const) is not None:
            _, multiple, offset = align
            step = of(n + (offset - n) % multiple)
        out.append(step)
        if d:  # the first dimension has no outer stride
            step = step * shape[d]
    return tuple(reversed(out))


def linear(index: Iterable[Int], strides: Iterable[IntLike]) -> Int:
    """The offset of an element, in elements."""
    terms: dict[Monomial, int] = {}
    for p, stride in zip(index, strides, strict=True):
        n = stride.const if isinstance(stride, Int) else int(stride)
        for m, c in p.terms.items() if n is not None else (p * stride).terms.items():
            total = terms.get(m, 0) + (c if n is None else c * n)
            if total:
                terms[m] = total
            else:
                terms.pop(m, None)
    return Int(terms)


def step_along(name: str, index: Iterable[Int], strides: Iterable[IntLike]) -> Int:
    """The elements by which one step of the variable moves; it must not occur in a division."""
    return linear((p.coefficient(name) for p in index), strides)


# Divisions in indices: without terms too small to change them, and none of a loop that is split
# where the quotient changes.
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


# Proves that a map of indices is one-to-one.
#
# The proof solves for the indices, given the values. A value with a single unknown determines it.
# A value such as 16*x + y with y in 0..15 determines both x and y (mixed radix). The proof holds
# for all values of open sizes. If it fails and the map has few elements, all of them are
# enumerated.
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
