"""Boxes that tile a grid, to work on large arrays in pieces, and threads that share the work.

NumPy releases the interpreter's lock inside of its loops and of BLAS, so threads are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from math import prod
from typing import TypeVar, cast

import numpy as np

T = TypeVar("T")
Box = tuple[slice, ...]


def boxes(extents: Sequence[int], most: int) -> Iterator[Box]:
    """Boxes of at most `most` points each, or of one point. The last axes are whole if they fit."""
    inner, axis = 1, len(extents) - 1
    while axis >= 0 and inner * extents[axis] <= most:
        inner *= extents[axis]
        axis -= 1
    whole = tuple(slice(0, n) for n in extents[axis + 1 :])
    if axis < 0:
        yield whole
        return
    count = -(-extents[axis] // max(1, most // inner))
    step = -(-extents[axis] // count)  # all but the last are equally long
    for at in product(*(range(n) for n in extents[:axis])):
        for start in range(0, extents[axis], step):
            cut = slice(start, min(start + step, extents[axis]))
            yield (*(slice(k, k + 1) for k in at), cut, *whole)


def size_of(box: Box) -> int:
    return prod(s.stop - s.start for s in box)


def each(work: Callable[[T], None], items: Sequence[T], num_threads: int) -> None:
    """Calls `work` with every item, in any order."""
    if num_threads == 1 or len(items) <= 1:
        for item in items:
            work(item)
        return

    def quietly(item: T) -> None:
        with np.errstate(all="ignore"):  # the caller's setting is that of its thread
            work(item)

    threads = ThreadPoolExecutor(min(num_threads, len(items)))
    try:
        for future in [threads.submit(quietly, item) for item in items]:
            future.result()
    finally:
        threads.shutdown(cancel_futures=True)


_RUN = 1 << 18  # elements of a piece of an array


def runs(count: int) -> list[slice]:
    """Pieces of an array of so many elements."""
    return [slice(k, min(k + _RUN, count)) for k in range(0, count, _RUN)]


def of_each(work: Callable[[slice], T], count: int, num_threads: int) -> list[T]:
    """What `work` returns for every piece of an array of so many elements, in order."""
    parts = runs(count)
    found: list[T | None] = [None] * len(parts)

    def one(k: int) -> None:
        found[k] = work(parts[k])

    each(one, range(len(parts)), num_threads)
    return cast(list[T], found)
