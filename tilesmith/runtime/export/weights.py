"""The weights file: a header that says what it belongs to, and the arrays as the kernels read them.

    byte  0   8   magic, TILESMTH
          8   4   version of this format
         12   4   bytes of the header
         16  32   digest of the library that it belongs to, as hexadecimal digits
         48   8   bytes of the arrays
         56  16   checksum of the arrays
         72  56   zeros
        128       the arrays, each at a multiple of 64

All numbers are little-endian. A library knows all of its header but the checksum, and accepts no
other one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from tilesmith.runtime.arrays import Array
from tilesmith.runtime.export.library import ALIGNMENT, Weights
from tilesmith.runtime.export.opening import functions_of

MAGIC = b"TILESMTH"
VERSION = 1
HEADER_NBYTES = 128
_PIECE_NBYTES = 1 << 24
_WORD = np.dtype("<u8")
_MASK = (1 << 64) - 1


def write_weights(path: Path, weights: Weights, digest: str) -> None:
    with path.open("wb") as f:
        f.write(bytes(HEADER_NBYTES))
        sums = (0, 0)
        for piece in _pieces(weights.arrays):
            f.write(piece.data)
            sums = checksum(piece, sums)
        f.seek(0)
        f.write(header(weights, digest, sums))


def header(weights: Weights, digest: str, sums: tuple[int, int]) -> bytes:
    head = struct.pack(
        "<8sII32sQQQ",
        MAGIC, VERSION, HEADER_NBYTES, digest.encode(), weights.nbytes, *sums,
    )  # fmt: skip
    return head.ljust(HEADER_NBYTES, b"\0")


def checksum(data: Array, before: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """Fletcher's, of 64-bit words: their sum, and the sum of all sums on the way, modulo 2^64. It
    takes two additions a word, so opening a model is as fast as its weights can be read. It finds
    what breaks files: lost ends, holes of zeros, blocks out of order, single words.
    """
    words = data.view(_WORD)
    n = len(words)
    plain, weighted = before
    weighted += n * plain + int(np.dot(np.arange(n, 0, -1, dtype=_WORD), words))
    return (plain + int(words.sum(dtype=_WORD))) & _MASK, weighted & _MASK


def _pieces(arrays: Iterable[Array]) -> Iterable[Array]:
    """The arrays, filled up to whole cache lines, in pieces that fit the memory."""
    for a in arrays:
        for at in range(0, len(a), _PIECE_NBYTES):
            piece = a[at : at + _PIECE_NBYTES]
            fill = -len(piece) % ALIGNMENT
            yield np.concatenate([piece, np.zeros(fill, np.uint8)]) if fill else piece.copy()


# How an exported library reads its weights: `map_weights` maps the file and checks that it is the
# right one, whole and undamaged: LLVM functions that depend on libc only (weights.ll).
TEXTS = {
    "no_path": "the path of the weights is NULL; this library needs its file $NAME.weights",
    "no_file": "cannot open the weights file %s: %s",
    "no_map": "cannot read the weights file %s: %s",
    "short": "%s has %lld bytes, less than the header of a weights file; it is cut off, or another",
    "magic": "%s is not a weights file of tilesmith: it does not begin with $MAGIC",
    "version": "%s has version %u of the format, and this library reads $VERSION; export it again",
    # Without the digest in the file, which may be any bytes.
    "digest": "%s belongs to another library than this one, which is $DIGEST",
    "size": "%s has %lld bytes and must have $FILE_NBYTES; it was not copied as a whole",
    "header": "%s is damaged: its header is not as it was written; copy or export it again",
    "sums": "%s is damaged: its checksum is wrong; copy or export it again",
}


def reading_source(values: Mapping[str, object]) -> str:
    return functions_of("weights.ll", TEXTS, values)
