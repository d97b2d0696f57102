"""A layered layout of an acyclic graph, from top to bottom: boxes of one size and edges in, places
and lines out.

Each box lies one layer above the first that reads it. Edges to the next layer are short lines.
Longer ones, such as residual connections, leave to the side and go down a lane of their own, where
they cross no box; all long edges of one box share its lane.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean

from tilesmith.base.dataclass import dataclass

Point = tuple[float, float]

_LANE = 14.0  # between two lanes
_SWEEPS = 4


@dataclass(frozen=True, slots=True)
class Size:
    """Of a box, and of the space between two boxes."""

    width: float
    height: float
    gap_x: float
    gap_y: float


@dataclass(frozen=True, slots=True)
class Line:
    """From the bottom of one box to the top of another. A long line has corners."""

    source: int
    target: int
    points: tuple[Point, ...]

    @property
    def is_long(self) -> bool:
        return len(self.points) > 2


@dataclass(frozen=True, slots=True)
class Layout:
    corners: tuple[Point, ...]  # of each box, its upper left one
    lines: tuple[Line, ...]
    width: float
    height: float


def layered(
    count: int, edges: Collection[tuple[int, int]], size: Size, left: Collection[int] = ()
) -> Layout:
    """`edges` are pairs of box numbers from 0, the source first; `left` are the boxes whose long
    edges go down on the left side.
    """
    drawing = _Drawing(count, sorted(set(edges)), size)
    return drawing.layout(frozenset(left))


class _Drawing:
    def __init__(self, count: int, edges: Sequence[tuple[int, int]], size: Size) -> None:
        self.edges, self.size = edges, size
        self.readers: Mapping[int, list[int]] = {k: [] for k in range(count)}
        self.read: Mapping[int, list[int]] = {k: [] for k in range(count)}
        for a, b in edges:
            self.readers[a].append(b)
            self.read[b].append(a)
        self.layer = self._layers(count)
        self.rows = self._rows(count)
        self.x = {k: x for row in self.rows for k, x in self._centres(row).items()}

    def _layers(self, count: int) -> list[int]:
        """The longest way from a source, then down to just above the first reader."""
        order = _sorted(count, self.read, self.readers)
        layer = [0] * count
        for k in order:
            layer[k] = max((layer[p] + 1 for p in self.read[k]), default=0)
        for k in reversed(order):
            layer[k] = min((layer[r] - 1 for r in self.readers[k]), default=layer[k])
        return layer

    def _rows(self, count: int) -> list[list[int]]:
        rows: list[list[int]] = [[] for _ in range(1 + max(self.layer, default=-1))]
        for k in range(count):
            rows[self.layer[k]].append(k)
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            others = self.read if down else self.readers
            places: dict[int, float] = {}
            for row in rows if down else reversed(rows):
                wanted = {}
                for at, k in enumerate(row):
                    near = [places[o] for o in others[k] if o in places]
                    wanted[k] = fmean(near) if near else at - (len(row) - 1) / 2
                row.sort(key=lambda k: wanted[k])
                places |= {k: at - (len(row) - 1) / 2 for at, k in enumerate(row)}
        return rows

    def _centres(self, row: Sequence[int]) -> dict[int, float]:
        step = self.size.width + self.size.gap_x
        return {k: (at - (len(row) - 1) / 2) * step for at, k in enumerate(row)}

    def _top(self, k: int) -> float:
        return self.layer[k] * (self.size.height + self.size.gap_y)

    def layout(self, left: frozenset[int]) -> Layout:
        lanes = self._lanes(left)
        lines = [self._line(a, b, lanes) for a, b in self.edges]
        half = self.size.width / 2
        xs = [x for line in lines for x, _ in line.points]
        xs += [c + side * half for c in self.x.values() for side in (-1, 1)]
        margin = self.size.gap_y
        shift = margin - min(xs, default=0.0)
        corners = tuple((self.x[k] - half + shift, self._top(k) + margin) for k in sorted(self.x))
        moved = tuple(
            Line(n.source, n.target, tuple((x + shift, y + margin) for x, y in n.points))
            for n in lines
        )
        height = len(self.rows) * (self.size.height + self.size.gap_y) + margin
        return Layout(corners, moved, max(xs, default=0.0) + shift + margin, height)

    def _is_long(self, a: int, b: int) -> bool:
        return self.layer[b] - self.layer[a] > 1

    def _lanes(self, left: frozenset[int]) -> dict[int, float]:
        """Where the long edges of a box go down, by its number: beside all boxes on their way, and
        beside the lanes of others. The shortest are nearest to the boxes.
        """
        ends = {a: max(self.layer[r] for r in self.readers[a]) for a, b in self.edges
                if self._is_long(a, b)}  # fmt: skip
        half = self.size.width / 2
        taken: list[tuple[int, int, float]] = []
        lanes = {}
        for a in sorted(ends, key=lambda k: (ends[k] - self.layer[k], self.layer[k], k)):
            first, last = self.layer[a], ends[a]
            boxes = [abs(self.x[k]) for row in self.rows[first + 1 : last] for k in row]
            side = -1 if a in left else 1
            x = side * (max(boxes) + half + _LANE)
            near = {u for f, e, u in taken if f < last and first < e}
            while any(abs(x - u) < _LANE for u in near):
                x += side * _LANE
            lanes[a] = x
            taken.append((first, last, x))
        return lanes

    def _line(self, a: int, b: int, lanes: Mapping[int, float]) -> Line:
        bottom, top = self._top(a) + self.size.height, self._top(b)
        if not self._is_long(a, b):
            return Line(a, b, ((self.x[a], bottom), (self.x[b], top)))
        lane = lanes[a]
        aside = self.size.width / 4
        leave = self.x[a] + (aside if lane > self.x[a] else -aside)
        enter = self.x[b] + (aside if lane > self.x[b] else -aside)
        # Lines of different boxes turn at different heights.
        turn = self.size.gap_y * (0.25 + 0.08 * (a % 4))
        points = ((leave, bottom), (leave, bottom + turn), (lane, bottom + turn),
                  (lane, top - turn), (enter, top - turn), (enter, top))  # fmt: skip
        return Line(a, b, points)


def _sorted(
    count: int, read: Mapping[int, Sequence[int]], readers: Mapping[int, Sequence[int]]
) -> list[int]:
    """Sources first."""
    waits = {k: len(read[k]) for k in range(count)}
    order = [k for k in range(count) if not waits[k]]
    for k in order:
        for r in readers[k]:
            waits[r] -= 1
            if not waits[r]:
                order.append(r)
    assert len(order) == count, "the edges have a cycle"
    return order
