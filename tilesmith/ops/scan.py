"""Running sums and products along an axis: a tensor in, one of its shape out.

A stage has no order of its elements, so each element sums what lies before it. Long axes are cut
into blocks: an element sums within its block, and adds what the blocks before it hold, which is a
running sum of their totals. That is some fifteen additions an element, whatever the length.
"""

from __future__ import annotations

from collections.abc import Callable

from tilesmith.expr import reductions
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.values import Axis, Number, Value, binary, cast, where
from tilesmith.ops.arguments import accumulator, axis_of, fixed, operator

# Elements that are summed one by one: fewer of those that come from memory, because sums of their
# blocks are a fraction of the work.
_BLOCK, _LATER = 4, 32
_SHORT = 4  # blocks: an axis that is no longer is summed at once


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

    def before(self, k: Value, i: Value, exclusive: bool) -> Value:
        """Whether k is joined to the result at i."""
        if self.reverse:
            return k > i if exclusive else k >= i
        return k < i if exclusive else k <= i

    def run(
        self, X: Tensor, extent: int, exclusive: bool, name: str, block: int = _BLOCK
    ) -> Tensor:
        if extent <= _SHORT * block:
            return self.short(X, extent, exclusive, name)
        return self.long(X, extent, exclusive, name, _divisor(extent, block))

    def short(self, X: Tensor, extent: int, exclusive: bool, name: str) -> Tensor:
        k = reduce_axis(extent, name="k")

        def body(*index: Value) -> Value:
            inside = self.before(k, index[self.axis], exclusive)
            return self.join(where(inside, X[self.put(index, k)], self.neutral), k)

        return compute(X.shape_ints, body, name=name)

    def long(self, X: Tensor, extent: int, exclusive: bool, name: str, size: int) -> Tensor:
        """The place within a block is an axis of its own, so that loops over it have vectors, and
        code that is unrolled has no comparison.
        """
        a, blocks = self.axis, -(-extent // size)
        k, r = reduce_axis(size, name="k"), reduce_axis(size, name="k")

        def read(index: tuple[Value, ...], place: Value) -> Value:
            x = X[self.put(index, place)]
            return x if extent % size == 0 else where(place < extent, x, self.neutral)

        def within(*index: Value) -> Value:
            inside = self.before(k, index[a + 1], exclusive)
            at = (*index[: a + 1], *index[a + 2 :])
            return self.join(where(inside, read(at, index[a] * size + k), self.neutral), k)

        def total(*index: Value) -> Value:
            return self.join(read(index, index[a] * size + r), r)

        before, after = X.shape_ints[:a], X.shape_ints[a + 1 :]
        own = compute((*before, blocks, size, *after), within, name=f"{name}_within")
        totals = compute((*before, blocks, *after), total, name=f"{name}_blocks")
        carried = self.run(totals, blocks, True, f"{name}_carried", _LATER)

        def joined(*i: Value) -> Value:
            block, place = i[a] // size, i[a] % size
            inner = own[(*i[:a], block, place, *i[a + 1 :])]
            return binary(self.op, inner, carried[self.put(i, block)])

        return compute(X.shape_ints, joined, name=name)


def _divisor(extent: int, size: int) -> int:
    """A divisor near a size of blocks, if there is one: then no block is cut off."""
    near = [n for n in range(size // 2 + 1, 2 * size + 1) if extent % n == 0]
    return min(near, key=lambda n: abs(n - size), default=size)


def _scanned(sign: str, X: Tensor, axis: int, exclusive: bool, reverse: bool, name: str) -> Tensor:
    a = axis_of(axis, X.ndim)
    extent = fixed(f"axis {axis} of X", X.shape_ints[a])
    wide = accumulator(X.dtype) if X.dtype.is_float else X.dtype
    scan = _Scan(sign, a, reverse)
    if wide is X.dtype:
        return scan.run(X, extent, exclusive, name)
    widened = compute(X.shape_ints, lambda *i: cast(X[i], wide), name=f"{name}_in")
    y = scan.run(widened, extent, exclusive, f"{name}_wide")
    return compute(X.shape_ints, lambda *i: cast(y[i], X.dtype), name=name)


@operator
def cumsum(
    X: Tensor, axis: int = -1, exclusive: bool = False, reverse: bool = False, name: str = "cumsum"
) -> Tensor:
    """The sum of all elements up to this one along an axis; without it, if `exclusive`; from this
    one to the end, if `reverse`.
    """
    return _scanned("add", X, axis, exclusive, reverse, name)


@operator
def cumprod(
    X: Tensor, axis: int = -1, exclusive: bool = False, reverse: bool = False, name: str = "cumprod"
) -> Tensor:
    """The product of all elements up to this one along an axis; without it, if `exclusive`; from
    this one to the end, if `reverse`.
    """
    return _scanned("mul", X, axis, exclusive, reverse, name)
