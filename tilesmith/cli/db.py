"""`tilesmith db`: statistics, comparison, merging, export, import and pruning of databases."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilesmith.base.errors import ArgumentError
from tilesmith.cli.arguments import count, require_file
from tilesmith.cli.databases import PartsOption, existing, require_database
from tilesmith.cli.show_tasks import MatchOption, database_tasks
from tilesmith.cli.table import Wide, microseconds, output_width, table
from tilesmith.records.database import TaskSummary
from tilesmith.records.networks import network_uses, places_in
from tilesmith.records.open import open_database
from tilesmith.report.records_view import comparison, task_names
from tilesmith.task.describe import is_match

if TYPE_CHECKING:
    from tilesmith.records.sql import SqlDatabase

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
def diff(
    place: Place,
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="the database to compare with, as yesterday's")
    ],
    parts: PartsOption = "",
    match: MatchOption = "",
) -> None:
    """Compare the best times of the tasks that two databases have.

    A ratio above 1 means that DB is faster. Times are compared through a reference kernel that ran
    beside each measurement, so that a slower hour or a busy machine does not count.

    Example: tilesmith db diff tune.db yesterday.db
    """
    with existing(place, parts) as d, existing(other, parts) as o:
        here, there = (_current(x, match) for x in (d, o))
        names = task_names([*{**there, **here}.values()])
        both = [t for key, t in here.items() if key in there]
        found = comparison(d, o, both, names, o.place)
    header = ("DB", "OTHER", "ratio", "task")
    rows = [
        (microseconds(r.here * 1e-6), microseconds(r.other * 1e-6), f"{r.ratio:.3f}", r.name)
        for r in sorted(found.ratios, key=lambda r: r.ratio)
    ]
    for line in table(header, rows, left=("task",)) if rows else ():
        print(line)
    mean = f" Geometric mean: {found.mean:.3f}" if found.mean is not None else ""
    print(f"{found.note}{mean}")
    for name, own, rest in ((place, here, there), (other, there, here)):
        only = [names[key] for key in own if key not in rest]
        if only:
            print(f"only in {name}: {len(only)} task{'s' * (len(only) > 1)}")
            for text in only:
                print(f"  {text}")


def _current(d: SqlDatabase, match: str) -> dict[str, TaskSummary]:
    """The tasks by today's code generator, by key."""
    found = (t for t in d.tasks() if t.key == t.task.key)
    return {
        t.key: t for t in found if is_match(match, t.task.func, places_in(network_uses(d, t.task)))
    }


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
