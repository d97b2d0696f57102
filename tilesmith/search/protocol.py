"""What a strategy is to the rest of the system: frozen settings that start a search, and a search
that proposes candidates and learns from what they cost. It never compiles and never times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tilesmith.schedule.trace import Trace
from tilesmith.space.domains import Rng
from tilesmith.task.task import Candidate, Measurement, Task


class Search(Protocol):
    def ask(self, n: int) -> list[Candidate]:
        """Up to n candidates that were never proposed; fewer only when the space runs out."""
        ...

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """What was measured, also of candidates that others proposed."""
        ...


class Strategy(Protocol):
    def start(self, task: Task, sketches: Sequence[Trace], rng: Rng) -> Search: ...
