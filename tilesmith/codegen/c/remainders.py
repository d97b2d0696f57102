"""Finds remainders in polynomials: an Int holds a % b as a - b*(a // b)."""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.expr.ints import FloorDiv, Int, Monomial, Opaque


class Remainder(Opaque):
    """a % b with a number b > 0: the value lies in [0, b)."""

    __slots__ = ("a", "b")
    __match_args__ = ("a", "b")

    def __init__(self, a: Int, b: int) -> None:
        self.a, self.b = a, b
        self.key = f"({a}) % {b}"

    def names(self) -> frozenset[str]:
        return self.a.names

    def substitute(self, env: Mapping[str, Int]) -> Int:
        return self.a.substitute(env) % self.b


def with_remainders(p: Int) -> Int:
    """The same polynomial, with `c*a - c*b*(a // b)` written as `c*(a % b)`, and
    `c*(x // a) - c*b*(x // (a*b))` as `c*(x // a % b)`.
    """
    if p.plain:
        return p
    terms = dict(p.terms)
    found = True
    while found:
        found = False
        for m, c in terms.items():
            if len(m) == 1 and isinstance(d := m[0], FloorDiv) and _replace(terms, d, c):
                found = True
                break
    return Int(terms)


def _replace(terms: dict[Monomial, int], d: FloorDiv, c: int) -> bool:
    """Replaces the remainder that ends with `c*d`, if all of it is there."""
    n = d.b.const
    if n is None or n <= 0:
        return False
    scale = -c // n
    parts = d.a.terms
    if c % n or any(terms.get(m) != scale * k for m, k in parts.items() if m):
        return _replace_digit(terms, d, n, c)
    for m, k in ((d,), c), *((m, scale * k) for m, k in parts.items()):
        left = terms.get(m, 0) - k
        terms.pop(m, None)
        if left:
            terms[m] = left
    terms[(Remainder(d.a, n),)] = scale
    return True


def _replace_digit(terms: dict[Monomial, int], d: FloorDiv, n: int, c: int) -> bool:
    """The same for a digit of a number: d is x // n, and x // a with a divisor a of n is there."""
    for m, scale in terms.items():
        if len(m) != 1 or not isinstance(e := m[0], FloorDiv) or e is d or e.a != d.a:
            continue
        a = e.b.const
        if a is None or a <= 0 or n % a or c != -scale * (n // a):
            continue
        del terms[m], terms[(d,)]
        terms[(Remainder(Int({m: 1}), n // a),)] = scale
        return True
    return False
