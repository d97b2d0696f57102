"""A view of a database that leaves out programs whose rounding errors exceed what is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import FLOAT16, FLOAT32
from tilesmith.base.target import Target
from tilesmith.records.database import (
    Database,
    Explaining,
    Followed,
    Recorded,
    RunSummary,
    TaskSummary,
    find_records,
    likely_best,
    targets_of,
)
from tilesmith.records.pack import Packed, WithPacks
from tilesmith.schedule.chunks import chunk_error
from tilesmith.schedule.rounding import factor_error
from tilesmith.schedule.trace import Parts
from tilesmith.schedule.winograd import filtering_error
from tilesmith.task.task import Candidate, Measurement, Ranking, Task, allowed_error


@dataclass(frozen=True)
class AccurateRecords:
    """Everything is stored and counted in `database`; `of`, `best` and `earlier` give only programs
    whose relative error is at most `accuracy`.
    """

    database: Database
    accuracy: float | None

    @property
    def place(self) -> str:
        return str(getattr(self.database, "place", "this database"))

    @property
    def parts(self) -> Parts | None:
        return self.database.parts if isinstance(self.database, Explaining) else None

    def with_parts(self, parts: Parts) -> AccurateRecords:
        if not isinstance(self.database, Explaining):
            return self
        return replace(self, database=self.database.with_parts(parts))

    def missing(self, task: Task | None = None) -> Mapping[str, int]:
        return self.database.missing(task) if isinstance(self.database, Explaining) else {}

    def allows(self, candidate: Candidate) -> bool:
        func, steps = candidate.task.func, candidate.trace.steps
        single = max(filtering_error(func, steps), factor_error(steps))
        return single <= allowed_error(self.accuracy, FLOAT32) and (
            chunk_error(func, steps) <= allowed_error(self.accuracy, FLOAT16)
        )

    def of(
        self,
        task: Task,
    ) -> list[Measurement]:
        every = self.database.of(task)
        return [m for m in every if self.allows(m.candidate)]

    def since(
        self,
        task: Task,
        mark: int | None,
        besides: str = "",
    ) -> tuple[list[Measurement], int]:
        if not isinstance(self.database, Followed):
            return [], 0
        every, mark = self.database.since(task, mark, besides)
        return [m for m in every if self.allows(m.candidate)], mark

    def best(
        self,
        task: Task,
    ) -> Measurement | None:
        return self._allowed(task, self.database.best(task))

    def likely_best(self, task: Task) -> Measurement | None:
        return self._allowed(task, likely_best(self.database, task))

    def _allowed(self, task: Task, best: Measurement | None) -> Measurement | None:
        """The best measurement, or else the best of those that are accurate enough."""
        if best is None or self.allows(best.candidate):
            return best
        ranked = Ranking(self.of(task)).ranked
        return next(iter(ranked), None)

    def packed(self, task: Task) -> list[Packed]:
        every = self.database.packed(task) if isinstance(self.database, WithPacks) else []
        return [p for p in every if self.allows(p.candidate)]

    def near(self, task: Task) -> list[Packed]:
        every = self.database.near(task) if isinstance(self.database, WithPacks) else []
        return [p for p in every if self.allows(p.candidate)]

    def find(self, key: str) -> list[Recorded]:
        return [r for r in find_records(self.database, key) if self.allows(r.candidate)]

    def earlier(
        self,
        task: Task,
    ) -> list[Candidate]:
        return [c for c in self.database.earlier(task) if self.allows(c)]

    def add(self, measurements: Sequence[Measurement]) -> None:
        self.database.add(measurements)

    def unread(
        self,
        task: Task | None = None,
    ) -> int:
        return self.database.unread(task)

    def runs(
        self,
        task: Task,
    ) -> list[RunSummary]:
        return self.database.runs(task)

    def tasks(self) -> list[TaskSummary]:
        return self.database.tasks()

    def targets(self) -> list[Target]:
        return targets_of(self.database)

    def count(self, task: Task | None = None) -> int:
        return self.database.count(task)

    def save_state(self, task: Task, name: str, data: bytes) -> None:
        self.database.save_state(task, name, data)

    def load_state(self, task: Task, name: str) -> bytes | None:
        return self.database.load_state(task, name)

    def close(self) -> None:
        self.database.close()
