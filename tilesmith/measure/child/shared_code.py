"""Compiled code that the build workers of a fork server share, by a key of its text.

About every sixth candidate of a convolution on a GPU has the same text as an earlier one: an unroll
depth beyond what there is to unroll, or vectors where none fit. A worker takes the code that
another one has compiled.

It is a file in memory, which ends with the processes. Records follow each other, and the first
eight bytes say where the last one ends. A worker that is killed while it writes leaves them as they
were.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

_HEAD = 8
_KEY = 32
_MOST = 256 << 20  # bytes; nothing is added to a file of that size


class SharedCode:
    def __init__(self) -> None:
        self._file = os.memfd_create("code")
        self._at: dict[bytes, tuple[int, int]] = {}  # where records of this file are
        self._read = _HEAD  # the end of the records that are in `_at`
        os.pwrite(self._file, _HEAD.to_bytes(_HEAD, "little"), 0)

    def get(self, key: str) -> bytes | None:
        """What was put under this key, by any process; None if nothing was."""
        self._look()
        place = self._at.get(_digest(key))
        return None if place is None else os.pread(self._file, place[1], place[0])

    def put(self, key: str, code: bytes) -> None:
        with self._alone():
            end = self._end
            if end + len(code) > _MOST:
                return
            head = _digest(key) + len(code).to_bytes(_HEAD, "little")
            os.pwrite(self._file, head + code, end)
            end += len(head) + len(code)
            os.pwrite(self._file, end.to_bytes(_HEAD, "little"), 0)

    @property
    def _end(self) -> int:
        return int.from_bytes(os.pread(self._file, _HEAD, 0), "little")

    def _look(self) -> None:
        """Reads the heads of new records."""
        end = self._end
        while self._read < end:
            head = os.pread(self._file, _KEY + _HEAD, self._read)
            size = int.from_bytes(head[_KEY:], "little")
            start = self._read + len(head)
            self._at[head[:_KEY]] = start, size
            self._read = start + size

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process writes. The lock is released when a process ends."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()
