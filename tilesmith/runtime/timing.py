"""`Timing`: the samples of `kernel.time`."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call, one per sample; a sample is the mean over `calls` consecutive calls."""

    samples: tuple[float, ...]
    calls: int

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def best(self) -> float:
        return min(self.samples)

    def __str__(self) -> str:
        return (
            f"{self.median * 1e6:.3f} us (best {self.best * 1e6:.3f}, {len(self.samples)} samples "
            f"of {self.calls} calls)"
        )
