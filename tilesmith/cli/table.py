"""Formats rows of text as aligned columns that fit the screen."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

WIDTH = 80  # if the output is not a terminal, so that files and pipes are the same everywhere
_GAP = "  "

Wide = Annotated[
    bool, typer.Option("--wide", help="show all columns in full, even if wider than 80 characters")
]


def output_width() -> int:
    if sys.stdout is None or not sys.stdout.isatty():
        return WIDTH
    return max(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Sequence[str],
    shorten: str | None = None,
    drop: Sequence[str] = (),
    width: int | None = None,
) -> Iterator[str]:
    """One line for the header and for each row. Columns named in `left` hold text, the others
    numbers. Without a `width` everything is shown. Otherwise the columns of `drop` are left out, in
    this order, until the lines fit, and then the text of `shorten` is cut.
    """
    columns = list(range(len(header)))
    widths = [max(map(len, c)) for c in zip(header, *rows, strict=True)]
    if width is not None:
        for name in drop:
            if _total(widths, columns) > width:
                columns = [c for c in columns if header[c] != name]
        over = _total(widths, columns) - width
        if shorten is not None and over > 0:
            k = header.index(shorten)
            widths[k] = max(8, len(shorten), widths[k] - over)
    for row in (header, *rows):
        cells = []
        for c in columns:
            cell = _cut(row[c], widths[c])
            cells.append(cell.ljust(widths[c]) if header[c] in left else cell.rjust(widths[c]))
        yield _GAP.join(cells).rstrip()


def printable(text: str) -> str:
    """One line without control characters: names in a model file may hold any."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", text)


def _total(widths: Sequence[int], columns: Sequence[int]) -> int:
    return sum(widths[c] for c in columns) + len(_GAP) * (len(columns) - 1)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def microseconds(value: float) -> str:
    """With the unit, so that a value is clear on its own."""
    us = value * 1e6
    return f"{us:.2f} us" if us < 100 else f"{us:,.1f} us".replace(",", " ")
