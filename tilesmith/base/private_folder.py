"""Whether only this user can have put the files of a folder there, so that code in them may run."""

from __future__ import annotations

import os
import stat
from errno import ENOTDIR
from pathlib import Path
from typing import BinaryIO

_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class NotPrivate(Exception):
    """Others could have written it. The text says what, why, and what would be right."""


def require_private(folder: Path) -> Path:
    """The folder without symbolic links in its path, for use in place of it. It must belong to this
    user and be writable by nobody else. So must the folders above it, or else others could put
    another one in its place; these may also belong to the administrator, and be sticky like /tmp.

    Raises NotPrivate, or an OSError if there is no such folder.
    """
    real = folder.resolve(strict=True)
    own = os.geteuid()
    # In a container, the administrator may be another than user 0.
    trusted = {own, 0, os.stat("/").st_uid}
    for path in (real, *real.parents):
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(ENOTDIR, "not a folder", str(path))
        if found.st_uid not in ({own} if path == real else trusted):
            raise NotPrivate(
                f"{path} belongs to user {found.st_uid}, not to you (user {own}); name a folder "
                "that you have made yourself"
            )
        is_sticky = path != real and found.st_mode & stat.S_ISVTX
        if found.st_mode & _BY_OTHERS and not is_sticky:
            raise NotPrivate(f"others may write to {path}; take that away with chmod go-w {path}")
    return real


def open_private(path: Path) -> BinaryIO:
    """Opens a file of a private folder to read it: one of this user, which nobody else may write
    to, and no symbolic link. Raises NotPrivate, or an OSError if it cannot be opened.
    """
    # O_NONBLOCK: opening a pipe would wait for its writer.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise NotPrivate(f"{path} is not a file; remove it")
        if found.st_uid != os.geteuid():
            raise NotPrivate(
                f"{path} belongs to user {found.st_uid}, not to you (user {os.geteuid()}); remove "
                "it"
            )
        if found.st_mode & _BY_OTHERS:
            raise NotPrivate(f"others may write to {path}; remove it")
        return os.fdopen(file, "rb")
    except BaseException:
        os.close(file)
        raise


def make_private(folder: Path) -> None:
    """Makes the folder and those above it that are missing, for this user alone."""
    for path in (*reversed(folder.parents), folder):
        if not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)
