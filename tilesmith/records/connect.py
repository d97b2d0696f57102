"""A file name or URL in, a SQLAlchemy engine out, set up so that what is committed stays; and what
a database says when it fails, in words that help.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.pool import StaticPool

from tilesmith.base.errors import RecordsError

BUSY_SECONDS = 60.0  # how long to wait for another process that writes


def make_engine(place: str | os.PathLike[str]) -> sa.Engine:
    text = os.fspath(place)
    if "://" not in text:
        return _sqlite(sa.URL.create("sqlite", database=text))
    try:
        url = sa.make_url(text)
    except (exc.ArgumentError, ValueError) as e:
        raise RecordsError(f"{text} is not the URL of a database: {e}") from None
    match url.get_backend_name():
        case "sqlite":
            return _sqlite(url)
        case "postgresql" | "postgres":
            return _postgresql(url)
        case other:
            raise RecordsError(
                f"{url}: there is no support for {other}; give a file name for SQLite, "
                "or postgresql://user@host/name"
            )


def _postgresql(url: sa.URL) -> sa.Engine:
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    try:
        # A server restarts, a laptop sleeps: connections are tried before they are used.
        return sa.create_engine(url, pool_pre_ping=True)
    except ModuleNotFoundError as e:
        raise RecordsError(
            f"{url}: {e.name} is not installed; pip install 'tilesmith[postgres]'"
        ) from None


def in_memory(engine: sa.Engine) -> bool:
    return engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:")


def _sqlite(url: sa.URL) -> sa.Engine:
    connect_args: dict[str, Any] = {"timeout": BUSY_SECONDS, "check_same_thread": False}
    file = url.database
    if file is None or file in ("", ":memory:"):  # the one connection is the database
        engine = sa.create_engine(url, connect_args=connect_args, poolclass=StaticPool)
    else:
        path = Path(file)
        if path.is_dir():
            raise RecordsError(
                f"{file} is a folder, not a database; name a file in it: {path / 'records.db'}"
            )
        _refuse_torn(path)
        if path.exists() and not _is_writable(path):
            return _sqlite_to_read(url, path, connect_args)
        engine = sa.create_engine(url, connect_args=connect_args)

    @event.listens_for(engine, "connect")
    def connect(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # transactions begin where `begin` says, see below
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only of use for a new file
        use_wal(connection)
        # Without it, the last commits are lost with the machine's power.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def begin(c: sa.Connection) -> None:
        # A transaction that reads before it writes fails at once, without waiting, if another one
        # wrote in between; so one that will write says so at its beginning.
        writes = c.get_execution_options().get("writes", False)
        c.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def is_read_only(engine: sa.Engine) -> bool:
    return bool(engine.get_execution_options().get("read_only", False))


def _is_writable(file: Path) -> bool:
    """A log comes to lie beside the file, so that its folder counts too."""
    return os.access(file, os.W_OK) and os.access(file.resolve().parent, os.W_OK)


def _sqlite_to_read(url: sa.URL, file: Path, connect_args: dict[str, Any]) -> sa.Engine:
    """Of a file that may not be written to."""
    uri = f"{file.resolve().as_uri()}?mode=ro"
    log = file.with_name(f"{file.name}-wal")
    if not log.exists() or log.stat().st_size == 0:
        # Nobody has it open for writing. Otherwise SQLite would make an index of the log, which it
        # may not; with a log there is an index, too, as long as somebody has it open.
        uri += "&immutable=1"

    def connect() -> sqlite3.Connection:
        connection: sqlite3.Connection = sqlite3.connect(uri, uri=True, **connect_args)
        connection.isolation_level = None
        return connection

    engine = sa.create_engine(url, creator=connect, execution_options={"read_only": True})

    @event.listens_for(engine, "begin")
    def begin(c: sa.Connection) -> None:
        c.exec_driver_sql("BEGIN")

    return engine


def _refuse_torn(file: Path) -> None:
    """SQLite sees when whole pages are missing at the end of a file; a piece of the last one it
    takes for zeros.
    """
    if _ends_within_a_page(file):
        time.sleep(0.1)  # it may have been growing at that moment
        if _ends_within_a_page(file):
            raise RecordsError(f"{file}: {_MEANINGS['malformed']} (it ends within a page)")


def _ends_within_a_page(file: Path) -> bool:
    try:
        if file.with_name(f"{file.name}-wal").exists():  # the log has what is missing
            return False
        with file.open("rb") as f:
            head = f.read(18)
        page = int.from_bytes(head[16:], "big")
        known = head[:16] == b"SQLite format 3\0" and page > 0
        return known and file.stat().st_size % page != 0
    except OSError:  # SQLite will find out why
        return False


def use_wal(connection: sqlite3.Connection) -> None:
    """Readers and a writer at once. The change of a new file to it does not wait for others that
    are at the same, so we do.
    """
    give_up = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except sqlite3.OperationalError as e:
            if "locked" not in str(e) or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


# What SQLite says -> what it means to the one who reads it.
_MEANINGS = {
    "disk is full": "the disk is full. Nothing of this was stored, and what was stored before is "
    "safe: make room, then do it again",
    "disk I/O error": "the disk refused to read or write. Nothing of this was stored: is there "
    "room, and a quota?",
    "is locked": f"another process has kept it locked for {BUSY_SECONDS:g} s",
    "not a database": "this file is not a database of records",
    "malformed": "this file is damaged. Put back a copy of it, or import an export into a new one",
    "unable to open": "cannot be opened: is its folder there, and may you read the file, or write "
    "a new one?",
    "readonly": "may not be written to",
}


def meaning(error: Exception) -> str:
    """What is wrong, in a line."""
    message = str(error.orig if isinstance(error, exc.DBAPIError) and error.orig else error).strip()
    for piece, text in _MEANINGS.items():
        if piece in message:
            return f"{text} ({message})"
    return message.splitlines()[0] if message else type(error).__name__
