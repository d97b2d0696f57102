"""Strides of arrays, in elements."""

from __future__ import annotations

from itertools import accumulate

Shape = tuple[int, ...]


def row_major(shape: Shape) -> Shape:
    below = accumulate(shape[:0:-1], lambda a, n: a * n, initial=1)
    return tuple(below)[::-1] if shape else ()


def strides_within(shape: Shape, strides: Shape) -> Shape | None:
    """The strides of a part of this shape in an array of these; None where it is contiguous."""
    own = row_major(shape)
    same = all(n == 1 or a == b for n, a, b in zip(shape, own, strides, strict=True))
    return None if same else strides
