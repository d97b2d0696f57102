"""Reads rows of a database as measurements, under the names of the requesting task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from tilesmith.base.errors import MissingPartError
from tilesmith.base.target import Target
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.function import Function
from tilesmith.ir.intrinsics import INTRINSICS
from tilesmith.ir.serialize import function_to_json
from tilesmith.records.rows import UNREADABLE, RecordRow, TaskRow, measurement
from tilesmith.schedule.trace import Parts
from tilesmith.schedule.translate import Translation
from tilesmith.task.task import Candidate, Measurement, Task, TuningRun, builder_of


class Reader:
    """`stated` are the rows of the ways in which the task was stated, by number; a trace refers to
    the names of one of them. `runs` are the runs by key, for measurements that belong to one.
    """

    def __init__(
        self,
        task: Task,
        stated: Mapping[int, TaskRow],
        runs: Mapping[str, TuningRun] | None = None,
    ) -> None:
        self.task, self.stated, self.runs = task, stated, runs or {}
        self.missing: Counter[str] = Counter()  # rows so far, by the part that they need
        self._translations: dict[int, Translation | None] = {}

    def read(self, number: int, row: RecordRow) -> Measurement | None:
        """None for a row that cannot be read."""
        try:
            m = measurement(row, self.task, self.runs)
            if number not in self._translations:
                self._translations[number] = self._translation(self.stated[number])
            translation = self._translations[number]
            if translation is None:
                return m
            trace = translation.trace(m.candidate.trace)
            return replace(m, candidate=Candidate(self.task, trace))
        except MissingPartError as error:
            self.missing[error.part] += 1
            return None
        except UNREADABLE:
            return None

    def _translation(self, stated: TaskRow) -> Translation | None:
        """None if the names are the same."""
        same = stated.statement == self.task.statement
        if same or stated.func == function_to_json(self.task.func):
            return None
        return Translation(_function(stated.func, self.task.parts), self.task.func)


def reader_of(
    row: TaskRow, stated: Mapping[int, TaskRow], parts: Parts | None = None
) -> Reader | None:
    """A reader of a task's records under the names of this row; None if the row is unreadable. The
    task has the back end that it was recorded with, if that is among the parts.
    """
    try:
        func, target = _function(row.func, parts), Target.from_json(row.target)
    except UNREADABLE:
        return None
    if parts is not None and parts.builder(target.kind) != builder_of(row.codegen):
        parts = parts.without_backends
    return Reader(Task(func, target, parts), stated)


def _function(text: str, parts: Parts | None) -> Function:
    own = Parts() if parts is None else parts
    return function_from_json(text, (*INTRINSICS, *own.intrinsics), own.all_notes)


def applies(candidate: Candidate) -> bool:
    """Whether the trace can still be applied to its task."""
    try:
        candidate.trace.apply(candidate.task.func)
    except UNREADABLE:
        return False
    return True
