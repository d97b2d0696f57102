"""A file name or a URL in, an open database out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilesmith.records.sql import SqlDatabase


def open_database(place: str | os.PathLike[str]) -> SqlDatabase:
    """A SQLite file, which is made where there is none, or a server by its URL,
    `postgresql://user@host/name`. ":memory:" is a database that ends with the process. A file that
    may not be written to is opened to be read.
    """
    # Imported late: SQLAlchemy takes up to a second, which only those pay who keep records.
    from tilesmith.records.sql import SqlDatabase

    return SqlDatabase(place)
