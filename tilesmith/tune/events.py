"""What a tuning run tells its observers: one Progress after every batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    failures: Mapping[str, int]  # by kind
    best: Measurement | None
    latest: tuple[Measurement, ...]
    finished: bool = False

    @property
    def gflops(self) -> float:
        """Of the best; 0 while there is none."""
        return self.task.func.flops / self.best.cost / 1e9 if self.best else 0.0

    @property
    def rate(self) -> float:
        """Trials a second."""
        return self.trials / max(self.seconds, 1e-3)

    @property
    def seconds_left(self) -> float | None:
        """Until the budget is spent, as far as can be told."""
        left = []
        if self.budget.seconds is not None:
            left.append(self.budget.seconds - self.seconds)
        if self.budget.trials is not None and self.trials:
            left.append((self.budget.trials - self.known - self.trials) / self.rate)
        return max(0.0, min(left)) if left else None


Observer = Callable[[Progress], None]
