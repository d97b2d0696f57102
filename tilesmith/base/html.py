"""Small pieces of HTML, for what a notebook shows of an object."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_PRE = '<pre style="line-height:1.25;white-space:pre;overflow-x:auto;margin:0">'


def html_text(text: str) -> str:
    """Text as it is, with its columns aligned."""
    return f"{_PRE}{escape(text)}</pre>"


def html_folded(title: str, text: str) -> str:
    """A line that shows the text when it is clicked."""
    return f"<details><summary>{escape(title)}</summary>{html_text(text)}</details>"


def html_pairs(title: str, pairs: Sequence[tuple[str, str]]) -> str:
    """A table of names and values below a title."""
    cell = '<td style="text-align:left">'
    rows = "".join(f"<tr>{cell}{escape(a)}</td>{cell}{escape(b)}</td></tr>" for a, b in pairs)
    return f"<b>{escape(title)}</b><table>{rows}</table>"
