"""`tilesmith db`: what a database of measurements holds, joined, carried elsewhere and thinned."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tilesmith.cli.known import existing
from tilesmith.records.open import open_database

db = typer.Typer(
    help="A database of measurements: a file, or a postgresql:// URL.", rich_markup_mode=None
)
Place = Annotated[str, typer.Argument(help="database file or URL")]


@db.command()
def stats(place: Place) -> None:
    """Tasks, how many measurements each has, and its best."""
    with existing(place) as d:
        for t in d.tasks():
            best = (
                "no success yet"
                if t.best_seconds is None
                else f"best {t.best_seconds * 1e6:.1f} us"
            )
            print(
                f"{t.key[:12]}  {t.task.func.name}: {t.count} measured, {t.failures} failed, {best}"
            )
        print(f"{d.count()} measurements in all")
        if unread := d.unread():
            print(f"{unread} of them cannot be read here; they are kept")


@db.command()
def merge(place: Place, other: Annotated[str, typer.Argument(help="what is taken over")]) -> None:
    """Take over what another database knows."""
    with open_database(place) as d, existing(other) as o:
        print(f"{d.merge(o)} measurements taken over")


@db.command()
def export(
    place: Place, file: Annotated[Path, typer.Argument(help="JSON lines; -: standard output")]
) -> None:
    """All measurements as self-contained JSON lines."""
    with existing(place) as d:
        if str(file) == "-":
            d.export(sys.stdout)
        else:
            print(f"{d.export(file)} measurements written to {file}")


@db.command(name="import")
def import_(place: Place, file: Annotated[Path, typer.Argument(help="JSON lines")]) -> None:
    """Measurements from JSON lines; those that are there already are left."""
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
    keep: Annotated[int, typer.Option(help="the best so many of each task; 0: all")] = 0,
    failures: Annotated[bool, typer.Option(help="drop failures")] = False,
    outdated: Annotated[bool, typer.Option(help="drop what older code generators gave")] = False,
) -> None:
    """Drop what is no longer needed."""
    with existing(place) as d:
        dropped = d.prune(keep=keep or None, failures=failures, outdated=outdated)
        print(f"{dropped} measurements dropped")
