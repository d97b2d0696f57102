"""Random: draws candidates uniformly from the space, each once. If drawing finds no new ones, the
rest of the space is enumerated, so that a small space is exhausted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilesmith.base.given import checks_given
from tilesmith.schedule.trace import Trace
from tilesmith.search.catalogue import Catalogue
from tilesmith.search.grid import GridSearch
from tilesmith.space.domains import Rng
from tilesmith.task.task import Candidate, Measurement, Task

_ROUNDS = 8  # draws without a new candidate after which the rest is enumerated
_PATIENCE = 1 << 18


@checks_given
@dataclass(frozen=True)
class Random:
    """All variants are equally likely, and so are the rows of each."""

    def start(self, task: Task, sketches: Sequence[Trace], rng: Rng) -> RandomSearch:
        """The search of one task, which is asked for candidates and told measurements."""
        return RandomSearch(Catalogue(task, sketches), rng)


class RandomSearch:
    """Other searches use it with their own catalogue, for random proposals and when a space is
    nearly exhausted.
    """

    def __init__(self, catalogue: Catalogue, rng: Rng) -> None:
        self.catalogue, self.rng = catalogue, rng
        self._rest = GridSearch(catalogue, _PATIENCE)
        self._missed = 0

    def ask(self, n: int) -> list[Candidate]:
        """The next candidates."""
        out: list[Candidate] = []
        while len(out) < n and self._missed < _ROUNDS:
            drawn = self._draw(n - len(out))
            self._missed = 0 if drawn else self._missed + 1
            out += drawn
        return out + self._rest.ask(n - len(out))

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Nothing is learned."""
        for m in measurements:
            self.catalogue.adopt(m.candidate)

    def _draw(self, n: int) -> list[Candidate]:
        """Up to n new candidates, spread evenly over up to n variants."""
        numbers = self.catalogue.some(self.rng, n)
        out: list[Candidate] = []
        for k, number in enumerate(numbers):
            share = -(-(n - len(out)) // (len(numbers) - k))
            for row in self.catalogue.lowered(number).sample(self.rng, share):
                c = self.catalogue.propose(number, row)
                if c is not None:
                    out.append(c)
        return out
