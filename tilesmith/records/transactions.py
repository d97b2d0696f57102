"""An open database as transactions: a place in, connections to read and to write with out.

Writers take turns and readers see whole transactions only, whatever threads and processes do.
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
from tilesmith.base.interrupts import whole
from tilesmith.records.connect import in_memory, is_read_only, make_engine, meaning
from tilesmith.records.schema import VERSION, newer, prepare, version_of

_TURN = 0x7469_6C65  # the number of the lock by which writers to PostgreSQL take turns


class Transactions:
    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.engine = make_engine(place)
        self.read_only = is_read_only(self.engine)
        url = self.engine.url
        file = url.database if url.get_backend_name() == "sqlite" else None
        self.place = file or url.render_as_string(hide_password=True)
        self._alone = in_memory(self.engine)  # then its one connection cannot be shared
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._closed = False
        try:
            with self.reading() as c:
                have = version_of(c)
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
        """All that is read in `one_moment` is as it was at its beginning."""
        engine = self._open()
        with self._lock if self._alone else nullcontext(), self._named(), engine.connect() as c:
            if one_moment and c.dialect.name == "postgresql":  # SQLite reads so anyway
                c.execution_options(isolation_level="REPEATABLE READ")
            with c.begin():
                yield c

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A first Ctrl-C waits for the end of the transaction: a connection that is interrupted
        may keep the database locked.
        """
        engine = self._open()
        if self.read_only:
            raise RecordsError(f"{self.place} may not be written to: it was opened to be read")
        with self._lock, self._named(), whole(), engine.connect() as c:
            c.execution_options(writes=True)
            with c.begin():
                if c.dialect.name == "postgresql":
                    # Without it, two that insert the same rows in another order wait for each
                    # other; and rows would not be numbered in the order in which they are seen.
                    c.execute(sa.select(sa.func.pg_advisory_xact_lock(_TURN)))
                yield c

    def shrink(self) -> None:
        """Gives the room of deleted rows back to the disk; a server does that by itself."""
        engine = self._open()
        if engine.dialect.name == "sqlite" and not self.read_only:
            with self._lock, self._named(), engine.connect() as c:
                if (raw := c.connection.driver_connection) is not None:
                    # As a script, which runs to its end: as a statement it stops at every page.
                    raw.executescript("PRAGMA incremental_vacuum")

    def close(self) -> None:
        self._closed = True
        self.engine.dispose()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors of the database name it, and say what they mean."""
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error) as e:
            raise RecordsError(f"{self.place}: {meaning(e)}") from e

    def _open(self) -> sa.Engine:
        if self._closed:
            raise RecordsError(f"{self.place} is closed; open it again")
        if os.getpid() != self._pid:
            # SQLite takes its parent's locks for its own: what it then writes may be lost.
            raise RecordsError(
                f"{self.place} was opened before this process was forked; open it in the new "
                "process alone, or start that one afresh (multiprocessing: 'spawn')"
            )
        return self.engine
