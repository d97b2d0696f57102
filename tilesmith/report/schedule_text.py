"""Prints the schedule of a trace as one would write it, and explains it."""

from __future__ import annotations

import inspect
import re
import textwrap

from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.schedule.trace import Trace


def schedule_lines(trace: Trace) -> list[str]:
    """One line per primitive. Steps that sample numbers are left out, because the steps that use
    the numbers show them.
    """
    return [str(s) for s in trace.resolved if not isinstance(s, SampleTile | SampleChoice)]


def explained_lines(trace: Trace) -> list[str]:
    """The same, with what a primitive does below its first use: the first sentence of its class."""
    lines: list[str] = []
    told: set[str] = set()
    for step in trace.resolved:
        if isinstance(step, SampleTile | SampleChoice):
            continue
        lines.append(str(step))
        if step.name not in told:
            told.add(step.name)
            text = " ".join((inspect.getdoc(type(step)) or "").split("\n\n")[0].split())
            first = re.split(r"(?<=[.:]) (?=[A-Z])", text)[0]
            lines += textwrap.wrap(first, 92, initial_indent="    # ", subsequent_indent="    # ")
    return lines
