"""The file of a saved model, model.tsm: a ZIP archive without compression.

    model.json       the description (saved_plan.py), with the SHA-256 of everything else
    kernels/N.o      the machine code of each kernel
    weights.bin      arrays, each at a multiple of 64 bytes, so that they can be mapped

The archive's comment has the version of the format and the SHA-256 of model.json, which is the
digest of the whole. Weights may lie in a file of their own, behind a header of 64 bytes; model.json
then has its path, relative to the folder of the archive or absolute.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import GraphError
from tilesmith.base.whole_file import named_errors, whole_file
from tilesmith.runtime.arrays import Array
from tilesmith.runtime.export.library import ALIGNMENT, Weights

FORMAT = 1
_DESCRIPTION, _WEIGHTS = "model.json", "weights.bin"
_COMMENT = re.compile(rb"tilesmith model ([0-9]{1,9}) ([0-9a-f]{64})")
_REFERRED = b"tilesmith model weights 1\n".ljust(ALIGNMENT, b"\0")
_TIME = (1980, 1, 1, 0, 0, 0)  # ZIP's first: equal models make equal files
_THREADS = min(4, os.cpu_count() or 1)
_LOCAL_HEAD = struct.Struct("<4s22xHH")  # of a member: magic, then the lengths of name and extra
_ZIP64_NBYTES = 20  # what Python's zipfile adds to the extra field of a member of any size
_PADDING_ID = 0xD935  # the extra field that zipalign fills up with


@dataclass(frozen=True)
class Archive:
    """What was read and found undamaged. `weights` are all arrays, mapped."""

    description: Mapping[str, Any]
    kernels: Sequence[bytes]
    weights: Array


def write_archive(
    path: Path,
    description: Mapping[str, Any],
    kernels: Sequence[bytes],
    weights: Weights,
    apart: Path | None,
) -> str:
    """Writes the file, and the weights to the file `apart` if there is one; returns the digest."""
    spans = _spans(weights)
    described = {
        **description,
        "code": [_sha256(code) for code in kernels],
        "weights": {
            "path": None if apart is None else _reference(path, apart),
            "nbytes": weights.nbytes,
            "arrays": [[*s, h] for s, h in zip(spans, _hashes(weights.arrays), strict=True)],
        },
    }
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    digest = _sha256(text)
    if apart is not None:
        _require_replaceable(apart)
        with named_errors(apart), whole_file(apart) as file:
            file.write(_REFERRED)
            _write_arrays(file, weights)
    with named_errors(path), whole_file(path) as file, ZipFile(file, "w", ZIP_STORED) as archive:
        archive.comment = f"tilesmith model {FORMAT} {digest}".encode()
        archive.writestr(ZipInfo(_DESCRIPTION, _TIME), text)
        for k, code in enumerate(kernels):
            archive.writestr(ZipInfo(f"kernels/{k}.o", _TIME), code)
        if apart is None:
            member = ZipInfo(_WEIGHTS, _TIME)
            member.extra = _padding(file.tell() + _LOCAL_HEAD.size + len(_WEIGHTS))
            with archive.open(member, "w", force_zip64=True) as part:
                _write_arrays(part, weights)
    return digest


def _padding(at: int) -> bytes:
    """The extra field that makes what follows it, and zipfile's own field, begin at a boundary."""
    fill = -(at + 4 + _ZIP64_NBYTES) % ALIGNMENT
    return struct.pack("<HH", _PADDING_ID, fill) + bytes(fill)


def _write_arrays(file: Any, weights: Weights) -> None:
    for a in weights.arrays:
        file.write(a.data)
        file.write(bytes(-len(a) % ALIGNMENT))


