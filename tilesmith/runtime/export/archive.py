"""A static library: object files in, the bytes of an `ar` archive with its index of symbols out.

Written here, because that takes no tool: a static library can be exported on a machine without a
compiler.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

_MAGIC = b"!<arch>\n"


def archive(objects: Mapping[str, bytes], symbols: Mapping[str, Sequence[str]]) -> bytes:
    """`objects` and the symbols that each defines, by its file's name. Nothing depends on the time
    or the user, so equal objects make equal archives.
    """
    long_names = b"".join(f"{name}/\n".encode() for name in objects)
    names = [s for name in objects for s in symbols[name]]
    text = b"".join(s.encode() + b"\0" for s in names)
    index_nbytes = 4 + 4 * len(names) + len(text)
    at = len(_MAGIC) + 60 + _even(index_nbytes) + 60 + _even(len(long_names))
    offsets: list[int] = []
    members: list[bytes] = []
    long_at = 0
    for name, code in objects.items():
        offsets += [at] * len(symbols[name])
        member = _member(f"/{long_at}", code)
        members.append(member)
        at += len(member)
        long_at += len(name) + 2
    index = struct.pack(f">{1 + len(names)}I", len(names), *offsets) + text
    return b"".join([_MAGIC, _member("/", index), _member("//", long_names), *members])


def _even(nbytes: int) -> int:
    return nbytes + nbytes % 2


def _member(name: str, data: bytes) -> bytes:
    # name, time, user, group, mode, size
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{len(data):<10}`\n".encode()
    return head + data + b"\n" * (len(data) % 2)
