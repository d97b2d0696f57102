"""Checksums of large arrays: what the native code computes is what NumPy does, and a change of any
kind changes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilesmith.runtime.checksum import KEYS, NBYTES, checksum, finished

SMALL = 1 << 18
STEP = np.uint64(2**64 - 7046029254386353131)
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def drawn(nbytes: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def of(data: np.ndarray[Any, Any]) -> bytes:
    return checksum(data.reshape(-1).view(np.uint8).data)


def by_numpy(data: Bytes) -> bytes:
    blocks = data.size // NBYTES
    keys, sums = KEYS.copy(), np.zeros_like(KEYS)
    for words in data[: blocks * NBYTES].view("<u8").reshape(blocks, -1):
        mixed = words ^ keys
        turned = (sums << np.uint64(29)) | (sums >> np.uint64(35))
        product = (mixed & np.uint64(2**32 - 1)) * (mixed >> np.uint64(32))
        sums = turned + product + words.reshape(-1, 2)[:, ::-1].reshape(-1)
        keys = keys + STEP
    return finished(sums, data[blocks * NBYTES :], data.size)


@pytest.mark.parametrize("more", [0, 1, 255, 256, 1000])
def test_the_native_code_computes_what_numpy_does(more: int) -> None:
    data = drawn(SMALL + more)
    assert of(data) == by_numpy(data)


def test_data_may_begin_anywhere() -> None:
    whole = drawn(SMALL + 9)
    assert of(whole[9:]) == of(whole[9:].copy())


@given(st.integers(0, 8 * SMALL - 1), st.booleans())
def test_every_bit_counts(bit: int, is_zero: bool) -> None:
    data = np.zeros(SMALL, np.uint8) if is_zero else drawn(SMALL)
    other = data.copy()
    other[bit // 8] ^= 1 << bit % 8
    assert of(other) != of(data)


@given(st.data())
def test_the_order_counts(draw: st.DataObject) -> None:
    """Of words, rows, and whole blocks, as where two rows of weights change places."""
    size = draw.draw(st.sampled_from([1, 4, 8, 256, 1024, 1 << 14]))
    data = drawn(SMALL).reshape(-1, size)
    i, j = draw.draw(st.lists(st.integers(0, len(data) - 1), min_size=2, max_size=2, unique=True))
    other = data.copy()
    other[[i, j]] = data[[j, i]]
    assert (of(other) == of(data)) is bool((data[i] == data[j]).all())


def test_matrices_that_are_much_alike_differ() -> None:
    eye = np.eye(512, dtype=np.float32)
    cases = [eye, -eye, eye[::-1].copy(), np.roll(eye, 1, 0), np.roll(eye, 64, 1), 2 * eye]
    cases += [np.zeros_like(eye), -np.zeros_like(eye), np.ones_like(eye), np.tri(512, dtype="f4")]
    cases += [eye[:511].copy(), np.eye(513, dtype=np.float32), eye.astype(np.float64)]
    assert len({of(c) for c in cases}) == len(cases)
