"""Finds the variant and the row of a decided trace. Variants are lowered once and cached, so that
searches and cost models share them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from tilesmith.schedule.sample import NumericSample
from tilesmith.schedule.trace import Trace
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant, lower
from tilesmith.task.task import Candidate, Task


@lru_cache(maxsize=4096)
def lowered(task: Task, trace: Trace) -> Variant:
    """The variant of a trace whose numbers are open. Raises a ScheduleError if its structural
    decisions contradict each other.
    """
    return lower(task, trace)


@lru_cache(maxsize=1 << 16)  # every fit of a model asks for all measurements
def reopen(c: Candidate) -> tuple[Variant, tuple[int, ...]]:
    """A trace without numeric decisions, such as a hand-written one, is the only row of its
    variant.
    """
    steps = []
    decided: list[int] = []
    for s in c.trace:
        if isinstance(s, NumericSample):
            decided += s.decided
            s = replace(s, decision=None)
        steps.append(s)
    variant = lowered(c.task, Trace(tuple(steps)))
    return variant, tuple(map(int, variant.complete(np.array([decided], np.int32))[0]))


def stacked(rows: list[tuple[int, ...]], variant: Variant) -> Matrix:
    return np.array(rows, np.int32).reshape(len(rows), len(variant.columns))
