"""Running sums and products along an axis: a tensor in, one of its shape out.

Partial results are kept in order, for as many rows at a time as there are. Where these are too few,
as for the threads of a GPU, the axis is cut into blocks: the totals of the blocks have a running
sum of their own, which is added to that of each block. Tiles of many blocks have totals of their
own, so that all that concerns the blocks of a tile can stay in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

from tilesmith.base.dtype import FLOAT32, FLOAT64, DType
from tilesmith.base.errors import ExpressionError
from tilesmith.expr import reductions
from tilesmith.expr.dsl import Tensor, compute, reduce_axis, running
from tilesmith.expr.ints import Int, of
from tilesmith.expr.values import Axis, Number, Value, cast, where
from tilesmith.ops.arguments import accumulator, axis_of, operator

_SHORT = 4  # blocks: an axis that is no longer is summed at once
_BLOCK, _MOST = 16, 512  # elements of a block, and blocks of a tile, of the totals of tiles
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

    def run(
        self, X: Tensor, exclusive: bool, name: str, block: int, dtype: DType, tile: int = 0,
        row: int = 0,
    ) -> Tensor:  # fmt: skip
        along = X.shape_ints[self.axis]
        wide = accumulator(X.dtype) if X.dtype.is_float else X.dtype
        if along.const is None:  # any cut needs a number
            return self.whole(
                X, along, exclusive, name, FLOAT64 if wide is FLOAT32 else wide, dtype
            )
        extent = along.number
        if tile:
            return self.tiles(X, extent, exclusive, name, tile, block, row, wide, dtype)
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
        self, X: Tensor, extent: Int | int, exclusive: bool, name: str, wide: DType, dtype: DType
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

    def tiles(
        self, X: Tensor, extent: int, exclusive: bool, name: str, tile: int, size: int, row: int,
        wide: DType, dtype: DType,
    ) -> Tensor:  # fmt: skip
        """Tiles of `tile` elements, each of blocks of `size`. All stages but those that concern
        whole tiles have an axis of tiles and one of blocks. If there are rows, `each` blocks are of
        one, and the last of these may be cut off.
        """
        a, count = self.axis, -(-extent // tile)
        each = -(-(row or tile) // size)
        blocks = tile // row * each if row else each
        before, after = X.shape_ints[:a], X.shape_ints[a + 1 :]

        def read(index: tuple[Value, ...], place: Value, guarded: bool = True) -> Value:
            x = cast(X[self.put(index, place)], wide)
            return where(place < extent, x, self.neutral) if guarded else x

        def element(*index: Value) -> Value:
            block, k = index[a + 1], index[a + 2]
            outer, guarded = (*index[: a + 1], *index[a + 3 :]), extent % tile != 0
            if not row:
                return read(outer, index[a] * tile + block * size + k, guarded)
            along = block % each * size + k
            x = read(outer, index[a] * tile + block // each * row + along, guarded)
            return x if row % size == 0 else where(along < row, x, self.neutral)

        shape = (*before, of(count), of(blocks), of(size), *after)
        given = compute(shape, element, name=f"{name}_in")
        across = count > 1 and not row
        carried = self.carried(read, extent, tile, (before, after), name) if across else None
        k = reduce_axis(size, name="k")

        def total(*index: Value) -> Value:
            return self.join(given[(*index[: a + 2], k, *index[a + 2 :])], k)

        offsets = None
        if each > 1:
            parts = compute((*before, of(count), of(blocks), *after), total, name=f"{name}_blocks")
            ahead = _Scan(self.op, a + 1, self.reverse)
            offsets = (ahead.of_rows if row else ahead.groups)(parts, each, f"{name}_carried")

        def kept(*index: Value) -> tuple[tuple[Value, ...], Value, Value | None]:
            k = index[a + 2]
            at = (*index[: a + 2], size - 1 - k if self.reverse else k, *index[a + 3 :])
            added = None if offsets is None else offsets[(*index[: a + 2], *index[a + 3 :])]
            if carried is not None:
                of_tile = carried((*index[: a + 1], *index[a + 3 :]))
                added = of_tile if added is None else self.both(added, of_tile)
            return at, given[at], added

        ended = running(shape, shape, a + 2, kept, self.op, exclusive, f"{name}_ended")

        def result(*index: Value) -> Value:
            at = index[a]
            place = (at // tile, at % tile // size, at % size)
            if row:
                along = at % row
                rows = at // row % (tile // row)
                place = (at // tile, rows * each + along // size, along % size)
            return cast(ended[(*index[:a], *place, *index[a + 1 :])], dtype)

        return compute(X.shape_ints, result, name=name)

    def of_rows(self, X: Tensor, each: int, name: str) -> Tensor:
        """What is carried to each element, of its row of `each` elements."""
        j = reduce_axis(each, name="k")

        def earlier(*index: Value) -> Value:
            at = index[self.axis]
            first, second = (at % each, j) if self.reverse else (j, at % each)
            x = X[self.put(index, at // each * each + j)]
            return self.join(where(first < second, x, self.neutral), j)

        return compute(X.shape_ints, earlier, name=name)

    def both(self, a: Value, b: Value) -> Value:
        return a + b if self.op == "add" else a * b

    def carried(
        self, read: Callable[[tuple[Value, ...], Value, bool], Value], extent: int, tile: int,
        shape: tuple[tuple[Int, ...], tuple[Int, ...]], name: str,
    ) -> Callable[[tuple[Value, ...]], Value]:  # fmt: skip
        """What is carried to each tile of several: of the totals of all tiles but the last one, or
        but the first one if it goes backwards.
        """
        a, (before, after) = self.axis, shape
        count, first = -(-extent // tile) - 1, int(self.reverse)
        r = reduce_axis(tile, name="k")
        guarded = self.reverse and extent % tile != 0

        def total(*index: Value) -> Value:
            return self.join(read(index, (index[a] + first) * tile + r, guarded), r)

        totals = compute((*before, of(count), *after), total, name=f"{name}_tiles")
        sums = totals
        if count > 1:
            size = max(2, min(_BLOCK, isqrt(count)))
            whole = min(-(-count // size), _MOST) * size
            sums = self.run(totals, False, f"{name}_tiles_carried", size, totals.dtype, whole)

        def at(index: tuple[Value, ...]) -> Value:
            c = index[a]
            inside = c < count if self.reverse else c >= 1
            return where(inside, sums[self.put(index, c if self.reverse else c - 1)], self.neutral)

        return at

    def groups(self, X: Tensor, extent: int, name: str) -> Tensor:
        """What is carried to each element of a short axis. Elements are grouped; each group joins
        the totals of those in front of it, at the same time as the others.
        """
        a, size = self.axis, _divisor(extent, max(1, isqrt(extent)))
        count = extent // size if extent % size == 0 else 1
        size = extent // count
        before, after = X.shape_ints[:a], X.shape_ints[a + 1 :]
        r, j = reduce_axis(size, name="k"), reduce_axis(count, name="k")
        shape = (*before, of(count), *after)
        totals = compute(
            shape, lambda *i: self.join(X[self.put(i, i[a] * size + r)], r), name=f"{name}_groups"
        )

        def earlier(*index: Value) -> Value:
            first, second = (index[a], j) if self.reverse else (j, index[a])
            x = totals[self.put(index, j + 0)]
            return self.join(where(first < second, x, self.neutral), j)

        heads = compute(shape, earlier, name=f"{name}_heads")

        def kept(*index: Value) -> tuple[tuple[Value, ...], Value, Value]:
            group, k = index[a], index[a + 1]
            outer = (*index[: a + 1], *index[a + 2 :])
            place = group * size + (size - 1 - k if self.reverse else k)
            at = self.put(outer, place)
            return at, X[at], heads[outer]

        extents = (*before, of(count), of(size), *after)
        return running(X.shape_ints, extents, a + 1, kept, self.op, True, name)


def _divisor(extent: int, size: int) -> int:
    """A divisor near a size of blocks, if there is one: then no block is cut off."""
    near = [n for n in range(size // 2 + 1, 2 * size + 1) if extent % n == 0]
    return min(near, key=lambda n: abs(n - size), default=size)


def _scanned(
    sign: str, X: Tensor, axis: int, exclusive: bool, reverse: bool, block: int, tile: int,
    row: int, name: str,
) -> Tensor:  # fmt: skip
    if row:
        _require_rows(X, axis, block, tile, row, name)
    elif tile and (not block or tile % block):
        raise ExpressionError(f"{name}: a tile of {tile} elements has no whole blocks of {block}")
    scan = _Scan(sign, axis_of(axis, X.ndim), reverse)
    return scan.run(X, exclusive, name, block, X.dtype, tile, row)


def _require_rows(X: Tensor, axis: int, block: int, tile: int, row: int, name: str) -> None:
    extent = X.shape_ints[axis_of(axis, X.ndim)]
    if row < 0 or extent.const is None or extent.number % row:
        raise ExpressionError(f"{name}: an axis of {extent} elements has no whole rows of {row}")
    if tile <= 0 or tile % row or block <= 0:
        raise ExpressionError(
            f"{name}: rows of {row} elements take a block and a tile of whole rows"
        )


@operator
def cumsum(
    X: Tensor, axis: int = -1, exclusive: bool = False, reverse: bool = False, block: int = 0,
    tile: int = 0, row: int = 0, name: str = "cumsum",
) -> Tensor:  # fmt: skip
    """The sum of all elements up to this one along an axis; without it, if `exclusive`; from this
    one to the end, if `reverse`. With `block`, about so many elements of the axis are summed one by
    one, and blocks of them at the same time. With `tile`, a multiple of it, tiles of so many
    elements are cut first. With `row`, each `row` elements of the axis are summed by themselves; a
    tile has whole rows.
    """
    return _scanned("add", X, axis, exclusive, reverse, block, tile, row, name)


@operator
def cumprod(
    X: Tensor, axis: int = -1, exclusive: bool = False, reverse: bool = False, block: int = 0,
    tile: int = 0, row: int = 0, name: str = "cumprod",
) -> Tensor:  # fmt: skip
    """The product of all elements up to this one along an axis; without it, if `exclusive`; from
    this one to the end, if `reverse`. `block`, `tile` and `row` are those of `cumsum`.
    """
    return _scanned("mul", X, axis, exclusive, reverse, block, tile, row, name)
