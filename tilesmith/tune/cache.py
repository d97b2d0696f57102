"""Cache: a folder of built kernels and packed weights, each in a file named by a digest of all that
it was made from.

Files are written beside their place and then moved there, so that two processes may fill one cache.
Each begins with a checksum: a damaged one counts as absent and is made again. When the files
together pass a bound, those that were used longest ago are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_MAGIC = b"tilesmith cache 1\n"
_CHECK_NBYTES = 32
_HEAD_NBYTES = 64  # magic and checksum, filled up so that arrays behind it are aligned
DEFAULT_NBYTES = 2 << 30


def default_folder() -> Path:
    """$XDG_CACHE_HOME/tilesmith, or ~/.cache/tilesmith."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "tilesmith"


@cache
def code_digest() -> str:
    """Of this package's own source: another version of it makes other kernels."""
    root = Path(__file__).parents[1]
    h = hashlib.blake2b(digest_size=16)
    for path in sorted(root.rglob("*.py")):
        h.update(str(path.relative_to(root)).encode())
        h.update(path.read_bytes())
    return h.hexdigest()


@dataclass(frozen=True)
class Cache:
    """`max_nbytes` bounds the files together. A folder that cannot be written is not an error: what
    is made is then not kept.
    """

    folder: Path
    max_nbytes: int = DEFAULT_NBYTES
    _free: list[int] = field(default_factory=lambda: [0], init=False, repr=False, compare=False)

    def get(self, key: str) -> Any:
        """The object under a key; None if there is none, or if its file is damaged."""
        data = self._read(self.folder / f"{key}.kernel")
        if data is None:
            return None
        try:
            return pickle.loads(data)
        except Exception:  # of another version of Python or of this package
            return None

    def put(self, key: str, value: object) -> None:
        self._write(self.folder / f"{key}.kernel", pickle.dumps(value, pickle.HIGHEST_PROTOCOL))

    def get_array(self, key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        """An array, mapped from its file: only what is read of it takes memory."""
        path = self.folder / f"{key}.weights"
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        try:
            raw = np.memmap(path, np.uint8, "r")
        except (OSError, ValueError):
            return None
        if len(raw) != _HEAD_NBYTES + nbytes or not _is_whole(raw):
            self._remove(path)
            return None
        _touch(path)
        return np.ndarray(shape, dtype, raw, _HEAD_NBYTES)

    def put_array(self, key: str, array: Array) -> None:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._write(self.folder / f"{key}.weights", flat.data)

    def _read(self, path: Path) -> memoryview | None:
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if not _is_whole(np.frombuffer(data, np.uint8)):
            self._remove(path)
            return None
        _touch(path)
        return memoryview(data)[_HEAD_NBYTES:]

    def _write(self, path: Path, data: bytes | memoryview) -> None:
        with suppress(OSError), self._unfinished(path) as part:
            with open(part, "wb") as f:
                f.write(_head(data))
                f.write(data)
            os.replace(part, path)
        # Thousands of files take longer to look at than a kernel takes to build, so the folder is
        # looked at again when a part of what was free then is filled: several processes may write.
        self._free[0] -= len(data)
        if self._free[0] < 0:
            self._free[0] = self._shrink() // 16

    @contextlib.contextmanager
    def _unfinished(self, path: Path) -> Iterator[str]:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, part = tempfile.mkstemp(dir=self.folder, prefix=".", suffix=".part")
        os.close(handle)
        try:
            yield part
        finally:
            with suppress(OSError):
                os.remove(part)

    def _shrink(self) -> int:
        """Removes what is too much; how many bytes are free then."""
        files = []
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(OSError):  # another process may be removing it
                    stat = entry.stat()
                    files.append((stat.st_mtime_ns, stat.st_size, entry.path))
        free = self.max_nbytes - sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if free >= 0:
                break
            self._remove(Path(path))
            free += size
        return free

    def _remove(self, path: Path) -> None:
        with suppress(OSError):
            path.unlink()


def _touch(path: Path) -> None:
    with suppress(OSError):
        os.utime(path)


def _checksum(data: Any) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECK_NBYTES).digest()


def _head(data: bytes | memoryview) -> bytes:
    return (_MAGIC + _checksum(data)).ljust(_HEAD_NBYTES, b"\0")


def _is_whole(raw: Array) -> bool:
    head = raw[:_HEAD_NBYTES].tobytes()
    return len(raw) >= _HEAD_NBYTES and head == _head(raw[_HEAD_NBYTES:].data)
