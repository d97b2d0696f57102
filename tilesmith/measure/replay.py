"""ReplayMeasurer: a measurer that answers from recorded measurements. It compares strategies and
cost models seed by seed, without the hardware.

A candidate that was recorded gets its recorded measurement. `missing` says what the others get:

"fail": a failure. Use it with a strategy that proposes only recorded candidates
(`tilesmith.search.classic.recorded.Recorded`): then every number was measured.
"nearest": the measurement of the nearest record of the same variant, by the distance between the
log2 of their decisions.
"model": the prediction of a simulator that is fitted to all records of the task
(`tilesmith.measure.simulate`). The search then sees the whole space, and random search draws as it
would on the machine; but the simulated times are smooth, which makes every strategy look better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Self

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import MeasureError, ScheduleError
from tilesmith.base.given import checks_given
from tilesmith.measure.protocol import Upcoming
from tilesmith.measure.simulate import Simulator, simulate
from tilesmith.schedule.trace import Trace
from tilesmith.search.classic.recorded import Rows, rows_by_variant
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import reopen
from tilesmith.task.task import Candidate, Failure, Measurement, Task, trust

MISSING = ("fail", "nearest", "model")


@checks_given
@dataclass(frozen=True)
class ReplayMeasurer:
    """A measurer that answers from records: nothing is built or run."""

    records: Sequence[Measurement]
    missing: str = "fail"

    def __post_init__(self) -> None:
        if self.missing not in MISSING:
            choices = ", ".join(map(repr, MISSING))
            raise MeasureError(f"missing={self.missing!r} is unknown; known are {choices}")

    def open(self, task: Task) -> ReplayRun:
        """The run; `measure` answers from the records of the task."""
        return ReplayRun(self)

    @cached_property
    def tables(self) -> Mapping[str, Table]:
        """The records by task key; shared by all runs."""
        by_task: dict[str, list[Measurement]] = {}
        for m in self.records:
            by_task.setdefault(m.candidate.task.key, []).append(m)
        return {key: Table(ms) for key, ms in by_task.items()}


class Table:
    """The records of one task. Of several records of a candidate, the first by `trust` counts:
    confirmed ones before those not contended, then the fastest.
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
        """A prediction; a failure if the nearest record failed, because neighbours fail alike."""
        nearest = self.nearest(c)
        if nearest is None or nearest.failure is not None or self.simulator is None:
            return nearest
        variant, row = reopen(c)
        rows: Matrix = np.array([row], np.int32)
        seconds = float(self.simulator.predict(variant, rows)[0])
        return replace(nearest, seconds=(seconds,), confirmed=False, contended=False)


class ReplayRun:
    """`asked` counts the candidates, `answered` those of them that were recorded."""

    def __init__(self, settings: ReplayMeasurer) -> None:
        self._settings = settings
        self._closed = False
        self.asked = self.answered = 0

    def measure(
        self,
        candidates: Sequence[Candidate],
        upcoming: Upcoming | None = None,
        seconds: float | None = None,
    ) -> list[Measurement]:
        if self._closed:
            raise MeasureError("this run of a measurer is closed; open another one")
        if upcoming is not None:
            upcoming()
        return [self._one(c) for c in candidates]

    def _one(self, c: Candidate) -> Measurement:
        self.asked += 1
        table = self._settings.tables.get(c.task.key)
        record = table.exact.get(c.key) if table is not None else None
        if record is not None:
            self.answered += 1
            return record
        try:
            reopen(c)
        except ScheduleError as error:
            return Measurement(c, failure=Failure("schedule", str(error)), when=0.0)
        if table is not None and self._settings.missing != "fail":
            is_nearest = self._settings.missing == "nearest"
            record = table.nearest(c) if is_nearest else table.simulated(c)
        if record is None:
            what = "task" if table is None else "candidate"
            return Measurement(c, failure=Failure("error", f"no record of this {what}"), when=0.0)
        return replace(record, candidate=c)

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
