"""Opens the databases that options name, and checks their names first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilesmith.base.errors import ArgumentError
from tilesmith.records.open import open_database
from tilesmith.schedule.trace import Parts, named_parts

if TYPE_CHECKING:
    from tilesmith.records.sql import SqlDatabase

TunedOption = Annotated[
    str,
    typer.Option(
        "--db",
        metavar="FILE|URL",
        help="use the tuned kernels of this database; other kernels are scheduled by the analytic "
        "score, untuned",
    ),
]


PartsOption = Annotated[
    str,
    typer.Option(
        "--parts",
        metavar="MODULE:OBJECT",
        help="your own primitives, intrinsics and back ends: a ts.Parts in a module that can be "
        "imported here, as mine:PARTS",
    ),
]


def parts_named(name: str) -> Parts | None:
    """Those of --parts; None if it is left out."""
    try:
        return named_parts(name) if name else None
    except ArgumentError as error:
        raise ArgumentError(f"--parts: {error}") from None


def require_database(place: str) -> None:
    """Raises for a place that cannot be a database, before it is opened."""
    if "://" not in place and Path(place).is_dir():
        raise ArgumentError(
            f"the database {place} is a folder; name a file in it, such as "
            f"{Path(place) / 'tune.db'}"
        )


def existing(place: str, parts: str = "") -> SqlDatabase:
    """Opens for reading: a name without a file is a mistake, not a new database."""
    require_database(place)
    if "://" not in place and not Path(place).is_file():
        raise ArgumentError(f"there is no database {place}; `tilesmith tune ... --db` makes one")
    return open_database(place, parts_named(parts))


@contextmanager
def optional_database(place: str, parts: str = "") -> Iterator[SqlDatabase | None]:
    """The database of an option that may be left out: None if `place` is empty."""
    if not place:
        yield None
        return
    require_database(place)
    with open_database(place, parts_named(parts)) as database:
        yield database
