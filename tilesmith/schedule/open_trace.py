"""Schedules of a Function with open sizes, from one of the same Function with numbers. Steps name
loops and blocks, so they apply as they are, except for splits of a loop over an open size: their
outermost part is as large as needed then, and the others stay.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.errors import ScheduleError
from tilesmith.ir.function import Function, find_loop
from tilesmith.schedule.loops import Split
from tilesmith.schedule.sample import Require, SampleTile
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import Trace


def open_trace(trace: Trace, func: Function) -> Trace:
    """The trace for a Function with open sizes. Raises a ScheduleError where a step needs numbers:
    then another schedule has to be taken.
    """
    steps: list[Step] = []
    for step in trace.resolved:
        if isinstance(step, SampleTile | Require):  # decided: the splits that follow say it all
            continue
        if isinstance(step, Split) and find_loop(func, step.loop)[1].extent.const is None:
            step = _open_split(step)
        func = step.apply(func)
        steps.append(step)
    return Trace(tuple(steps))


def open_schedule(trace: Trace, func: Function) -> Function:
    """A Function with a schedule that was made for it, or for certain sizes of it where it has open
    ones. Raises a ScheduleError if a step needs numbers.
    """
    if not func.sizes:
        return trace.apply(func)
    scheduled = open_trace(trace, func).apply(func)
    for b in scheduled.inputs:
        if not b.is_as_given and any(e.const is None for e in b.given_shape):
            raise ScheduleError(f"{b.name} of {func.name!r} has open sizes and another layout")
    return scheduled


def _open_split(step: Split) -> Split:
    inner = step.factors[1:]
    if None in inner:
        raise ScheduleError(
            f"split of loop {step.loop} by {list(step.factors)}: of a loop over an open size, the "
            "outermost part is as large as needed"
        )
    return replace(step, factors=(None, *inner), exact=False)
