"""Prints the schedule of a trace as one would write it."""

from __future__ import annotations

from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.schedule.trace import Trace


def schedule_lines(trace: Trace) -> list[str]:
    """One line per primitive. Steps that sample numbers are left out, because the steps that use
    the numbers show them.
    """
    return [str(s) for s in trace.resolved if not isinstance(s, SampleTile | SampleChoice)]
