"""Strategies that need no model: Random draws from the whole space, Evolution drafts by the
analytic score and then varies what was measured best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilesmith.schedule.trace import Trace
from tilesmith.search.catalogue import Catalogue
from tilesmith.space.domains import Rng
from tilesmith.task.task import Candidate, Measurement, Task

_ATTEMPTS = 30  # rounds without a new candidate after which a space counts as exhausted


@dataclass(frozen=True)
class Random:
    """Every variant as likely as any other, rows uniform within it."""

    def start(self, task: Task, sketches: Sequence[Trace], rng: Rng) -> RandomSearch:
        return RandomSearch(Catalogue(task, sketches), rng)


class RandomSearch:
    def __init__(self, catalogue: Catalogue, rng: Rng) -> None:
        self.catalogue, self.rng = catalogue, rng

    def ask(self, n: int) -> list[Candidate]:
        out: list[Candidate] = []
        for _ in range(_ATTEMPTS if n > 0 else 0):
            for k in self.catalogue.some(self.rng, n):
                v = self.catalogue.variant(k)
                assert v is not None
                for row in v.sample(self.rng, 1):
                    c = self.catalogue.propose(k, row)
                    if c is not None:
                        out.append(c)
                if len(out) == n:
                    return out
        return out

    def tell(self, measurements: Sequence[Measurement]) -> None:
        for m in measurements:
            self.catalogue.adopt(m.candidate)
