"""Cache: a folder of built kernels and packed weights, each in a file named by a digest of all that
it was made from.

Files are written beside their place and then moved there, so that two processes may fill one cache.
Each begins with a checksum: a damaged one counts as absent and is made again. When the files
together pass a bound, those that were used longest ago are removed.

Kernels are code, which runs as this user. So a folder or a file that others can write to is not
used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, field
from functools import cache
from pathlib import Path
from struct import Struct
from struct import error as BadStruct
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TilesmithError, TuneError
from tilesmith.base.given import checks_given
from tilesmith.base.identity import digest
from tilesmith.base.private_folder import NotPrivate, make_private, open_private, require_private
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact, entry_from_json, entry_to_json
from tilesmith.runtime.checksum import checksum
from tilesmith.runtime.kernel import Origin
from tilesmith.schedule.trace import Parts

Array = np.ndarray[Any, Any]

_EVERY_MAGIC = b"tilesmith cache "  # of all versions of the format
_MAGIC = _EVERY_MAGIC + b"4\n"
_HEAD_NBYTES = 64  # magic and checksum, filled up so that arrays behind it are aligned
_KERNELS, _ARRAYS, _FORMER = ".artifact", ".weights", ".kernel"
_UNFINISHED = re.compile(r"\.\w+\.part")
DEFAULT_NBYTES = 2 << 30
_WARNED: set[Path] = set()  # folders that a warning has named


def default_folder() -> Path:
    """$XDG_CACHE_HOME/tilesmith, or ~/.cache/tilesmith."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "tilesmith"


def code_digest(parts: Parts | None = None) -> str:
    """Of all code that a kernel depends on: this package's, and the user's own."""
    return digest(_package_digest(), "" if parts is None else parts.digest)


@cache
def _package_digest() -> str:
    """Of this package's own source: another version of it makes other kernels."""
    root = str(Path(__file__).parents[1])
    h = hashlib.blake2b(digest_size=16)
    # At every start, so by the quickest means: Path.rglob would take longer than all else here.
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(f for f in files if f.endswith(".py")):
            path = os.path.join(folder, name)
            h.update(os.path.relpath(path, root).encode())
            with open(path, "rb", buffering=0) as file:
                h.update(file.read())
    return h.hexdigest()


@checks_given(error=TuneError)
@dataclass(frozen=True)
class Cache:
    """`max_nbytes` bounds the files together. A folder that cannot be written is not an error: what
    is made is then not kept. Nor is a folder that others than this user can write to, of which a
    warning tells.
    """

    folder: Path
    max_nbytes: int = DEFAULT_NBYTES
    _free: list[int] = field(default_factory=lambda: [0], init=False, repr=False, compare=False)

    def get(self, key: str) -> bytes | None:
        """The bytes under a key; None if there are none, or if their file is damaged."""
        raw = self._read(key + _KERNELS)
        return None if raw is None else raw[_HEAD_NBYTES:].tobytes()

    def put(self, key: str, data: bytes) -> None:
        self._write(key + _KERNELS, memoryview(data))

    def get_array(self, key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        """An array, mapped from its file: only what is read of it takes memory."""
        raw = self._read(key + _ARRAYS)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if raw is None or len(raw) != _HEAD_NBYTES + nbytes:
            return None
        return np.ndarray(shape, dtype, raw, _HEAD_NBYTES)

    def put_array(self, key: str, array: Array) -> None:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._write(key + _ARRAYS, flat.data)

    def _read(self, name: str) -> Array | None:
        """A file, mapped."""
        try:
            path = require_private(self.folder) / name
            with open_private(path) as file:
                raw: Array = np.memmap(file, np.uint8, "r")
        except NotPrivate as why:
            _warn(self.folder, str(why))
            return None
        except OSError:
            return None
        except ValueError:  # an empty file cannot be mapped
            raw = np.empty(0, np.uint8)
        if raw[:_HEAD_NBYTES].tobytes() != _head(name, raw[_HEAD_NBYTES:].data):
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)
        return raw

    def _write(self, name: str, data: memoryview) -> None:
        try:
            make_private(self.folder)
            folder = require_private(self.folder)
            with _unfinished(folder) as part:
                with open(part, "wb") as f:
                    f.write(_head(name, data))
                    f.write(data)
                os.replace(part, folder / name)
        except NotPrivate as why:
            _warn(self.folder, str(why))
            return
        except OSError:
            return
        # Thousands of files take longer to look at than a kernel takes to build, so the folder is
        # looked at again when a part of what was free then is filled: several processes may write.
        self._free[0] -= data.nbytes
        if self._free[0] < 0:
            self._free[0] = self._shrink(folder) // 16

    def _shrink(self, folder: Path) -> int:
        """Removes what is too much, and what an older version has left; how many bytes are free
        then. Files that are not of a cache stay.
        """
        files = []
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                kind = os.path.splitext(entry.name)[1]
                if kind == _FORMER:
                    _remove(entry.path)
                elif kind in (_KERNELS, _ARRAYS) or _UNFINISHED.fullmatch(entry.name):
                    with suppress(OSError):  # another process may be removing it
                        stat = entry.stat(follow_symlinks=False)
                        files.append((stat.st_mtime_ns, stat.st_size, entry.path))
        free = self.max_nbytes - sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if free >= 0:
                break
            if _remove(path):
                free += size
        return max(0, free)


