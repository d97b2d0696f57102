"""Running sums and products along an axis: a tensor in, one of its shape out.

Partial results are kept in order, for as many rows at a time as there are. Where these are too few,
as for the threads of a GPU, the axis is cut into blocks: the totals of the blocks have a running
sum of their own, which is added to that of each block.
"""

from __future__ import annotations

from collections.abc import Callable

from tilesmith.base.dtype import FLOAT32, FLOAT64, DType
from tilesmith.expr import reductions
from tilesmith.expr.dsl import Tensor, compute, reduce_axis, running
from tilesmith.expr.ints import of
from tilesmith.expr.values import Axis, Number, Value, cast, where
from tilesmith.ops.arguments import accumulator, axis_of, fixed, operator

_SHORT = 4  # blocks: an axis that is no longer is summed at once
_LONG = 4096  # terms that are added up one by one in float32: the last ones must not be lost


class _Scan:
    """What is joined, its neutral value, and in which direction."""

    def __init__(self, op: str, axis: int, reverse: bool) -> None:
        self.op, self.axis, self.reverse = op, axis, reverse
        self.neutral: Number = 0 if op == "add" else 1
        self.join: Callable[[Value, Axis], Value] = (
            reductions.sum if op == "add" else reductions.prod
        )

    def put(self, index: tuple[Value, ...], place: Value) -> tuple[Value, ...]:
        return (*index[: self.axis], place, *index[self.axis + 1 :])

    def run(self, X: Tensor, exclusive: bool, name: str, block: int, dtype: DType) -> Tensor:
        extent = fixed(f"axis {self.axis} of X", X.shape_ints[self.axis])
        wide = accumulator(X.dtype) if X.dtype.is_float else X.dtype
        if not block or extent <= _SHORT * block:
            if wide is FLOAT32 and extent > _LONG:
                wide = FLOAT64
            return self.whole(X, extent, exclusive, name, wide, dtype)
        if wide is X.dtype:
            return self.blocks(X, extent, exclusive, name, _divisor(extent, block), block)
        widened = compute(X.shape_ints, lambda *i: cast(X[i], wide), name=f"{name}_in")
        y = self.run(widened, exclusive, f"{name}_wide", block, wide)
        return compute(X.shape_ints, lambda *i: cast(y[i], dtype), name=name)

    def whole(
        self, X: Tensor, extent: int, exclusive: bool, name: str, wide: DType, dtype: DType
    ) -> Tensor:
        def body(*index: Value) -> tuple[tuple[Value, ...], Value, None]:
            k = index[self.axis]
            at = self.put(index, extent - 1 - k if self.reverse else k)
            return at, cast(X[at], wide), None

        shape = X.shape_ints
        return running(shape, shape, self.axis, body, self.op, exclusive, name, dtype)

    def blocks(
        self, X: Tensor, extent: int, exclusive: bool, name: str, size: int, block: int
    ) -> Tensor:
        a, count = self.axis, -(-extent // size)
        r = reduce_axis(size, name="k")

        def read(index: tuple[Value, ...], place: Value) -> Value:
            x = X[self.put(index, place)]
            return x if extent % size == 0 else where(place < extent, x, self.neutral)

        def total(*index: Value) -> Value:
            return self.join(read(index, index[a] * size + r), r)

        def kept(*index: Value) -> tuple[tuple[Value, ...], Value, Value]:
            block, k = index[a], index[a + 1]
            outer = (*index[: a + 1], *index[a + 2 :])
            place = block * size + (size - 1 - k if self.reverse else k)
            return self.put(outer, place), read(outer, place), carried[outer]

        before, after = X.shape_ints[:a], X.shape_ints[a + 1 :]
        blocks = of(count)
        totals = compute((*before, blocks, *after), total, name=f"{name}_blocks")
        # longer blocks of totals: launches take longer than the few terms that are left
        carried = self.run(totals, True, f"{name}_carried", 2 * block, totals.dtype)
        extents = (*before, blocks, of(size), *after)
        return running(X.shape_ints, extents, a + 1, kept, self.op, exclusive, name)


def _divisor(extent: int, size: int) -> int:
    """A divisor near a size of blocks, if there is one: then no block is cut off."""
    near = [n for n in range(size // 2 + 1, 2 * size + 1) if extent % n == 0]
    return min(near, key=lambda n: abs(n - size), default=size)


def _scanned(
    sign: str, X: Tensor, axis: int, exclusive: bool, reverse: bool, block: int, name: str
) -> Tensor:
    scan = _Scan(sign, axis_of(axis, X.ndim), reverse)
    return scan.run(X, exclusive, name, block, X.dtype)


@operator
def cumsum(
    X: Tensor, axis: int = -1, exclusive: bool = False, reverse: bool = False, block: int = 0,
    name: str = "cumsum",
) -> Tensor:  # fmt: skip
    """The sum of all elements up to this one along an axis; without it, if `exclusive`; from this
    one to the end, if `reverse`. With `block`, about so many elements of the axis are summed one by
    one, and blocks of them at the same time.
    """
    return _scanned("add", X, axis, exclusive, reverse, block, name)


@operator
def cumprod(
    X: Tensor, axis: int = -1, exclusive: bool = False, reverse: bool = False, block: int = 0,
    name: str = "cumprod",
) -> Tensor:  # fmt: skip
    """The product of all elements up to this one along an axis; without it, if `exclusive`; from
    this one to the end, if `reverse`. `block` is that of `cumsum`.
    """
    return _scanned("mul", X, axis, exclusive, reverse, block, name)
