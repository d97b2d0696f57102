"""`tilesmith report`: a database as one HTML page of charts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated

import typer

from tilesmith.base.errors import ArgumentError
from tilesmith.base.whole_file import write_whole
from tilesmith.cli.arguments import count, require_file
from tilesmith.cli.databases import PartsOption, existing
from tilesmith.records.networks import NetworkStep
from tilesmith.report.plotly_text import plotly_text
from tilesmith.report.records_page import records_page
from tilesmith.report.records_server import PageServer
from tilesmith.report.records_view import RecordsView, records_view
from tilesmith.report.task_view import TaskViews

REPORT_HELP = (
    "\b\nExamples:\n"
    "  tilesmith report tune.db -o report.html\n"
    "  tilesmith report tune.db monday.db tuesday.db -o report.html\n"
    "  tilesmith report tune.db --watch"
)


def report(
    place: Annotated[
        str, typer.Argument(metavar="DB", help="the database: a SQLite file or a postgresql:// URL")
    ],
    others: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OTHER]...", help="other databases, to compare the best time of each task with"
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="the HTML file to write")
    ] = Path("report.html"),
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="write no file, but show the page to browsers on this machine, and keep it up to "
            "date while a run goes on",
        ),
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            metavar="N", parser=count, help="the port of --watch on 127.0.0.1; 0: any free one"
        ),
    ] = 0,
    parts: PartsOption = "",
) -> None:
    """Write a page of charts about the records of a database.

    It is one file that loads nothing from the network. It shows how each task and each network got
    faster, the layers of a network, all runs, a roofline, measured against predicted times, which
    decisions matter, what failed, and the loops, schedule and code of the best candidates. With
    many records it shows a part of the points, so that it stays small. With --watch it also shows
    which task of a network is tuned now, why, and what is expected of it.
    """
    plotly_text()  # raises if it is not installed, before a database is read
    if watch:
        existing(place, parts).close()
        _serve(place, others or (), port, parts)
        return
    require_file("--output", output)
    view = _view(place, others or (), parts)
    text = records_page(view)
    write_whole(output, text)
    tasks = "1 task" if len(view.tasks) == 1 else f"{len(view.tasks)} tasks"
    print(f"{output}: {tasks}, {len(text) / 1e6:.1f} MB; open it in a browser")


def _view(
    place: str, others: Sequence[str], parts: str, views: TaskViews | None = None
) -> RecordsView:
    with ExitStack() as stack:
        db, *compared = (stack.enter_context(existing(p, parts)) for p in (place, *others))
        return records_view(db, db.place, [(d.place, d) for d in compared], views)


def _step(place: str, parts: str, views: TaskViews) -> NetworkStep | None:
    with existing(place, parts) as db:
        return views.step(db)


def _serve(place: str, others: Sequence[str], port: int, parts: str) -> None:
    views = TaskViews()  # of tasks that have not changed since the last look
    try:
        server = PageServer(
            lambda: _view(place, others, parts, views), lambda: _step(place, parts, views), port
        )
    except (OSError, OverflowError) as e:
        raise ArgumentError(f"--port {port} cannot be used: {e}") from None
    with server:
        print(f"{server.url} shows {place}; Ctrl-C ends it", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
