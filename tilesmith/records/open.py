"""Opens a database of measurements by file name or URL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tilesmith.schedule.trace import Parts

if TYPE_CHECKING:
    from tilesmith.records.sql import SqlDatabase


def open_database(place: str | os.PathLike[str], parts: Parts | None = None) -> SqlDatabase:
    """A database of measurements.

    - `place`: a SQLite file, which is created if missing, or the URL of a server,
      `postgresql://user@host/name`. ":memory:" is a database that ends with the process. A file
      without write permission is opened for reading.
    - `parts`: those of your own that its records may need. They are also those of every task that
      it is asked for, and of what tunes or builds with it, unless others are given there.

    Example:

        with ts.open_database("tune.db") as db:
            ts.tune(func, budget=ts.Budget(trials=100), database=db)
            print(db.best(ts.Task(func, ts.cpu())))
    """
    # Imported late: SQLAlchemy takes up to a second, which only those who keep records should pay.
    from tilesmith.records.sql import SqlDatabase

    return SqlDatabase(place, parts)
