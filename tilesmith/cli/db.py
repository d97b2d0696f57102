"""`tilesmith db`: statistics, merging, export, import and pruning of databases."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tilesmith.base.errors import ArgumentError
from tilesmith.cli.arguments import count, require_file
from tilesmith.cli.databases import PartsOption, existing, require_database
from tilesmith.cli.show_tasks import database_tasks
from tilesmith.cli.table import Wide, output_width
from tilesmith.records.open import open_database

db = typer.Typer(
    help="Maintain a database of measurements.",
    epilog="A database is a SQLite file, such as tune.db, or a postgresql:// URL.",
    rich_markup_mode=None,
)
Place = Annotated[
    str, typer.Argument(metavar="DB", help="the database: a SQLite file or a postgresql:// URL")
]


@db.command()
def stats(place: Place, parts: PartsOption = "", wide: Wide = False) -> None:
    """List the tasks of a database and count its measurements.

    Example: tilesmith db stats tune.db
    """
    database_tasks(place, None if wide else output_width(), parts)
    with existing(place, parts) as d:
        print(f"{d.count()} measurements in all")
        if unread := d.unread():
            print(f"{unread} of them cannot be read here; they are kept")
        for part, number in d.missing().items():
            print(f"{number} of them need {part}; give it by --parts")


@db.command()
def merge(
    place: Place,
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="the database to read, which stays as it is")
    ],
) -> None:
    """Copy the measurements of another database into this one.

    Measurements that both have are kept once. DB is created if it is missing.

    Example: tilesmith db merge all.db monday.db
    """
    require_database(place)
    with existing(other) as o, open_database(place) as d:
        print(f"{d.merge(o)} measurements copied from {o.place}")


@db.command()
def export(
    place: Place,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="the file to write, compressed if its name ends in .gz or .xz; - for standard "
            "output",
        ),
    ],
) -> None:
    """Write all measurements to a file, one JSON object per line.

    Each line holds the computation and the machine as well, so it can be imported anywhere.

    Example: tilesmith db export tune.db records.jsonl.xz
    """
    if file != "-":
        require_file("FILE", Path(file))
    with existing(place) as d:
        if file == "-":
            count = d.export(sys.stdout)
            sys.stdout.flush()
            print(f"{count} measurements written to standard output", file=sys.stderr)
        else:
            print(f"{d.export(Path(file))} measurements written to {file}")


@db.command(name="import")
def import_(
    place: Place,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="a file that `tilesmith db export` wrote")
    ],
) -> None:
    """Read measurements from a file that `db export` wrote.

    Those that are in the database already are skipped. DB is created if it is missing.

    Example: tilesmith db import tune.db records.jsonl.xz
    """
    require_database(place)
    if not file.exists():
        raise ArgumentError(f"there is no file {file}")
    with open_database(place) as d:
        done = d.import_(file)
    print(f"{done.added} measurements read from {file}, {done.present} were there already")
    if done.refused:
        for reason in done.reasons:
            print(reason, file=sys.stderr)
        print(f"{done.refused} lines refused", file=sys.stderr)
        raise typer.Exit(1)


@db.command()
def prune(
    place: Place,
    keep: Annotated[
        int,
        typer.Option(
            metavar="N", parser=count, help="keep only the N best of each task; 0: no limit"
        ),
    ] = 0,
    failures: Annotated[
        bool, typer.Option("--failures", help="delete the candidates that failed")
    ] = False,
    outdated: Annotated[
        bool,
        typer.Option(
            "--outdated", help="delete what was measured with older versions of the code generator"
        ),
    ] = False,
    parts: PartsOption = "",
) -> None:
    """Delete measurements that are no longer needed.

    Example: tilesmith db prune tune.db --keep 100 --failures
    """
    if not (keep or failures or outdated):
        raise ArgumentError("say what to delete: --keep N, --failures or --outdated")
    with existing(place, parts) as d:
        deleted = d.prune(keep=keep or None, failures=failures, outdated=outdated)
        print(f"{deleted} measurements deleted")
