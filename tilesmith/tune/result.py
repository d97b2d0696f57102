"""The outcome of a tuning run: the best candidate, the kernel built from it, and how the best cost
fell over time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tilesmith.base.errors import TilesmithError
from tilesmith.runtime.build import build
from tilesmith.runtime.kernel import Kernel
from tilesmith.task.task import Measurement, Task


@dataclass(frozen=True)
class Result:
    """The outcome of a run. `bests` are the successive incumbents, each with the seconds and the
    trials after which it took the lead. A run that was `interrupted`, or ended by an `error` of the
    measurer or the database, has what was measured until then.
    """

    task: Task
    best: Measurement
    trials: int
    failures: dict[str, tuple[int, str]]  # by kind: the count, and the text of the first
    bests: tuple[tuple[float, int, Measurement], ...]
    seconds: float
    interrupted: bool = False
    error: TilesmithError | None = None

    def __repr__(self) -> str:
        failed = sum(count for count, _ in self.failures.values())
        parts = [
            f"{self.task.func.name} for {self.task.target.model or self.task.target.cpu}",
            f"best {self.best.cost * 1e6:.4g} us",
            f"{self.trials} trials ({failed} failed) in {self.seconds:.1f} s",
        ]
        if self.interrupted:
            parts.append("interrupted")
        if self.error is not None:
            parts.append(f"ended by {type(self.error).__name__}: {self.error}")
        return f"<Result {', '.join(parts)}>"

    @cached_property
    def kernel(self) -> Kernel:
        return build(self.best.candidate.trace.apply(self.task.func), self.task.target)

    @property
    def gflops(self) -> float:
        return self.task.func.flops / self.best.cost / 1e9

    @property
    def curve(self) -> tuple[tuple[float, int, float], ...]:
        """(seconds, trials, best cost) at every improvement. All costs are at the speed that the
        machine had when the best was measured; a best of another scale is no point of the curve.
        """
        speed = self.best.cost / self.best.normal_cost
        return tuple(
            (seconds, trials, m.normal_cost * speed)
            for seconds, trials, m in self.bests
            if m.is_normal is self.best.is_normal
        )

    @property
    def near(self) -> float:
        """Seconds until the best was within 10 % of the final one; 0 if the database had it."""
        curve = self.curve
        return next(seconds for seconds, _, cost in curve if cost <= 1.1 * curve[-1][2])
