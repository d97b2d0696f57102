"""What observers of a tuning run receive: one Progress after every batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilesmith.task.task import Budget, Measurement, Task


@dataclass(frozen=True, slots=True)
class Progress:
    """`trials` counts those of this run; `known` those that the database had before."""

    task: Task
    budget: Budget
    seconds: float
    trials: int
    known: int
    failures: Mapping[str, int]  # counts by kind
    best: Measurement | None
    latest: tuple[Measurement, ...]
    finished: bool = False

    @property
    def gflops(self) -> float:
        """The best kernel's rate; 0 while there is none."""
        return self.task.func.flops / self.best.cost / 1e9 if self.best else 0.0

    @property
    def rate(self) -> float:
        """Trials per second."""
        return self.trials / max(self.seconds, 1e-3)

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the budget is spent; None if unknown."""
        left = []
        if self.budget.seconds is not None:
            left.append(self.budget.seconds - self.seconds)
        if self.budget.trials is not None and self.trials:
            left.append((self.budget.trials - self.known - self.trials) / self.rate)
        return max(0.0, min(left)) if left else None


Observer = Callable[[Progress], None]
