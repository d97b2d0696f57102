"""Integers of a model as expressions of its open sizes, found from the values that they have at
several points.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from tilesmith.base.errors import GraphError
from tilesmith.expr.ints import Int, Opaque, evaluate_int, of, product, var

Sizes = Mapping[str, int]  # with their leading #


class CannotOpen(GraphError):
    """Why a model has no form that holds for all of its sizes."""


class NeedsPoint(CannotOpen):
    """Two points do not tell what an integer is."""


def value_at(p: Int, sizes: Sizes) -> int:
    return evaluate_int(p, sizes, _no_data)


def _no_data(a: Opaque) -> int:
    raise CannotOpen(f"{a} depends on the contents of a value")


class SizeFit:
    """`points` are the sizes at which the values are known: numbers without a common pattern, so
    that an expression which has the values at all of them is the one that is meant.
    """

    def __init__(self, points: Sequence[dict[str, int]], names: Sequence[str]) -> None:
        self.points = points
        self._of_sizes = [
            self._known(product(map(var, some)))
            for count in range(1, min(len(names), 3) + 1)
            for some in combinations(names, count)
        ]

    def _known(self, p: Int) -> tuple[Int, tuple[int, ...]]:
        return p, self.values(p)

    def values(self, p: Int) -> tuple[int, ...]:
        return tuple(value_at(p, point) for point in self.points)

    def expression(self, values: Sequence[int], near: Iterable[Int], what: str) -> Int:
        """The expression with these values at the points: of those in `near` rather than of the
        sizes. Raises CannotOpen if there is none.
        """
        if len(set(values)) == 1:
            return of(values[0])
        basis = [*map(self._known, dict.fromkeys(near)), *self._of_sizes]
        for found in self._candidates(values, basis):
            return found
        if len(self.points) < 3:
            raise NeedsPoint(what)
        shown = ", ".join(
            f"{v} at {self._text(p)}" for v, p in zip(values, self.points, strict=True)
        )
        raise CannotOpen(f"{what} is {shown}, which is no simple expression of the sizes")

    def _candidates(
        self, values: Sequence[int], basis: Sequence[tuple[Int, tuple[int, ...]]]
    ) -> Iterator[Int]:
        for p, at in basis:  # itself
            if at == tuple(values):
                yield p
        few = len(self.points) < 3
        for p, at in basis:  # a multiple of it, and a number
            fit = _linear(at, values)
            if fit is not None and not (few and fit[1]):
                yield p * fit[0] + fit[1]
        if few:  # they would have all other forms
            return
        for (p, x), (q, y) in combinations(basis, 2):
            for sign in (1, -1):
                rest = {v - (a + sign * b) for v, a, b in zip(values, x, y, strict=True)}
                if len(rest) == 1:
                    yield p + q * sign + rest.pop()

    def _text(self, point: Sizes) -> str:
        return ", ".join(f"{n.removeprefix('#')} = {v}" for n, v in point.items())


def _linear(xs: Sequence[int], values: Sequence[int]) -> tuple[int, int] | None:
    """The whole numbers a and b with a*x + b for each x."""
    first = next((k for k, x in enumerate(xs) if x != xs[0]), None)
    if first is None:
        return None
    a, rest = divmod(values[first] - values[0], xs[first] - xs[0])
    if rest or a == 0:
        return None
    b = values[0] - a * xs[0]
    return (a, b) if all(v == a * x + b for x, v in zip(xs, values, strict=True)) else None


def opened(fit: SizeFit, values: Sequence[Any], near: Sequence[Int], what: str) -> Any:
    """Something made of tuples and numbers, with an expression wherever its versions have different
    whole numbers.
    """
    first = values[0]
    if all(type(v) is type(first) for v in values):
        if isinstance(first, tuple) and all(len(v) == len(first) for v in values):
            parts = [opened(fit, part, near, what) for part in zip(*values, strict=True)]
            return tuple(parts)
        if type(first) is int:
            p = fit.expression(values, near, what)
            return first if p.const is not None else p
        if all(v == first for v in values):
            return first
    raise CannotOpen(f"{what} is {values[0]!r} at some sizes and {values[-1]!r} at others")


def ints_in(value: Any) -> Iterator[Int]:
    if isinstance(value, Int):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from ints_in(part)
