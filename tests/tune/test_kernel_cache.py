"""The folder of built kernels: what is kept, what is too much, and what is damaged."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tilesmith.tune.cache import Cache


def nbytes(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.iterdir())


def test_objects_and_arrays_come_back(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("a", b"kernel")
    assert Cache(tmp_path).get("a") == b"kernel"
    assert cache.get("b") is None
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    cache.put_array("w", array)
    got = cache.get_array("w", (3, 4), array.dtype)
    assert got is not None
    np.testing.assert_array_equal(got, array)
    assert cache.get_array("w", (3, 5), array.dtype) is None


def test_what_was_used_longest_ago_is_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_nbytes=5000)
    for k in range(4):
        cache.put(f"k{k}", bytes(1000))
        os.utime(tmp_path / f"k{k}.artifact", (k, k))
    assert cache.get("k0") is not None  # used now
    for k in range(4, 7):
        cache.put(f"k{k}", bytes(1000))
        assert nbytes(tmp_path) <= 5000
    left = {p.stem for p in tmp_path.iterdir()}
    assert "k0" in left
    assert {"k1", "k2"}.isdisjoint(left)


def test_two_that_fill_one_folder_keep_the_bound(tmp_path: Path) -> None:
    caches = [Cache(tmp_path, max_nbytes=20_000) for _ in range(2)]
    for k in range(60):
        caches[k % 2].put(f"k{k}", bytes(700))
        assert nbytes(tmp_path) <= 20_000


@pytest.mark.parametrize("keep", [0, 40, 70])
def test_a_damaged_file_counts_as_absent(tmp_path: Path, keep: int) -> None:
    cache = Cache(tmp_path)
    cache.put("a", bytes(range(100)))
    path = tmp_path / "a.artifact"
    path.write_bytes(path.read_bytes()[:keep])
    assert cache.get("a") is None
    assert not path.exists()


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file")
    cache.put("a", b"1")
    assert cache.get("a") is None
