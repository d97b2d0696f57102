"""Transactions on an open database.

Writers take turns, and readers see only complete transactions, across threads and processes.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from tilesmith.base.errors import RecordsError
from tilesmith.base.process import whole, with_whole_ends
from tilesmith.base.waits import told_wait
from tilesmith.records.connect import in_memory, is_read_only, make_engine, meaning
from tilesmith.records.schema import VERSION, newer, prepare, version_of

_TURN = 0x7469_6C65  # the advisory lock by which writers to PostgreSQL take turns


class Transactions:
    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.engine = make_engine(place)
        self.read_only = is_read_only(self.engine)
        url = self.engine.url
        file = url.database if url.get_backend_name() == "sqlite" else None
        self.place = file or url.render_as_string(hide_password=True)
        self._alone = in_memory(self.engine)  # its one connection cannot be shared by threads
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._closed = False
        try:
            with self.reading() as c:
                have = version_of(c, self.place)
            if have > VERSION:
                raise newer(self.place, have)
            if have != VERSION and self.read_only:
                raise RecordsError(
                    f"{self.place} has schema version {have} and may not be written to, so that it "
                    f"cannot be brought up to version {VERSION}; open a copy of it"
                    if have
                    else f"{self.place} holds no records and may not be written to"
                )
            if have != VERSION:
                with self.writing() as c:
                    prepare(c, self.place)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def reading(self, one_moment: bool = False) -> Iterator[sa.Connection]:
        """With `one_moment`, all reads see the database as of the start (a snapshot). Ctrl-C does
        not interrupt how a transaction begins or ends: it would not know in which state it is.
        """
        engine = self._open()
        alone = self._lock if self._alone else nullcontext()
        with alone, self._named(), with_whole_ends(engine.connect()) as c:
            if one_moment and c.dialect.name == "postgresql":  # SQLite always does
                c.execution_options(isolation_level="REPEATABLE READ")
            with with_whole_ends(c.begin()):
                yield c

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A first Ctrl-C is delayed until the transaction ends: an interrupted connection may keep
        the database locked.
        """
        engine = self._open()
        if self.read_only:
            raise RecordsError(f"{self.place} may not be written to: it was opened to be read")
        with self._lock, self._named(), whole(), engine.connect() as c:
            c.execution_options(writes=True)
            with told_wait(f"another process has locked {self.place}, and is waited for"):
                transaction = c.begin()
                if c.dialect.name == "postgresql":
                    # Without the lock, two writers of the same rows in different orders deadlock,
                    # and row numbers would not follow the order in which rows become visible.
                    c.execute(sa.select(sa.func.pg_advisory_xact_lock(_TURN)))
            with transaction:
                yield c

    def shrink(self) -> None:
        """Returns the space of deleted rows to the file system; a server does so by itself."""
        engine = self._open()
        if engine.dialect.name == "sqlite" and not self.read_only:
            with self._lock, self._named(), engine.connect() as c:
                if (raw := c.connection.driver_connection) is not None:
                    # As a script, which runs to completion; a statement stops at every page.
                    raw.executescript("PRAGMA incremental_vacuum")

    def close(self) -> None:
        self._closed = True
        self.engine.dispose()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Converts errors of the database to a RecordsError that names it and explains them."""
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as e:
            raise RecordsError(f"{self.place}: {meaning(e)}") from e

    def _open(self) -> sa.Engine:
        if self._closed:
            raise RecordsError(f"{self.place} is closed; open it again")
        if os.getpid() != self._pid:
            # SQLite in a forked child mistakes the parent's locks for its own and may lose data.
            raise RecordsError(
                f"{self.place} was opened before this process was forked; open it in the new "
                "process alone, or start that one afresh (multiprocessing: 'spawn')"
            )
        return self.engine
