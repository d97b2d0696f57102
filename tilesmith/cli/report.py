"""`tilesmith report`: a database as one HTML page of charts."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from tilesmith.cli.arguments import require_file
from tilesmith.cli.show_records import existing
from tilesmith.report.records_page import records_page, require_plotly
from tilesmith.report.records_view import records_view

REPORT_HELP = (
    "\b\nExamples:\n"
    "  tilesmith report tune.db -o report.html\n"
    "  tilesmith report tune.db yesterday.db -o report.html"
)


def report(
    place: Annotated[
        str, typer.Argument(metavar="DB", help="the database: a SQLite file or a postgresql:// URL")
    ],
    other: Annotated[
        str,
        typer.Argument(
            metavar="[OTHER]", help="a second database, to compare the best time of each task with"
        ),
    ] = "",
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="the HTML file to write")
    ] = Path("report.html"),
) -> None:
    """Write a page of charts about the records of a database.

    It is one file that loads nothing from the network. It shows how each run got faster, the time
    of each task, a roofline, what failed, which decisions matter, and the schedule and code of the
    best candidates. With many records it shows a part of the points, so that it stays small.
    """
    require_file("--output", output)
    require_plotly()
    with ExitStack() as stack:
        db = stack.enter_context(existing(place))
        compared = stack.enter_context(existing(other)) if other else None
        view = records_view(db, db.place, compared, compared.place if compared else "")
    text = records_page(view)
    output.write_text(text, encoding="utf-8")
    print(f"{output}: {len(view.tasks)} tasks, {len(text) / 1e6:.1f} MB; open it in a browser")
