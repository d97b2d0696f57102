"""A weights file that differs anywhere from what was exported is not opened."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from exported import Loaded, needs

import tilesmith as ts
from tilesmith.runtime.export.weights import HEADER_NBYTES
from tilesmith.runtime.export.write import Exported

pytestmark = needs("cc")
_SUMS = range(56, 72)  # of the arrays, in the header


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    a, b = ts.placeholder((3, 40), name="A"), ts.placeholder((40, 24), name="B")
    kernel = ts.build(ts.function([a, b, ts.ops.matmul(a, b)], constants=[b]), ts.cpu(1))
    weights = np.random.default_rng(0).random((40, 24), np.float32)
    return kernel.export(tmp_path_factory.mktemp("out"), name="dense", weights={"B": weights})


@pytest.fixture
def library(files: Exported) -> Loaded:
    return Loaded(files, "dense")


def refused(library: Loaded, path: Path, data: bytes) -> str:
    """The message; it names the file."""
    path.write_bytes(data)
    assert library.open(str(path).encode()) is None
    assert str(path) in library.error
    return library.error


def test_what_was_exported_is_opened(files: Exported, library: Loaded) -> None:
    library.close(library.handle(files.weights))


@pytest.mark.parametrize("flipped", [1, 0x80, 0xFF])
def test_every_byte_of_the_header_counts(
    files: Exported, library: Loaded, tmp_path: Path, flipped: int
) -> None:
    data = files.weights.read_bytes()
    for at in range(HEADER_NBYTES):
        changed = bytearray(data)
        changed[at] ^= flipped
        message = refused(library, tmp_path / "damaged.weights", bytes(changed))
        if at in _SUMS:
            assert "its checksum is wrong" in message
        elif at >= 72 or 48 <= at < 56 or 12 <= at < 16:
            assert "its header is not as it was written" in message


def test_every_byte_of_the_arrays_counts(files: Exported, library: Loaded, tmp_path: Path) -> None:
    data, rng = files.weights.read_bytes(), random.Random(0)
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 9))):
            changed[rng.randrange(HEADER_NBYTES, len(data))] ^= rng.randrange(1, 256)
        if changed != data:
            message = refused(library, tmp_path / "damaged.weights", bytes(changed))
            assert "its checksum is wrong" in message


def test_words_and_lines_in_another_order(files: Exported, library: Loaded, tmp_path: Path) -> None:
    data = files.weights.read_bytes()
    for size in (1, 4, 8, 64, 1024):
        at = HEADER_NBYTES + 64
        a, b = data[at : at + size], data[at + size : at + 2 * size]
        swapped = data[:at] + b + a + data[at + 2 * size :]
        refused(library, tmp_path / "damaged.weights", swapped)


def test_another_length(files: Exported, library: Loaded, tmp_path: Path) -> None:
    data = files.weights.read_bytes()
    path = tmp_path / "damaged.weights"
    for length in (0, 1, 8, 16, 127, 128, 129, len(data) // 2, len(data) - 1):
        refused(library, path, data[:length])
    for more in (b"\0", bytes(64), bytes(4096), data):
        assert "it was not copied as a whole" in refused(library, path, data + more)


def test_numbers_in_the_other_byte_order(files: Exported, library: Loaded, tmp_path: Path) -> None:
    data = files.weights.read_bytes()
    magic, version, head, digest, *rest = struct.unpack_from("<8sII32sQQQ", data)
    swapped = struct.pack(">8sII32sQQQ", magic, version, head, digest, *rest)
    arrays = np.frombuffer(data[HEADER_NBYTES:], np.uint32).byteswap().tobytes()
    path = tmp_path / "damaged.weights"
    refused(library, path, swapped.ljust(HEADER_NBYTES, b"\0") + arrays)
    refused(library, path, data[:HEADER_NBYTES] + arrays)


def test_a_pipe_is_no_weights_file(library: Loaded, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert library.open(str(tmp_path / "pipe").encode()) is None
    assert f"cannot read the weights file {tmp_path / 'pipe'}" in library.error
