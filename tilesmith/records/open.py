"""Opens a database of measurements by file name or URL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilesmith.base.errors import RecordsError
from tilesmith.base.given import checks_given
from tilesmith.records.pack import open_packs
from tilesmith.schedule.trace import Parts

if TYPE_CHECKING:
    from tilesmith.records.sql import SqlDatabase


@checks_given(error=RecordsError)
def open_database(
    place: str | os.PathLike[str],
    parts: Parts | None = None,
    packs: Sequence[str | os.PathLike[str]] | None = None,
) -> SqlDatabase:
    """A database of measurements.

    - `place`: a SQLite file, which is created if missing, or the URL of a server,
      `postgresql://user@host/name`. ":memory:" is a database that ends with the process. A file
      without write permission is opened for reading.
    - `parts`: those of your own that its records may need. They are also those of every task that
      it is asked for, and of what tunes or builds with it, unless others are given there.
    - `packs`: files of records that `tilesmith pack` wrote, of this kind of machine. Where the
      database has no record of a task, their schedules are taken, raced once against what there
      would be without; and tuning begins with them. By default those that come with the library;
      () is none.

    Example:

        with ts.open_database("tune.db") as db:
            ts.tune(func, budget=ts.Budget(trials=100), database=db)
            print(db.best(ts.Task(func, ts.cpu())))
    """
    # Imported late: SQLAlchemy takes up to a second, which only those who keep records should pay.
    from tilesmith.records.sql import SqlDatabase

    return SqlDatabase(place, parts, open_packs(packs))
