"""Reads rows of a database as measurements, under the names of the requesting task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.intrinsics import INTRINSICS
from tilesmith.ir.nodes import Intrinsic
from tilesmith.ir.serialize import function_to_json
from tilesmith.records.rows import UNREADABLE, RecordRow, TaskRow, measurement
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import PRIMITIVES
from tilesmith.schedule.translate import Translation
from tilesmith.task.task import Candidate, Measurement, Task, TuningRun


class Reader:
    """`stated` are the rows of the ways in which the task was stated, by number; a trace refers to
    the names of one of them. `runs` are the runs by key, for measurements that belong to one.
    """

    def __init__(
        self,
        task: Task,
        stated: Mapping[int, TaskRow],
        primitives: Sequence[type[Step]],
        intrinsics: Sequence[Intrinsic],
        runs: Mapping[str, TuningRun] | None = None,
    ) -> None:
        self.task, self.stated, self.runs = task, stated, runs or {}
        self.primitives, self.intrinsics = primitives, intrinsics
        self._translations: dict[int, Translation | None] = {}

    def read(self, number: int, row: RecordRow) -> Measurement | None:
        """None for a row that cannot be read."""
        try:
            m = measurement(row, self.task, self.primitives, self.intrinsics, self.runs)
            if number not in self._translations:
                self._translations[number] = self._translation(self.stated[number].func)
            translation = self._translations[number]
            if translation is None:
                return m
            trace = translation.trace(m.candidate.trace)
            return replace(m, candidate=Candidate(self.task, trace))
        except UNREADABLE:
            return None

    def _translation(self, func: str) -> Translation | None:
        """None if the names are the same."""
        if func == function_to_json(self.task.func):
            return None
        return Translation(function_from_json(func, self.intrinsics), self.task.func)


def reader_of(
    row: TaskRow,
    stated: Mapping[int, TaskRow],
    primitives: Sequence[type[Step]] = PRIMITIVES,
    intrinsics: Sequence[Intrinsic] = INTRINSICS,
) -> Reader | None:
    """A reader of a task's records under the names of this row; None if the row is unreadable."""
    try:
        task = Task(function_from_json(row.func, intrinsics), Target.from_json(row.target))
    except UNREADABLE:
        return None
    return Reader(task, stated, primitives, intrinsics)


def applies(candidate: Candidate) -> bool:
    """Whether the trace can still be applied to its task."""
    try:
        candidate.trace.apply(candidate.task.func)
    except UNREADABLE:
        return False
    return True
