"""Strategies that need no model: Random draws from the whole space, Evolution drafts by the
analytic score and then varies what was measured best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tilesmith.schedule.trace import Trace
from tilesmith.search.catalogue import Catalogue
from tilesmith.search.draft import Draft
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


@dataclass(frozen=True)
class Evolution:
    """`population` rows are drawn and scored for a draft; afterwards `elite` of the measured are
    parents of most proposals, and the share `epsilon` stays random.
    """

    population: int = 2048
    elite: int = 24
    epsilon: float = 0.1
    drafted: float = 0.2
    variants: int = 48
    draft: Draft = field(default_factory=Draft)

    def start(self, task: Task, sketches: Sequence[Trace], rng: Rng) -> EvolutionSearch:
        return EvolutionSearch(self, Catalogue(task, sketches), rng)


class EvolutionSearch:
    def __init__(self, settings: Evolution, catalogue: Catalogue, rng: Rng) -> None:
        self.settings, self.catalogue, self.rng = settings, catalogue, rng
        self._random = RandomSearch(catalogue, rng)
        self._measured: list[tuple[float, int, tuple[int, ...]]] = []
        self._drafts: list[tuple[float, int, np.ndarray[tuple[int], np.dtype[np.int32]]]] = []

    def ask(self, n: int) -> list[Candidate]:
        s = self.settings
        out: list[Candidate] = []
        if self._measured:
            bred = n - int(np.ceil(n * s.drafted)) - int(n * s.epsilon)
            out += self._children(bred)
        out += self._from_drafts(n - len(out) - int(n * s.epsilon))
        out += self._random.ask(n - len(out))
        if len(out) < n:
            out += self._children(n - len(out))
        return out

    def tell(self, measurements: Sequence[Measurement]) -> None:
        for m in measurements:
            who = self.catalogue.adopt(m.candidate)
            if who is not None and m.failure is None:
                self._measured.append((m.cost, who.variant, who.row))
        self._measured.sort()
        del self._measured[4 * self.settings.elite :]

    def _children(self, n: int) -> list[Candidate]:
        """Mutations, and crossings within a variant, of the best; better parents have more."""
        parents = self._measured[: self.settings.elite]
        out: list[Candidate] = []
        if not parents:
            return out
        weights = 1.0 / (1 + np.arange(len(parents)))
        weights /= weights.sum()
        for _ in range(_ATTEMPTS):
            for at in self.rng.choice(len(parents), size=n, p=weights):
                if len(out) == n:
                    return out
                _, k, row = parents[int(at)]
                v = self.catalogue.variant(k)
                assert v is not None
                rows = np.array([row], np.int32)
                mates = [r for _, other, r in parents if other == k]
                if len(mates) > 1 and self.rng.random() < 0.3:
                    mate = mates[int(self.rng.integers(len(mates)))]
                    rows = v.cross(self.rng, rows, np.array([mate], np.int32))
                for _ in range(1 + int(self.rng.integers(2))):
                    rows = v.mutate(self.rng, rows)
                c = self.catalogue.propose(k, rows[0])
                if c is not None:
                    out.append(c)
        return out

    def _from_drafts(self, n: int) -> list[Candidate]:
        """The best of a large population by the analytic score, spread over variants."""
        out: list[Candidate] = []
        if n <= 0:
            return out
        if len(self._drafts) < n:
            self._refill()
        taken: dict[int, int] = {}
        rest = []
        for score, k, row in self._drafts:
            if len(out) < n and taken.get(k, 0) <= max(2, n // 4):
                c = self.catalogue.propose(k, row)
                if c is not None:
                    taken[k] = taken.get(k, 0) + 1
                    out.append(c)
            else:
                rest.append((score, k, row))
        self._drafts = rest
        return out

    def _refill(self) -> None:
        s = self.settings
        numbers = self.catalogue.some(self.rng, s.variants)
        if not numbers:
            return
        each = max(16, s.population // len(numbers))
        for k in numbers:
            v = self.catalogue.variant(k)
            assert v is not None
            rows = v.sample(self.rng, each)
            scores = s.draft.score(v, rows)
            best = np.argsort(-scores)[: max(4, each // 16)]
            self._drafts += [(float(scores[i]), k, rows[i]) for i in best]
        self._drafts.sort(key=lambda d: -d[0])
