"""The layered layout: every line goes down, boxes lie apart, and no line crosses a box that it does
not belong to.
"""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.report.layered_layout import Layout, Size, layered

SIZE = Size(100, 20, 15, 30)


def chain(count: int) -> set[tuple[int, int]]:
    return {(k, k + 1) for k in range(count - 1)}


def random_edges(rng: np.random.Generator, count: int) -> set[tuple[int, int]]:
    edges = set()
    for b in range(1, count):
        for a in rng.integers(0, b, rng.integers(0, 4)):
            edges.add((int(a), b))
    return edges


def check(layout: Layout, count: int, edges: set[tuple[int, int]]) -> None:
    assert len(layout.corners) == count
    assert {(n.source, n.target) for n in layout.lines} == edges
    for k, (x, y) in enumerate(layout.corners):
        assert 0 <= x <= layout.width - SIZE.width
        assert 0 <= y <= layout.height - SIZE.height
        for u, v in layout.corners[:k]:
            assert abs(x - u) >= SIZE.width or abs(y - v) >= SIZE.height
    for line in layout.lines:
        assert line.points[0][1] == layout.corners[line.source][1] + SIZE.height
        assert line.points[-1][1] == layout.corners[line.target][1]
        assert line.points[0][1] < line.points[-1][1]
        for (x, y), (u, v) in zip(line.points, line.points[1:], strict=False):
            assert 0 <= x <= layout.width
            low, high = min(y, v), max(y, v)
            for left, top in layout.corners:
                beside = max(x, u) <= left or min(x, u) >= left + SIZE.width
                assert beside or high <= top or low >= top + SIZE.height


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 40))
    edges = random_edges(rng, count)
    check(layered(count, edges, SIZE, left={0}), count, edges)


def test_a_chain_is_one_column_and_residual_edges_lie_beside_it() -> None:
    edges = chain(6) | {(0, 3), (3, 5)}
    layout = layered(6, edges, SIZE)
    check(layout, 6, edges)
    assert len({x for x, _ in layout.corners}) == 1
    right = layout.corners[0][0] + SIZE.width
    lanes = {max(x for x, _ in n.points) for n in layout.lines if n.is_long}
    assert len(lanes) == 1  # one begins where the other ends: they share a lane
    assert min(lanes) > right


def test_lanes_that_meet_are_apart_and_one_box_has_one_lane() -> None:
    edges = chain(9) | {(0, 4), (0, 8), (2, 6)}
    layout = layered(9, edges, SIZE)
    lane = {(n.source, n.target): max(x for x, _ in n.points) for n in layout.lines if n.is_long}
    assert lane[0, 4] == lane[0, 8]
    assert abs(lane[0, 4] - lane[2, 6]) > 10


def test_lines_of_some_boxes_go_down_on_the_left() -> None:
    layout = layered(4, chain(4) | {(0, 3)}, SIZE, left=[0])
    (line,) = [n for n in layout.lines if n.is_long]
    assert min(x for x, _ in line.points) < layout.corners[0][0]


def test_a_box_lies_just_above_its_first_reader() -> None:
    layout = layered(5, {(0, 1), (1, 2), (2, 3), (4, 3)}, SIZE)
    assert layout.corners[4][1] == layout.corners[2][1]


def test_nothing_is_a_picture_too() -> None:
    layout = layered(0, [], SIZE)
    assert layout.corners == layout.lines == ()
