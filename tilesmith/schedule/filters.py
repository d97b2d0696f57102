"""Minimal filters (Winograd; Toom and Cook): how many neighbouring results, taps and which stride
in, the matrices out by which an image, weights and products are multiplied.

Results and taps are coefficients of polynomials, which are known by their values at as many points;
a product for each point is then enough. With a stride, every so many neighbours are a window of
their own; at a point these share what comes behind the products, so that their products are summed.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from tilesmith.ir.nodes import Matrix

# In an order that keeps rounding errors small; None is infinity.
_POINTS = (
    *(Fraction(0), Fraction(1), Fraction(-1), None, Fraction(1, 2), Fraction(-2)),
    *(Fraction(-1, 2), Fraction(2), Fraction(1, 4), Fraction(-4)),
)  # fmt: skip
_Row = tuple[Fraction, ...]


@dataclass(frozen=True, slots=True)
class Filter:
    """`products` at each of the `stride` windows; the product of point p and window s has the
    number p * stride + s. Those from `count` on are zero: the last windows may have a tap less.
    """

    results: int
    taps: int
    stride: int
    products: int
    count: int
    image: Matrix  # by number, then by the neighbours of its window
    weights: Matrix  # by number, then by tap
    behind: Matrix  # by point, then by result

    def gain(self, places: int) -> float:
        """Products of the plain sum at so many places, for each that is left."""
        return self.taps * places / (self.count * -(-places // self.results))


def can_filter(results: int, taps: int, stride: int) -> bool:
    return stride < taps and results + -(-taps // stride) - 1 <= len(_POINTS)


@lru_cache(maxsize=64)
def filter_of(results: int, taps: int, stride: int = 1) -> Filter:
    """F(results, taps): image, weights and products of windows that lie `stride` apart."""
    longest = -(-taps // stride)
    products = results + longest - 1
    points = _POINTS[:products]
    image = [[0.0] * products for _ in range(products * stride)]
    weights = [[0.0] * taps for _ in range(products * stride)]
    for s in range(stride):
        length = len(range(s, taps, stride))
        used = points[: results + length - 1]
        for p, point in enumerate(used):
            row, scale = _polynomial(point, used)
            sign = next(1 if x > 0 else -1 for x in row if x)
            for x, c in enumerate(row):
                image[p * stride + s][x] = float(c * sign)
            for k, c in enumerate(_powers(point, length)):
                weights[p * stride + s][k * stride + s] = float(c * sign / scale)
    behind = [tuple(map(float, _powers(point, results))) for point in points]
    return Filter(
        results, taps, stride, products,
        (products - 1) * stride + taps - (longest - 1) * stride,
        tuple(map(tuple, image)), tuple(map(tuple, weights)), tuple(behind),
    )  # fmt: skip


def _polynomial(
    point: Fraction | None, points: tuple[Fraction | None, ...]
) -> tuple[_Row, Fraction]:
    """The coefficients of the polynomial that is zero at all other points, and its value here."""
    row: _Row = (Fraction(1),)
    scale = Fraction(1)
    for other in points:
        if other is not None and other != point:
            row = tuple(
                a - other * b for a, b in zip((Fraction(0), *row), (*row, Fraction(0)), strict=True)
            )
            scale *= 1 if point is None else point - other
    return row, scale


def _powers(point: Fraction | None, count: int) -> _Row:
    """At infinity the last coefficient is all that counts. Its sign is turned in image and products
    alike, so that F(2, 3) has differences only.
    """
    if point is None:
        return tuple(Fraction(-int(k == count - 1)) for k in range(count))
    return tuple(point**k for k in range(count))
