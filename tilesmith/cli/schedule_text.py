"""A trace in, its schedule as a person would write it out."""

from __future__ import annotations

from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.schedule.trace import Trace


def schedule_lines(trace: Trace) -> list[str]:
    """One line a primitive, without the steps that sample numbers: what they decided stands in the
    steps that use it.
    """
    return [str(s) for s in trace.resolved if not isinstance(s, SampleTile | SampleChoice)]
