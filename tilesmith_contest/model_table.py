"""Rows of models beside engines as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.cli.table import table
from tilesmith_contest.model_rows import ModelRow, remarks, start_table, time_table

# Columns that are left out, the first one first, where lines would be too long.
_DROP = ("torch-compile", "torch", "mnn", "openvino", "threads")


def text_of(rows: Sequence[ModelRow], width: int | None) -> str:
    """Times, then errors and starts, then what does not fit a table."""
    times, starts = time_table(rows), start_table(rows)
    lines = [
        *table(times[0], times[1:], left=("model",), shorten="model", drop=_DROP, width=width),
        "",
        *table(starts[0], starts[1:], left=("model", "engine"), shorten="model", width=width),
        "",
        *remarks(rows),
    ]
    return "\n".join(lines).rstrip()


def line_of(row: ModelRow) -> str:
    """One row in one line, as it comes."""
    if row.value is None:
        return f"{row.name}: {row.failed or 'no contestant of ours'}"
    text = f"{row.name}: {row.value:.2f} ms"
    if row.ratio is not None:
        text += f", {row.ratio:.2f} ± {row.spread:.2f} of {row.peer} ({row.peer_value:.2f} ms)"
    return text
