"""Writes files that are there as a whole or not at all, also if the disk is full."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from tilesmith.base.errors import ArgumentError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` at the end of the block. After an error,
    which may be an OSError of its own, `path` is as it was. Pipes and devices are written to as
    they are, and so are files in folders in which none can be made.
    """
    if path.exists() and not _is_replaceable(path):
        with path.open("wb") as file:
            yield file
        return
    place = path.resolve()  # a link stays one
    part = place.with_name(f".{place.name[:100]}.{token_hex(6)}.part")
    # O_EXCL: never a file or link that someone else has put there.
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            with suppress(OSError):  # there may be none, or none that lets us
                os.fchmod(handle, stat.S_IMODE(place.stat().st_mode))
            yield file
        os.replace(part, place)
    finally:
        with suppress(OSError):
            os.unlink(part)


def write_whole(path: Path, data: str | bytes) -> None:
    """Raises an ArgumentError that names the file and says why it cannot be written. Text is
    written as UTF-8, with ? for what is not text.
    """
    content = data.encode(errors="replace") if isinstance(data, str) else data
    with named_errors(path), whole_file(path) as file:
        file.write(content)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Converts an OSError while a whole file is written to an ArgumentError."""
    try:
        yield
    except OSError as e:
        raise ArgumentError(
            f"{path} cannot be written: {e.strerror or e}; what was there before is unchanged"
        ) from None


def _is_replaceable(path: Path) -> bool:
    """Whether another file can take its place: a device, or the file behind /dev/stdout, cannot
    be replaced.
    """
    is_device = not path.is_file() or path.absolute().parts[1:2] in (("dev",), ("proc",))
    return not is_device and os.access(path.resolve().parent, os.W_OK)
