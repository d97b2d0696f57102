"""The command line: words in, text and an exit status out. A user's mistake is one line on the
error stream and status 2; each command is a file of its own beside this one.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from tilesmith.base.errors import TilesmithError
from tilesmith.cli.bench import bench
from tilesmith.cli.db import db
from tilesmith.cli.doctor import doctor
from tilesmith.cli.show import show
from tilesmith.cli.tune import tune


class Commands(typer.Typer):
    """Typer, but a mistake is one line: no box, no traceback."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            status = super().__call__(*args, standalone_mode=False, **kwargs)
        except (TilesmithError, TyperException) as e:
            said = e.format_message() if hasattr(e, "format_message") else str(e)
            print(f"tilesmith: {' '.join(said.split())}", file=sys.stderr)
            sys.exit(2)
        sys.exit(status if isinstance(status, int) else 0)


app = Commands(add_completion=True, rich_markup_mode=None)
app.add_typer(show, name="show")
app.add_typer(db, name="db")
app.command()(tune)
app.command()(bench)
app.command()(doctor)


def _version(wanted: bool) -> None:
    if wanted:
        try:
            print(version("tilesmith"))
        except PackageNotFoundError:  # run from a checkout
            print("not installed")
        raise typer.Exit


@app.callback()
def tilesmith(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="and nothing else")
    ] = False,
) -> None:
    """Fast tensor programs by searching."""
