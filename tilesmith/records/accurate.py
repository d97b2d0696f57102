"""A view of a database that leaves out programs whose rounding errors exceed what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilesmith.ir.intrinsics import INTRINSICS
from tilesmith.ir.nodes import Intrinsic
from tilesmith.records.database import Database, Followed, RunSummary, TaskSummary
from tilesmith.schedule.rounding import filtering_error
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import PRIMITIVES
from tilesmith.task.ranking import Ranking
from tilesmith.task.task import Candidate, Measurement, Task


@dataclass(frozen=True)
class AccurateRecords:
    """Everything is stored and counted in `database`; `of`, `best` and `earlier` give only programs
    whose relative error is at most `accuracy`.
    """

    database: Database
    accuracy: float

    @property
    def place(self) -> str:
        return str(getattr(self.database, "place", "this database"))

    def allows(self, candidate: Candidate) -> bool:
        return filtering_error(candidate.task.func, candidate.trace.steps) <= self.accuracy

    def of(
        self,
        task: Task,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> list[Measurement]:
        every = self.database.of(task, primitives, intrinsics)
        return [m for m in every if self.allows(m.candidate)]

    def since(
        self,
        task: Task,
        mark: int | None,
        besides: str = "",
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> tuple[list[Measurement], int]:
        if not isinstance(self.database, Followed):
            return [], 0
        every, mark = self.database.since(task, mark, besides, primitives, intrinsics)
        return [m for m in every if self.allows(m.candidate)], mark

    def best(
        self,
        task: Task,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> Measurement | None:
        best = self.database.best(task, primitives, intrinsics)
        if best is None or self.allows(best.candidate):
            return best
        ranked = Ranking(self.of(task, primitives, intrinsics)).ranked
        return next(iter(ranked), None)

    def earlier(
        self,
        task: Task,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> list[Candidate]:
        return [c for c in self.database.earlier(task, primitives, intrinsics) if self.allows(c)]

    def add(self, measurements: Sequence[Measurement]) -> None:
        self.database.add(measurements)

    def unread(
        self,
        task: Task | None = None,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> int:
        return self.database.unread(task, primitives, intrinsics)

    def runs(
        self,
        task: Task,
        primitives: Sequence[type[Step]] = PRIMITIVES,
        intrinsics: Sequence[Intrinsic] = INTRINSICS,
    ) -> list[RunSummary]:
        return self.database.runs(task, primitives, intrinsics)

    def tasks(self) -> list[TaskSummary]:
        return self.database.tasks()

    def count(self, task: Task | None = None) -> int:
        return self.database.count(task)

    def save_state(self, task: Task, name: str, data: bytes) -> None:
        self.database.save_state(task, name, data)

    def load_state(self, task: Task, name: str) -> bytes | None:
        return self.database.load_state(task, name)

    def close(self) -> None:
        self.database.close()
