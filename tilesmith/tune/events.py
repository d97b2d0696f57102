"""What a tuning run tells those who watch it: one Progress after every batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilesmith.task.task import Budget, Measurement, Task


@dataclass(frozen=True, slots=True)
class Progress:
    """`trials` counts this run's; `known` those that were there before."""

    task: Task
    budget: Budget
    seconds: float
    trials: int
    known: int
    failures: int
    best: Measurement | None
    latest: tuple[Measurement, ...]
    finished: bool = False

    @property
    def gflops(self) -> float:
        """Of the best; 0 while there is none."""
        return self.task.func.flops / self.best.cost / 1e9 if self.best else 0.0


Observer = Callable[[Progress], None]
