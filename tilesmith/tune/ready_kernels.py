"""Kernels that tuning has already built: the code of each task's best candidate, which the measurer
keeps, so that nothing is compiled again when the budget is spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tilesmith.codegen.artifact import Artifact
from tilesmith.ir.function import Function
from tilesmith.measure.protocol import Judging, Keeping, Measuring
from tilesmith.runtime.build import compile_for
from tilesmith.runtime.kernel import Kernel
from tilesmith.runtime.origin import Origin
from tilesmith.schedule.trace import Trace
from tilesmith.task.task import Task
from tilesmith.tune.task_tuner import TaskTuner


@dataclass(frozen=True)
class ReadyKernel:
    """A kernel that was built before, as while tuning: its schedule and its code."""

    trace: Trace
    artifact: Artifact
    origin: Origin


class RecordedKernel(Kernel):
    """A kernel whose artifact may lack its source, as those of the measurer do: it is generated
    again when somebody asks for it.
    """

    def __init__(
        self, artifact: Artifact, origin: Origin, task: Task, func: Function, trace: Trace
    ) -> None:
        super().__init__(artifact, origin)
        self._task, self._func, self._trace = task, func, trace

    @cached_property
    def _whole(self) -> Kernel:
        if self.artifact.source:
            return Kernel(self.artifact)
        return Kernel(compile_for(self._task, self._trace.apply(self._func)))

    @property
    def source(self) -> str:
        return self._whole.artifact.source

    @cached_property
    def assembly(self) -> str:
        return self._whole.assembly


def kept_kernels(
    tuners: Sequence[TaskTuner], measuring: Measuring, place: str
) -> dict[str, ReadyKernel]:
    """The best kernels by the statement of their tasks, as far as the measurer has their code.
    `place` is where their records are.
    """
    found: dict[str, ReadyKernel] = {}
    if not isinstance(measuring, Keeping) or not isinstance(measuring, Judging):
        return found
    for t in tuners:
        artifact, incumbent = measuring.artifact(t.task), measuring.best(t.task)
        if artifact is None or incumbent is None or t.best is None:
            continue
        if incumbent.candidate == t.best.candidate:
            origin = Origin("record", t.best_cost, f"in {place}")
            found[t.task.statement] = ReadyKernel(t.best.candidate.trace, artifact, origin)
    return found
