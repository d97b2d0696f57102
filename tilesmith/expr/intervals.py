"""Ranges and proofs of `Int`s: the bounds of a polynomial while loops run, and whether it is never
negative, given what is known of sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.expr.ints import (
    ZERO,
    Atom,
    FloorDiv,
    Int,
    Monomial,
    atom,
    exact_quotient,
    nonnegative,
    opaque_atoms,
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
