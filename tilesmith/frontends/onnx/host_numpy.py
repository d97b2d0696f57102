"""Operators of the host by NumPy, arrays in and arrays out: those for which the onnx package's
reference operators are slow, or need inputs that a node may leave out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilesmith.graph.graph import Array

Arrays = Sequence[Array | None]


def unique(arrays: Arrays, axis: int | None, is_sorted: bool) -> list[Array]:
    """The different elements, where each is first, which one each element is, and how many there
    are of each.
    """
    x = np.asarray(arrays[0])
    made, first, which, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    which = which.reshape(-1)
    if not is_sorted:  # in the order of their first places
        order = np.argsort(first)
        made, first, counts = np.take(made, order, axis or 0), first[order], counts[order]
        which = np.argsort(order)[which]
    return [made, *(a.astype(np.int64) for a in (first, which, counts))]


def non_max_suppression(arrays: Arrays, by_center: bool) -> list[Array]:
    """Rows (batch, class, box) of the boxes that are kept, the best of each class first. A box
    goes if it overlaps a better one by more than a threshold.
    """
    boxes, scores = (np.asarray(a) for a in arrays[:2])
    most, overlap, least = (_number(arrays, k) for k in (2, 3, 4))
    count = 0 if most is None else max(int(most), 0)
    overlap = 0.0 if overlap is None else overlap
    kept = []
    for b, (corners, of_classes) in enumerate(zip(boxes, scores, strict=True)):
        low, high = _corners(corners, by_center)
        for c, score in enumerate(of_classes):
            left = np.argsort(-score, kind="stable")  # equal ones in their order
            if least is not None:
                left = left[score[left] > least]
            for _ in range(count):
                if not left.size:
                    break
                kept.append((b, c, left[0]))
                left = left[1:][~_overlaps(low, high, left[0], left[1:], overlap)]
    return [np.array(kept, np.int64).reshape(-1, 3)]


def _corners(boxes: Array, by_center: bool) -> tuple[Array, Array]:
    if by_center:
        middle, half = boxes[:, :2], boxes[:, 2:] / 2
        return middle - half, middle + half
    return np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])


def _overlaps(low: Array, high: Array, best: int, others: Array, most: float) -> Array:
    """Which boxes share more than this part of the area of both with the best one."""
    sides = np.minimum(high[others], high[best]) - np.maximum(low[others], low[best])
    shared = np.prod(np.maximum(sides, 0), 1)
    area, own = np.prod(high[others] - low[others], 1), np.prod(high[best] - low[best])
    both = area + own - shared
    with np.errstate(divide="ignore", invalid="ignore"):
        result: Array = (shared > 0) & (area > 0) & (own > 0) & (shared / both > most)
    return result


def dropout(arrays: Arrays, seed: int | None) -> list[Array]:
    """In training, as it is called for that only."""
    x, ratio = np.asarray(arrays[0]), _number(arrays, 1)
    ratio = 0.5 if ratio is None else ratio
    # The generator by which ONNX's own tests draw, so that a seed gives the same result.
    drawn: Array = np.random.RandomState(seed).uniform(0, 1, x.shape)
    kept = drawn >= ratio
    scale = 1 / (1 - ratio) if ratio < 1 else 0.0
    return [np.where(kept, x * scale, 0).astype(x.dtype), kept]


def multinomial(arrays: Arrays, samples: int, dtype: Any, seed: float | None) -> list[Array]:
    """Classes by their unnormalised logarithmic probabilities (batch, classes)."""
    x = np.asarray(arrays[0], np.float64)
    # The attribute is a float, so its bits are the seed.
    bits = None if seed is None else int(np.float64(seed).view(np.uint64))
    noise = np.random.default_rng(bits).gumbel(size=(x.shape[0], samples, x.shape[1]))
    return [np.argmax(x[:, None] + noise, 2).astype(dtype)]


def fourier_frames(arrays: Arrays, step: int, length: int, onesided: bool) -> list[Array]:
    """(batch, frames, bins, 2): the transforms of parts of a signal, with a window on each."""
    x = np.asarray(arrays[0])
    given = arrays[2] if len(arrays) > 2 else None
    window = np.ones(length, x.dtype) if given is None else np.asarray(given)
    parts = x.reshape(*x.shape[:2], -1)
    signal = parts[..., 0] if parts.shape[2] == 1 else parts[..., 0] + 1j * parts[..., 1]
    frames = np.lib.stride_tricks.sliding_window_view(signal, length, 1)[:, ::step]
    y = (np.fft.rfft if onesided else np.fft.fft)(frames * window, axis=-1)
    return [np.stack([y.real, y.imag], -1).astype(x.dtype)]


def _number(arrays: Arrays, k: int) -> float | None:
    a = arrays[k] if k < len(arrays) else None
    return None if a is None or not np.size(a) else float(np.asarray(a).reshape(-1)[0])
