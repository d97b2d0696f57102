"""A progress bar on a terminal or in a notebook, for work whose parts are counted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tilesmith.tune.notebook import notebook_output


@contextmanager
def progress_bar(what: str, show: bool | None = None) -> Iterator[Callable[[int, int], None]]:
    """Gives a function of (done, all). By default it shows on a terminal and in a notebook."""
    notebook = None if show is False else notebook_output()
    if notebook is not None:
        yield lambda done, total: notebook.write(f"{what}: {done} of {total}", done == total)
        return
    if show is False or (show is None and not sys.stderr.isatty()):
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        job = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(job, completed=done, total=total)
