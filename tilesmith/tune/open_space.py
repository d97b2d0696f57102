"""`OpenSpace`: of the programs of another space, those whose sizes may be open. Matrix instructions
and the copy engine of GPUs need numbers: what is tiled around them is left out.
"""

from __future__ import annotations

from tilesmith.base.dataclass import dataclass
from tilesmith.schedule.trace import Trace
from tilesmith.schedule.unit import Tensorize
from tilesmith.space.spaces import Space
from tilesmith.task.task import Task


@dataclass(frozen=True, slots=True)
class OpenSpace:
    """The sketches of `space` for GPUs without those that need numbers for sizes."""

    space: Space

    def sketches(self, task: Task) -> tuple[Trace, ...]:
        """In the same order."""
        return tuple(
            trace
            for trace in self.space.sketches(task)
            if not any(isinstance(s, Tensorize) for s in trace.steps)
        )
