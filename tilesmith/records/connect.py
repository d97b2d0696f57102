"""Opens a SQLAlchemy engine for a file name or URL, configured such that what is committed is
durable, and translates errors of the database.
"""

from __future__ import annotations

import os
import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.pool import StaticPool

from tilesmith.base.errors import RecordsError

BUSY_SECONDS = 60.0  # timeout while another process writes
_OWN = "tilesmith_schema"  # the table by which a file is known as ours
_PAGES = 2  # of an empty SQLite file: the first one, and one that says what the others are for
# Bytes that are not UTF-8 become surrogates, by which `rows.require_sound` knows a damaged row.
_text = partial(str, encoding="utf-8", errors="surrogateescape")


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
        # pre_ping: a connection may be dead after the server restarted or the laptop slept.
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
    if file is None or file in ("", ":memory:"):  # the database lives in its one connection
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
        connection.text_factory = _text
        connection.isolation_level = None  # `begin`, below, starts transactions
        # A file may come from anyone: nothing that is defined in it is called, and its pages are
        # checked as they are read.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        _refuse_foreign(connection, file)
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has an effect on new files only
        use_wal(connection)
        # Otherwise a power failure loses the last commits.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def begin(c: sa.Connection) -> None:
        # A transaction that reads before it writes fails at once, without waiting, if another one
        # wrote in between. So a transaction that will write is declared as such.
        writes = c.get_execution_options().get("writes", False)
        c.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def is_read_only(engine: sa.Engine) -> bool:
    return bool(engine.get_execution_options().get("read_only", False))


def _is_writable(file: Path) -> bool:
    """Whether the file and its folder, in which SQLite creates a log, can be written to."""
    return os.access(file, os.W_OK) and os.access(file.resolve().parent, os.W_OK)


def _sqlite_to_read(url: sa.URL, file: Path, connect_args: dict[str, Any]) -> sa.Engine:
    """An engine for a file that cannot be written to."""
    uri = f"{file.resolve().as_uri()}?mode=ro"
    log = file.with_name(f"{file.name}-wal")
    if not log.exists() or log.stat().st_size == 0:
        # No log, so no process has it open for writing. `immutable` keeps SQLite from creating an
        # index of the log, which it may not; with a log the index exists while a process uses it.
        uri += "&immutable=1"

    def connect() -> sqlite3.Connection:
        connection: sqlite3.Connection = sqlite3.connect(uri, uri=True, **connect_args)
        connection.text_factory = _text
        connection.isolation_level = None
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        return connection

    engine = sa.create_engine(url, creator=connect, execution_options={"read_only": True})

    @event.listens_for(engine, "begin")
    def begin(c: sa.Connection) -> None:
        c.exec_driver_sql("BEGIN")

    return engine


def _refuse_foreign(connection: sqlite3.Connection, file: str | None) -> None:
    """Raises for a file of another program, and for one whose list of tables is lost: nothing is
    written to either.
    """
    tables = [name for (name,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    )]  # fmt: skip
    if _OWN in tables:
        return
    if tables:
        names = ", ".join(map(repr, tables[:3])) + (", ..." if len(tables) > 3 else "")
        raise RecordsError(
            f"{file} is a database of another program, with the tables {names}; name a new file "
            "for records"
        )
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    if pages - free > _PAGES:
        raise RecordsError(f"{file}: {_MEANINGS['malformed']} (its list of tables is empty)")


def _refuse_torn(file: Path) -> None:
    """Raises for a file that was cut off within a page. SQLite detects missing pages, but fills up
    an incomplete last page with zeros.
    """
    if file.exists() and file.stat().st_size == 1:  # which SQLite would take for an empty file
        raise RecordsError(f"{file}: {_MEANINGS['not a database']} (it has one byte)")
    if _ends_within_a_page(file):
        time.sleep(0.1)  # it may just have been growing
        if _ends_within_a_page(file):
            raise RecordsError(f"{file}: {_MEANINGS['malformed']} (it ends within a page)")


def _ends_within_a_page(file: Path) -> bool:
    try:
        if file.with_name(f"{file.name}-wal").exists():  # the log has the missing part
            return False
        with file.open("rb") as f:
            head = f.read(18)
        page = int.from_bytes(head[16:], "big")
        is_sqlite = head[:16] == b"SQLite format 3\0" and page > 0
        return is_sqlite and file.stat().st_size % page != 0
    except OSError:  # SQLite will report it
        return False


def use_wal(connection: sqlite3.Connection) -> None:
    """Switches to write-ahead logging: readers and a writer at the same time. SQLite does not wait
    for other processes that do the same to a new file, so this does.
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


# Parts of SQLite's error messages, and what they mean to a user.
_MEANINGS = {
    "disk is full": "the disk is full. Nothing of this was stored, and what was stored before is "
    "safe: make room, then do it again",
    "disk I/O error": "the disk refused to read or write. Nothing of this was stored: is there "
    "room, and a quota?",
    "is locked": f"another process has kept it locked for {BUSY_SECONDS:g} s",
    "not a database": "this file is not a database of records; name another file, or a new one",
    "malformed": "this file is damaged. Restore a copy of it, or import an export into a new one",
    "unable to open": "cannot be opened: does its folder exist, and may you read the file, or "
    "write a new one?",
    "readonly": "may not be written to",
}


def meaning(error: Exception) -> str:
    """What is wrong, in one line."""
    if isinstance(error, UnicodeDecodeError):
        # The driver's: a message of SQLite has a name from the file that is not text.
        return f"{_MEANINGS['malformed']} (a name in its list of tables is not text)"
    message = str(error.orig if isinstance(error, exc.DBAPIError) and error.orig else error).strip()
    for piece, text in _MEANINGS.items():
        if piece in message:
            return f"{text} ({message})"
    return message.splitlines()[0] if message else type(error).__name__
