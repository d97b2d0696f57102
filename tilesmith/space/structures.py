"""Enumerates the structures of a template: runs it once for each combination of structural
decisions, and of the numbers that it branches on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tilesmith.base.errors import ScheduleError
from tilesmith.schedule.trace import Trace
from tilesmith.space.template import TemplateSchedule
from tilesmith.space.variant import lower
from tilesmith.task.task import Task

_MOST_STRUCTURES = 4096
_MOST_CHECKED = 1 << 14  # rows of a structure that are all checked; larger ones are sampled


def structures(task: Task, template: Callable[[TemplateSchedule], None]) -> Iterator[Trace]:
    """One open trace for every combination of structural decisions, except for refused ones."""
    pending: list[tuple[int, ...]] = [()]
    runs = yielded = 0
    first: ScheduleError | None = None
    while pending:
        picks = pending.pop(0)
        runs += 1
        if runs > _MOST_STRUCTURES:
            raise ScheduleError(
                f"the template {_name(template)} has more than {_MOST_STRUCTURES} structures; "
                "sample fewer locations or orders, or branch on fewer numbers"
            )
        sch = TemplateSchedule(task, picks)
        refused = False
        try:
            template(sch)
        except ScheduleError as e:
            if not sch.options:
                raise ScheduleError(f"the template {_name(template)}: {e}") from None
            first = first or e
            refused = True
        # decisions beyond the given picks took their first choice; their other choices are next
        full = [*picks, *([0] * (len(sch.options) - len(picks)))]
        for at in range(len(picks), len(sch.options)):
            for other in range(1, sch.options[at]):
                pending.append((*full[:at], other))
        if not refused and (not sch.branched or _has_rows(task, sch.trace)):
            yielded += 1
            yield sch.trace
    if not yielded:
        raise ScheduleError(
            f"the template {_name(template)} refuses every structure of {task.func.name}; the "
            f"first: {first or 'no numbers agree with its branches'}"
        )


def _has_rows(task: Task, trace: Trace) -> bool:
    """Whether any row satisfies the bounds that the template's branches have set."""
    try:
        v = lower(task, trace)
    except ScheduleError:
        return True  # the error is raised again when the trace is lowered
    if v.size <= _MOST_CHECKED:
        return bool(v.valid(v.rows(0, v.size)).any())
    return len(v.sample(np.random.default_rng(0), 1)) > 0


def _name(template: object) -> str:
    return str(getattr(template, "__name__", template))
