"""Minimal filtering (Winograd, Toom-Cook): the transform matrices of the image, the weights and the
products for a number of neighbouring results, a number of taps and a stride.

Image and taps are taken as coefficients of polynomials. A polynomial is determined by its values at
as many points as it has coefficients, so one product per point suffices for the convolution. With
stride s, the taps fall into s phases (tap 0, s, 2s, ...; tap 1, s + 1, ...), each a convolution of
stride 1. The phases share the output transform, so their products are summed before it.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import sqrt

from tilesmith.base.dataclass import dataclass
from tilesmith.ir.prepare import Matrix

# The interpolation points, in an order that keeps rounding errors small; None is infinity.
_POINTS = (
    *(Fraction(0), Fraction(1), Fraction(-1), None, Fraction(1, 2), Fraction(-2)),
    *(Fraction(-1, 2), Fraction(2), Fraction(1, 4), Fraction(-4)),
)  # fmt: skip
_Row = tuple[Fraction, ...]


@dataclass(frozen=True, slots=True)
class Filter:
    """F(results, taps) with a stride. There are `products` points for each of the `stride` phases;
    the product of point p and phase s has the number p * stride + s. Products from `count` on are
    always zero, because later phases may have one tap less.
    """

    results: int
    taps: int
    stride: int
    products: int
    count: int
    image: Matrix  # input transform: [number of the product][element within its phase]
    weights: Matrix  # weight transform: [number of the product][tap]
    behind: Matrix  # output transform: [point][result]

    def gain(self, places: int) -> float:
        """Multiplications of the direct sum over `places` results, divided by those left here."""
        return self.taps * places / (self.count * -(-places // self.results))

    @property
    def growth(self) -> float:
        """How much larger rounding errors are than those of a direct sum (see rounding.py)."""
        moved = [_norm(i) * _norm(w) for i, w in zip(self.image, self.weights, strict=True)]
        rows = [self.behind[number // self.stride] for number in range(len(moved))]
        sums = (
            sum(m * row[k] ** 2 for m, row in zip(moved, rows, strict=True))
            for k in range(self.results)
        )
        return sqrt(max(sums) / self.taps)


def _norm(row: tuple[float, ...]) -> float:
    return sum(x * x for x in row)


def can_filter(results: int, taps: int, stride: int) -> bool:
    return stride < taps and results + -(-taps // stride) - 1 <= len(_POINTS)


@lru_cache(maxsize=64)
def filter_of(results: int, taps: int, stride: int = 1) -> Filter:
    """The transform matrices of F(results, taps) with this stride."""
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
    """The coefficients of the polynomial that is zero at all other points, and its value at
    `point`: the numerator and denominator of a Lagrange basis polynomial.
    """
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
    """1, x, x**2, ... at a point. At infinity only the last coefficient counts; its sign is flipped
    in both image and products, so that the transforms of F(2, 3) are plain differences.
    """
    if point is None:
        return tuple(Fraction(-int(k == count - 1)) for k in range(count))
    return tuple(point**k for k in range(count))