def _spans(weights: Weights) -> list[tuple[int, int]]:
    """The offset and the bytes of each array."""
    spans, at = [], 0
    for a in weights.arrays:
        spans.append((at, len(a)))
        at += -(-len(a) // ALIGNMENT) * ALIGNMENT
    return spans


def _reference(path: Path, apart: Path) -> str:
    """A path as it was given, but relative to the folder of the archive: both may move."""
    if apart.is_absolute():
        return str(apart)
    return os.path.relpath(apart.absolute(), path.absolute().parent)


def _require_replaceable(apart: Path) -> None:
    """Raises if something else than the weights of a saved model would be lost."""
    if not apart.exists():
        return
    with named_errors(apart), apart.open("rb") as file:
        if file.read(len(_REFERRED)) not in (_REFERRED, b""):
            raise GraphError(
                f"{apart} exists and has no weights of a saved model; name another file"
            )


def _sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def _hashes(arrays: Sequence[Array]) -> list[str]:
    with ThreadPoolExecutor(_THREADS) as threads:  # Python's lock is free while it computes them
        return list(threads.map(_sha256, [a.data for a in arrays]))


def read_archive(path: Path, digest: str | None, weights: Path | None) -> Archive:
    """Checks everything. `digest` is the one that is asked for, if any; `weights` is where those
    that lie apart are now.
    """
    with _opened(path) as file:
        try:
            with ZipFile(file) as archive:
                text = _description(path, archive, digest)
                described: dict[str, Any] = json.loads(text)
                code = [_member(archive, f"kernels/{k}.o") for k in range(len(described["code"]))]
                if list(map(_sha256, code)) != described["code"]:
                    raise damaged(path, "the machine code of a kernel is not as it was written")
                at = _place(file, archive) if described["weights"]["path"] is None else 0
        except (BadZipFile, EOFError, NotImplementedError, struct.error) as error:
            raise damaged(path, str(error)) from None
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise damaged(path, f"what it must have is missing ({error})") from None
        of = described["weights"]
        if of["path"] is None:
            if weights is not None:
                raise GraphError(f"{path} has its weights inside; leave weights={weights} out")
            return Archive(described, code, _mapped(path, file, at, of))
    apart = path.parent / of["path"] if weights is None else weights
    if not apart.is_file():
        raise GraphError(
            f"the weights of {path} are missing: there is no file {apart}; say where it is with "
            "weights="
        )
    with _opened(apart) as file:
        if file.read(len(_REFERRED)) != _REFERRED:
            raise GraphError(f"{apart} is not a file of weights, which {path} refers to")
        return Archive(described, code, _mapped(apart, file, len(_REFERRED), of))


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error.strerror or error}") from None


def damaged(path: Path, why: str) -> GraphError:
    return GraphError(f"{path} is damaged, or not a saved model: {why}; copy or save it again")


def _description(path: Path, archive: ZipFile, digest: str | None) -> bytes:
    head = _COMMENT.fullmatch(archive.comment)
    if head is None:
        raise damaged(path, "its comment is not that of a saved model")
    if int(head[1]) != FORMAT:
        raise GraphError(
            f"{path} has version {int(head[1])} of the format, and this Tilesmith reads {FORMAT}; "
            "save it again"
        )
    text = _member(archive, _DESCRIPTION)
    own = _sha256(text)
    if own.encode() != head[2]:
        raise damaged(path, "its description is not as it was written")
    if digest is not None and digest != own:
        raise GraphError(f"{path} is not the model that is asked for: its digest is {own}")
    return text


def _member(archive: ZipFile, name: str) -> bytes:
    if archive.getinfo(name).compress_type != ZIP_STORED:  # which might be as large as memory
        raise BadZipFile(f"{name} is compressed")
    return archive.read(name)


def _place(file: BinaryIO, archive: ZipFile) -> int:
    """Where the weights begin in the file."""
    member = archive.getinfo(_WEIGHTS)
    file.seek(member.header_offset)
    magic, name, extra = _LOCAL_HEAD.unpack(file.read(_LOCAL_HEAD.size))
    if magic != b"PK\3\4" or member.compress_type != ZIP_STORED:
        raise BadZipFile(f"{_WEIGHTS} is not as it was written")
    return member.header_offset + _LOCAL_HEAD.size + int(name) + int(extra)


def _mapped(path: Path, file: BinaryIO, at: int, of: Mapping[str, Any]) -> Array:
    """The weights behind a place in a file, if they are those that were saved."""
    nbytes, arrays = int(of["nbytes"]), of["arrays"]
    have = os.fstat(file.fileno()).st_size
    if have < at + nbytes:
        raise GraphError(
            f"{path} has {have} bytes, and its weights end at {at + nbytes}; it was not copied as "
            "a whole"
        )
    if nbytes == 0:
        return np.empty(0, np.uint8)
    raw: Array = np.memmap(file, np.uint8, "r", at, (nbytes,))
    found = _hashes([raw[begin : begin + n] for begin, n, _ in arrays])
    if found != [h for _, _, h in arrays]:
        raise GraphError(
            f"the weights in {path} are not those that were saved: their SHA-256 differs; copy "
            "them or save the model again"
        )
    return raw
