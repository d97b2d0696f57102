"""Opens the databases that options name, and checks their names first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError
from tilesmith.base.target import Target
from tilesmith.records.open import open_database
from tilesmith.records.pack import open_packs
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


PackOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pack",
        metavar="FILE",
        help="a pack of records of machines like this one, which `tilesmith pack` wrote: where "
        "--db has none, its schedules are tried; may be repeated",
    ),
]


LockOption = Annotated[
    Path | None,
    typer.Option(
        "--lock",
        metavar="FILE",
        help="take every kernel's schedule from this file of `tilesmith compile --save-lock`, so "
        "that the model computes the same bits; fail where it cannot",
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
def optional_database(
    place: str, parts: str = "", packs: Sequence[str] | None = None, target: Target | None = None
) -> Iterator[SqlDatabase | None]:
    """The database of an option that may be left out, with the packs that are named, or those that
    come with the library. None if `place` is empty and no pack has schedules for the target.
    """
    if not place and not packs:
        shipped = open_packs(None)
        if target is None or not shipped.suit(target):
            yield None
            return
    if place:
        require_database(place)
    named = None if not packs else [*packs]
    with open_database(place or ":memory:", parts_named(parts), named) as database:
        yield database


@dataclass(frozen=True)
class RecordOptions:
    """The options of `tilesmith tune` that say what is known and where it is kept."""

    db: str
    packs: Sequence[str] | None
    resume: bool
    parts: str

    def opened(self, target: Target) -> AbstractContextManager[SqlDatabase | None]:
        if self.resume and not self.db:
            raise ArgumentError("--resume continues from a database; name it with --db FILE")
        return optional_database(self.db, self.parts, self.packs, target)
