"""Explains the operators and their sizes for `--help`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from tilesmith.cli.operator_table import OPERATORS, SIZES
from tilesmith.cli.operators import usage

_WIDTH = 76
_COLUMN = 34  # the column in which explanations start


def explain(names: Mapping[str, str]) -> str:
    """`names` are the operators to explain, each with another name for it or an empty string.

    The text keeps its line breaks: a paragraph that starts with a line of "\\b" is not refilled.
    """
    images = [n for n in names if OPERATORS[n].on_images]
    others = [n for n in names if n not in images]
    parts = [
        "SHAPE is the operator's sizes in the order below. A size in brackets may be left out and "
        "then has the value shown. Elements are float32.",
        _paragraph("Matrices and vectors:", others, names),
        _paragraph("Images, signals and volumes:", images, names),
        "\b\n" + "\n".join([*(f"  {s:4} {SIZES[s]}" for s in SIZES if _is_used(s, images))]),
    ]
    return "\n\n".join(parts)


def _is_used(size: str, names: list[str]) -> bool:
    return any(size in usage(n).replace("[", " ").replace("=", " ").split() for n in names)


def _paragraph(title: str, shown: list[str], names: Mapping[str, str]) -> str:
    lines = ["\b", title]
    for n in shown:
        left = f"  {usage(n)}"
        about = OPERATORS[n].about + (f" ({names[n]})" if names[n] else "")
        if len(left) > _COLUMN - 2:
            lines.append(left)
            left = ""
        text = textwrap.wrap(about, _WIDTH - _COLUMN)
        lines.append(f"{left:{_COLUMN}}{text[0]}")
        lines += [" " * _COLUMN + line for line in text[1:]]
    return "\n".join(lines)
