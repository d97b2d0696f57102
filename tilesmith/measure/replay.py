"""ReplayMeasurer: recorded measurements in, a measurer that answers from them out, so that
strategies and models are compared seed by seed and without the hardware.

A candidate that was recorded has its recorded measurement. For the others there are three answers.
"fail" says that nothing is known; with a strategy that keeps to what was recorded
(`tilesmith.search.recorded.Recorded`) it never comes to that, every number is a measured one, and
the comparison is as honest as the records are dense. "nearest" gives what the nearest record of the
same variant says, distances being those between the log2 of decisions. "model" asks a simulator
fitted to all records of the task (`tilesmith.measure.simulate`): the search then meets the whole
space and an even landscape, which flatters all strategies alike, and random search draws as it
would on the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from tilesmith.base.errors import MeasureError, ScheduleError
from tilesmith.measure.protocol import Upcoming
from tilesmith.measure.simulate import Simulator, simulate
from tilesmith.schedule.trace import Trace
from tilesmith.space.domains import Matrix
from tilesmith.space.nearest import Rows, rows_by_variant
from tilesmith.space.reopen import reopen
from tilesmith.task.task import Candidate, Failure, Measurement, Task, trust

MISSING = ("fail", "nearest", "model")


@dataclass(frozen=True)
class ReplayMeasurer:
    records: Sequence[Measurement]
    missing: str = "fail"

    def __post_init__(self) -> None:
        if self.missing not in MISSING:
            known = ", ".join(map(repr, MISSING))
            raise MeasureError(f"missing={self.missing!r} is unknown; known are {known}")

    def open(self, task: Task) -> ReplayRun:
        return ReplayRun(self)

    @cached_property
    def tables(self) -> Mapping[str, Table]:
        """By the task's key; made once, and shared by all runs."""
        found: dict[str, list[Measurement]] = {}
        for m in self.records:
            found.setdefault(m.candidate.task.key, []).append(m)
        return {key: Table(ms) for key, ms in found.items()}


class Table:
    """What was recorded of one task. Of several records of a candidate the best one counts: one
    that was confirmed, or else undisturbed, or else fast.
    """

    def __init__(self, records: Sequence[Measurement]) -> None:
        self.exact: dict[str, Measurement] = {}
        for m in sorted(records, key=trust):
            self.exact.setdefault(m.candidate.key, m)

    @cached_property
    def _rows(self) -> dict[Trace, Rows[Measurement]]:
        return rows_by_variant((m.candidate, m) for m in self.exact.values())

    def nearest(self, c: Candidate) -> Measurement | None:
        variant, row = reopen(c)
        rows = self._rows.get(variant.trace)
        return None if rows is None else rows.items[rows.nearest(row)]

    @cached_property
    def simulator(self) -> Simulator | None:
        groups = []
        for rows in self._rows.values():
            at = [k for k, m in enumerate(rows.items) if m.failure is None and m.seconds]
            if at:
                seconds = np.array([rows.items[k].cost for k in at])
                groups.append((rows.variant, rows.matrix[at], seconds))
        return simulate(groups) if groups else None

    def simulated(self, c: Candidate) -> Measurement | None:
        """A failure where the nearest record failed, as failures come in regions."""
        near = self.nearest(c)
        if near is None or near.failure is not None or self.simulator is None:
            return near
        variant, row = reopen(c)
        rows: Matrix = np.array([row], np.int32)
        seconds = float(self.simulator.predict(variant, rows)[0])
        return replace(near, seconds=(seconds,), confirmed=False, contended=False)


class ReplayRun:
    """`asked` counts the candidates, `answered` those among them that were recorded."""

    def __init__(self, settings: ReplayMeasurer) -> None:
        self._settings = settings
        self._closed = False
        self.asked = self.answered = 0

    def measure(
        self,
        candidates: Sequence[Candidate],
        upcoming: Upcoming | None = None,
        until: float | None = None,
    ) -> list[Measurement]:
        if self._closed:
            raise MeasureError("this run of a measurer is closed; open another one")
        if upcoming is not None:
            upcoming()
        return [self._one(c) for c in candidates]

    def _one(self, c: Candidate) -> Measurement:
        self.asked += 1
        table = self._settings.tables.get(c.task.key)
        found = table.exact.get(c.key) if table is not None else None
        if found is not None:
            self.answered += 1
            return found
        try:
            reopen(c)
        except ScheduleError as error:
            return Measurement(c, failure=Failure("schedule", str(error)), when=0.0)
        if table is not None and self._settings.missing != "fail":
            nearest = self._settings.missing == "nearest"
            found = table.nearest(c) if nearest else table.simulated(c)
        if found is None:
            what = "task" if table is None else "candidate"
            return Measurement(c, failure=Failure("error", f"no record of this {what}"), when=0.0)
        return replace(found, candidate=c)

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
