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
    decided = [n for s in c.trace if isinstance(s, NumericSample) for n in s.decided]
    variant = lowered(c.task, without_numbers(c.trace))
    return variant, tuple(map(int, variant.complete(np.array([decided], np.int32))[0]))


def without_numbers(trace: Trace) -> Trace:
    """The trace of the variant: structural decisions alone. Nothing is lowered for it."""
    return Trace(
        tuple(replace(s, decision=None) if isinstance(s, NumericSample) else s for s in trace)
    )


def stacked(rows: list[tuple[int, ...]], variant: Variant) -> Matrix:
    return np.array(rows, np.int32).reshape(len(rows), len(variant.columns))