@contextlib.contextmanager
def _unfinished(folder: Path) -> Iterator[str]:
    handle, part = tempfile.mkstemp(dir=folder, prefix=".", suffix=".part")
    os.close(handle)
    try:
        yield part
    finally:
        with suppress(OSError):
            os.remove(part)


def _remove(path: str) -> bool:
    """Removes a file if it is of a cache, of whatever version; whether it was."""
    try:
        with open_private(Path(path)) as file:
            start = file.read(len(_EVERY_MAGIC))
        if start != _EVERY_MAGIC and not (start == b"" and path.endswith(".part")):
            return False
        os.unlink(path)
    except (OSError, NotPrivate):
        return False
    return True


def _warn(folder: Path, why: str) -> None:
    """Once for a folder in a process."""
    if folder not in _WARNED:
        _WARNED.add(folder)
        warnings.warn(
            f"the cache folder {folder} is not used: {why}. What is kept there is run as code, so "
            "the folder and its files must belong to you and be writable by you alone",
            stacklevel=2,
        )


def _head(name: str, data: memoryview) -> bytes:
    """The name is part of the checksum: a file under the name of another is not taken for it."""
    check = hashlib.sha256(name.encode())
    check.update(checksum(data))
    return (_MAGIC + check.digest()).ljust(_HEAD_NBYTES, b"\0")


_LENGTHS = Struct("<QQ")  # bytes of the description and of the source
# What reading bytes of another version may raise.
_UNREADABLE = (
    *(TilesmithError, BadStruct, ValueError, TypeError, LookupError),
    *(AttributeError, ArithmeticError, RecursionError),
)


def kernel_to_bytes(artifact: Artifact, origin: Origin) -> bytes:
    description = {
        "name": artifact.name,
        "target": artifact.target.fingerprint,
        "entries": [entry_to_json(e) for e in artifact.entries],
        "cpu": artifact.cpu,
        "features": artifact.features,
        "language": artifact.language,
        "origin": asdict(origin),
    }
    head = json.dumps(description, separators=(",", ":")).encode()
    source = artifact.source.encode()
    return b"".join((_LENGTHS.pack(len(head), len(source)), head, source, artifact.code))


def kernel_from_bytes(data: bytes, target: Target) -> tuple[Artifact, Origin] | None:
    """None if these are not the bytes of a kernel for the target."""
    try:
        head, source = _LENGTHS.unpack_from(data)
        at = _LENGTHS.size + head
        d: dict[str, Any] = json.loads(data[_LENGTHS.size : at])
        if d["target"] != target.fingerprint:
            return None
        artifact = Artifact(
            str(d["name"]), target, tuple(map(entry_from_json, d["entries"])),
            data[at : at + source].decode(), data[at + source :], str(d["cpu"]),
            str(d["features"]), str(d["language"]),
        )  # fmt: skip
        return artifact, Origin(**d["origin"])
    except _UNREADABLE:
        return None
