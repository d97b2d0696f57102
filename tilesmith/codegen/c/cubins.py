"""Several cubins as the code of one artifact. Each launch is compiled by itself, because those of
different candidates are often the same: such as launches that transform windows. A single cubin is
its own container.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

_MAGIC = b"tilesmith cubins"
_NUMBER = Struct("<Q")


def joined(cubins: Sequence[bytes]) -> bytes:
    """The cubins after their number and their lengths."""
    if len(cubins) == 1:
        return cubins[0]
    numbers = (len(cubins), *map(len, cubins))
    return b"".join((_MAGIC, *map(_NUMBER.pack, numbers), *cubins))


def parted(code: bytes) -> list[bytes]:
    """The cubins in an artifact's code."""
    if not code.startswith(_MAGIC):
        return [code]
    start = len(_MAGIC) + _NUMBER.size
    (count,) = _NUMBER.unpack_from(code, len(_MAGIC))
    at, out = start + count * _NUMBER.size, []
    for k in range(count):
        (length,) = _NUMBER.unpack_from(code, start + k * _NUMBER.size)
        out.append(code[at : at + length])
        at += length
    return out
