"""Splats: vectors of one scalar in every lane. A splat is emitted once per frame and reused."""

from __future__ import annotations

from collections.abc import Iterator

from tilesmith.codegen.llvm.builder import Builder, V
from tilesmith.codegen.llvm.copies import Operand
from tilesmith.codegen.llvm.position import Position


class Vectors:
    def __init__(self, position: Position) -> None:
        self.position, self.builder = position, position.builder
        self.frames = position.frames

    def match(self, x: V, y: V) -> tuple[V, V]:
        """Both values with the same number of lanes."""
        if x.type.lanes == y.type.lanes:
            return x, y
        return (
            (self.splat(x, y.type.lanes), y)
            if x.type.lanes == 1
            else (x, self.splat(y, x.type.lanes))
        )

    def splat(self, v: V, lanes: int) -> V:
        """A vector of a scalar. While a store is recorded, the splat of an operand is one, too."""
        if v.type.lanes == lanes:
            return v
        if v.name[0] != "%":
            return self.builder.splat(v, lanes)
        rec = self.position.recording
        of = rec.names.get(v.name) if rec is not None else None
        if rec is None or of is None:
            return self._in_all_lanes(v, lanes)
        lines, self.builder.lines = self.builder.lines, rec.around
        out = self._in_all_lanes(v, lanes)
        self.builder.lines = lines
        rec.add(out, Operand(None, of, lanes))
        return out

    def _in_all_lanes(self, v: V, lanes: int) -> V:
        key = (v.name, lanes)
        for frame in reversed(self.frames):
            if key in frame.splats:
                return frame.splats[key]
        out = self.frames[-1].splats[key] = self.builder.splat(v, lanes)
        return out


# Transposes a square in registers: from vectors of its rows to vectors of its columns.
#
# Elements are interleaved within 128-bit pieces, for which every target has an instruction; then
# whole pieces are exchanged.
_PIECE = 128  # bits within which elements are interleaved


def transpose(b: Builder, rows: list[V]) -> list[V]:
    side = len(rows)
    piece = min(side, _PIECE // rows[0].type.bits)
    groups = [_zipped(b, rows[k : k + piece], piece) for k in range(0, side, piece)]
    # now vector p of a group has, in piece q, a part of the column q * piece + p
    columns = [_sorted(b, [g[p] for g in groups], piece) for p in range(piece)]
    return [columns[k % piece][k // piece] for k in range(side)]


def _zipped(b: Builder, rows: list[V], piece: int) -> list[V]:
    """Transposes each piece of a group of rows on its own."""
    lanes = rows[0].type.lanes
    half = piece // 2
    for _ in range(piece.bit_length() - 1):
        low, high = ([*_zip(lanes, piece, start)] for start in (0, half))
        pairs = zip(rows[:half], rows[half:], strict=True)
        rows = [_shuffle(b, x, y, order) for x, y in pairs for order in (low, high)]
    return rows


def _zip(lanes: int, piece: int, start: int) -> Iterator[int]:
    """The shuffle that interleaves one half of every piece of two vectors."""
    for at in range(0, lanes, piece):
        for k in range(piece // 2):
            yield from (at + start + k, lanes + at + start + k)


def _sorted(b: Builder, rows: list[V], piece: int) -> list[V]:
    """Transposes a square of pieces: repeatedly moves the even pieces of two neighbours to the
    front and the odd ones behind.
    """
    lanes = rows[0].type.lanes
    count = len(rows)
    for _ in range(count.bit_length() - 1):
        pairs = list(zip(rows[::2], rows[1::2], strict=True))
        even, odd = (
            [k + e for k in range(first, 2 * lanes, 2 * piece) for e in range(piece)]
            for first in (0, piece)
        )
        rows = [_shuffle(b, x, y, order) for order in (even, odd) for x, y in pairs]
    return rows


def _shuffle(b: Builder, x: V, y: V, order: list[int]) -> V:
    picks = ", ".join(f"i32 {k}" for k in order)
    return b.value(x.type, f"shufflevector {x}, {y}, <{len(order)} x i32> <{picks}>")
