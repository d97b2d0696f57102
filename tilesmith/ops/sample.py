"""Sampling of images at positions that are data, with interpolation between elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilesmith.base.dtype import INT64
from tilesmith.base.errors import ExpressionError
from tilesmith.expr.dsl import Tensor, compute
from tilesmith.expr.functions import floor, maximum, minimum, round_
from tilesmith.expr.ints import of
from tilesmith.expr.values import Value, cast, where
from tilesmith.ops.arguments import (
    PerDim,
    accumulator,
    fixed,
    need_equal,
    need_tensor,
    operator,
    per_dim,
)

MODES = ("linear", "nearest", "cubic")
PADDINGS = ("zeros", "border", "reflection")
_CUBIC = -0.75  # Keys' parameter


@operator
def grid_sample(
    X: Tensor, grid: Tensor, mode: str = "linear", padding_mode: str = "zeros",
    align_corners: bool = False, name: str = "grid_sample",
) -> Tensor:  # fmt: skip
    """X (N, C, spatial...) at the positions of grid (N, out..., count), whose last dimension holds
    the coordinate of the last spatial dimension first, from -1 to 1 over the image.
    """
    count = X.ndim - 2
    if count < 1 or grid.ndim != X.ndim:
        raise ExpressionError(
            f"X has rank {X.ndim} and grid has {grid.ndim}; they must be the same, at least 3"
        )
    need_equal("the last extent of grid", grid.shape_ints[-1], of(count), "X has dimensions")
    need_equal("the first extent of grid", grid.shape_ints[0], X.shape_ints[0], "that of X is")
    for what, value, known in (("mode", mode, MODES), ("padding_mode", padding_mode, PADDINGS)):
        if value not in known:
            raise ExpressionError(f"{what} is {value!r}; it must be one of {', '.join(known)}")
    if not X.dtype.is_float or not grid.dtype.is_float:
        raise ExpressionError(f"X is {X.dtype} and grid is {grid.dtype}; both must be floats")
    sizes = [fixed(f"extent {d + 2} of X", e) for d, e in enumerate(X.shape_ints[2:])]
    if not all(sizes):
        raise ExpressionError("X is empty, so there is nothing to read")
    acc = accumulator(X.dtype)
    labels = [f"o{k}" for k in range(count)]

    # Where each output lies in X is the same for all channels, so it is a stage of its own.
    def place(k: int) -> Tensor:
        n = sizes[k]

        def body(*index: Value) -> Value:
            g = cast(grid[(*index, count - 1 - k)], acc)
            x = (g + 1) / 2 * (n - 1) if align_corners else ((g + 1) * n - 1) / 2
            x = round_(x) if mode == "nearest" else x
            if padding_mode == "reflection":
                return x
            return minimum(maximum(x, -4), n + 3)  # far outside is outside; an integer holds it

        return compute(grid.shape_ints[:-1], body, name=f"{name}_at", axes=["n", *labels])

    at = [place(k) for k in range(count)]

    def body(*index: Value) -> Value:
        def read(places: Sequence[Value]) -> Value:
            inside: Value | None = None
            inner: list[Value] = []
            for p, n in zip(places, sizes, strict=True):
                if padding_mode == "zeros":
                    fits = (p >= 0) & (p < n)
                    inside = fits if inside is None else inside & fits
                    inner.append(p)
                elif padding_mode == "border":
                    inner.append(minimum(maximum(p, 0), n - 1))
                else:
                    inner.append(_reflected(p, n, align_corners))
            value = X[(index[0], index[1], *inner)]
            return cast(value if inside is None else where(inside, value, 0), acc)

        xs = [t[(index[0], *index[2:])] for t in at]
        if mode == "nearest":
            return cast(read([cast(x, INT64) for x in xs]), X.dtype)
        return cast(mixed(xs, read, cubic=mode == "cubic"), X.dtype)

    shape = (*X.shape_ints[:2], *grid.shape_ints[1:-1])
    return compute(shape, body, name=name, axes=["n", "c", *labels])


def _reflected(p: Value, n: int, align_corners: bool) -> Value:
    """A whole place turned back at the borders until it lies inside. Interpolation is the same on
    both sides of a place, so it is enough to turn the elements that it meets.
    """
    period = 2 * (n - 1) if align_corners else 2 * n
    if period == 0:
        return p * 0
    m = p % period
    return where(m < n, m, period - m if align_corners else period - 1 - m)


def mixed(
    xs: Sequence[Value], read: Callable[[Sequence[Value]], Value], *, cubic: bool = False
) -> Value:
    """The value at the place xs between whole places, which `read` knows; linear or cubic."""
    taps = [_taps(x, cubic) for x in xs]

    def along(d: int, places: tuple[Value, ...]) -> Value:
        if d == len(xs):
            return read(places)
        total: Value | None = None
        for place, weight in taps[d]:
            term = along(d + 1, (*places, place)) * weight
            total = term if total is None else total + term
        assert total is not None
        return total

    return along(0, ())


def _taps(x: Value, cubic: bool) -> list[tuple[Value, Value]]:
    """(whole place, weight) of what a place between them meets."""
    base = floor(x)
    first, t = cast(base, INT64), x - base
    if not cubic:
        return [(first, 1 - t), (first + 1, t)]
    a = _CUBIC

    def near(d: Value) -> Value:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Value) -> Value:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    weights = (far(t + 1), near(t), near(1 - t), far(2 - t))
    return [(first + (k - 1), w) for k, w in enumerate(weights)]


@operator
def affine_grid(
    theta: Tensor, size: PerDim, align_corners: bool = False, name: str = "affine_grid"
) -> Tensor:
    """The grid (N, *size, count) for grid_sample that theta (N, count, count + 1) maps an image of
    this size to.
    """
    need_tensor("theta", theta, "N count count+1")
    count = fixed("dimension 1 of theta", theta.shape_ints[1])
    need_equal("dimension 2 of theta", theta.shape_ints[2], of(count + 1), "it must be")
    sizes = per_dim("size", size, count)

    def body(*index: Value) -> Value:
        n, d = index[0], index[-1]
        total: Value | None = None
        for k in range(count):  # the last dimension's coordinate comes first
            i, extent = cast(index[count - k], theta.dtype), sizes[count - 1 - k]
            if align_corners:
                x = i * (2 / (extent - 1)) - 1 if extent > 1 else i * 0
            else:
                x = (i * 2 + 1) / extent - 1
            term = theta[n, d, k] * x
            total = term if total is None else total + term
        assert total is not None
        return total + theta[n, d, count]

    shape = (theta.shape_ints[0], *sizes, count)
    labels = ["n", *(f"o{k}" for k in range(count)), "d"]
    return compute(shape, body, name=name, axes=labels)
