"""A simulated machine: kernels with known times, whose samples are disturbed by drift and by other
processes; and builders that are done at once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilesmith.base.target import cpu
from tilesmith.codegen.artifact import Artifact, Entry
from tilesmith.measure.messages import REFERENCE, Built, Sample
from tilesmith.measure.parent.timing import TimingRules

RULES = TimingRules()
NOISE = 0.01  # interference only adds: exponential, with this mean


@dataclass
class Machine:
    """A Runner whose kernels have known times. The machine's drift changes slowly and affects all
    kernels alike. Another process takes the processor away now and then. Each fresh process has a
    constant factor per kernel (`luck`), as memory placement has.
    """

    seconds: Mapping[int, float]
    rng: random.Random
    wander: float = 0.1  # the largest drift
    drifting: float = 0.2  # how often there is any
    taken: float = 0.0  # how often another process has the processor
    luck: float = 0.004
    drift: float = 0.0
    names: dict[int, int] = field(default_factory=dict)  # slot -> kernel
    _luck: dict[int, float] = field(default_factory=dict)

    def usual(self, kernel: int) -> float:
        """Its median time on an undisturbed machine."""
        return self.seconds[kernel] * (1 + NOISE * math.log(2))

    def add(self, slot: int, built: Built) -> None:
        self.names[slot] = int(built.artifact.name)

    def forget(self, slots: Sequence[int]) -> None: ...

    def unload(self, slots: Sequence[int]) -> None: ...

    def renew(self) -> None:
        self._luck.clear()

    def check(self, slot: int, seconds: float) -> float:
        return 1.2 * self._one(slot).seconds

    def verify(self, slot: int, calls: int, timed: bool, seconds: float) -> None: ...

    def times(self, order: Sequence[tuple[int, int]], seconds: float) -> list[Sample]:
        if self.rng.random() < 0.1:  # drift lasts for some ten rounds
            self.drift = 0.0
            if self.rng.random() < self.drifting:
                self.drift = self.wander * self.rng.random()
        return [self._one(slot) for slot, _ in order]

    def _one(self, slot: int) -> Sample:
        luck = self._luck.setdefault(slot, 1 + self.luck * self.rng.random())
        base = 1e-4 if slot == REFERENCE else luck * self.seconds[self.names[slot]]
        busy = base * (1 + self.drift) * (1 + self.rng.expovariate(1) * NOISE)
        share = 1.0
        if self.rng.random() < self.taken:
            share = 0.4 + 0.6 * self.rng.random()
        return Sample(busy / share, share)


@dataclass
class InstantBuilders:
    """In place of Builders: every job is done at once."""

    ready: list[tuple[str, Built]] = field(default_factory=list)

    def want(self, jobs: Mapping[str, Any], may_leave: int = 0) -> None:
        self.ready = list(jobs.items())

    def allow(self, cores: Any, ahead: Any) -> None: ...

    def occupies(self, cores: Any) -> bool:
        return False

    def take(self, seconds: float) -> tuple[str, Built] | None:
        return self.ready.pop(0) if self.ready else None


def built(kernel: int) -> Any:
    entry = Entry(str(kernel), "", ())
    artifact = Artifact(str(kernel), cpu(1), (entry,), "", str(kernel).encode())
    return Built(artifact, (), 0.01)
