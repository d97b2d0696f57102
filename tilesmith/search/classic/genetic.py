"""Genetic: a genetic algorithm on measured speeds, without a cost model. Parents of the same
variant are crossed and their children mutated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.given import checks_given
from tilesmith.schedule.trace import Trace
from tilesmith.search import checked
from tilesmith.search.population import Catalogue, Individual, RandomSearch
from tilesmith.space.domains import Matrix, Rng
from tilesmith.space.variant import Variant, stacked
from tilesmith.task.task import Candidate, Measurement, Task

_ROUNDS = 8  # rounds of breeding without a new child after which the rest is drawn at random
_CHANGES = 4
_HOPE = 1e-8  # fitness of a failure relative to the best: a parent only if there is no other

Shares = np.ndarray[Any, np.dtype[np.float64]]


@checks_given(error=TuneError)
@dataclass(frozen=True)
class Genetic:
    """A generation of `population` candidates is measured before the next one is bred from it and
    from the `elite` fastest so far. `mutation` is the probability that a decision of a child is
    changed.
    """

    population: int = 100
    elite: int = 3
    mutation: float = 0.1

    def __post_init__(self) -> None:
        checked.require_counts(self, 1, "population")
        checked.require_counts(self, 0, "elite")
        checked.require_shares(self, "mutation")

    def start(self, task: Task, sketches: Sequence[Trace], rng: Rng) -> GeneticSearch:
        """The search of one task, which is asked for candidates and told measurements."""
        return GeneticSearch(self, Catalogue(task, sketches), rng)


class GeneticSearch:
    def __init__(self, settings: Genetic, catalogue: Catalogue, rng: Rng) -> None:
        self.settings, self.catalogue, self.rng = settings, catalogue, rng
        self._random = RandomSearch(catalogue, rng)
        self._speeds: dict[Individual, float] = {}  # those of the generation being measured
        self._elite: dict[Individual, float] = {}
        self._parents: dict[Individual, float] = {}

    def ask(self, n: int) -> list[Candidate]:
        out: list[Candidate] = []
        missed = 0
        while self._parents and len(out) < n and missed < _ROUNDS:
            children = self._breed(n - len(out))
            missed = 0 if children else missed + 1
            out += children
        return out + self._random.ask(n - len(out))

    def tell(self, measurements: Sequence[Measurement]) -> None:
        for m in measurements:
            who = self.catalogue.adopt(m.candidate)
            if who is not None:
                self._speeds[who] = 1 / m.normal_cost if m.failure is None and m.cost > 0 else 0.0
        if len(self._speeds) >= self.settings.population:
            best = sorted((self._elite | self._speeds).items(), key=lambda e: -e[1])
            self._elite = dict(best[: self.settings.elite])
            if best[0][1] > 0:  # failures alone do not become parents
                self._parents = self._speeds | self._elite
            self._speeds = {}

    def _breed(self, n: int) -> list[Candidate]:
        """Up to n children of two parents of the same variant, chosen in proportion to speed."""
        people = list(self._parents)
        fitness = np.array(list(self._parents.values())) + _HOPE * max(self._parents.values())
        chosen = self.rng.choice(len(people), n, p=_shares(fitness))
        out: list[Candidate] = []
        for number in dict.fromkeys(people[i].variant for i in chosen):
            variant = self.catalogue.lowered(number)
            family = [i for i, who in enumerate(people) if who.variant == number]
            firsts = [i for i in chosen if people[i].variant == number]
            seconds = self.rng.choice(family, len(firsts), p=_shares(fitness[family]))
            first, second = (
                stacked([people[i].row for i in side], variant) for side in (firsts, seconds)
            )
            children = variant.cross(self.rng, first, second)
            children = mutated(variant, self.rng, children, self.settings.mutation)
            self._renew(number, variant, children)
            out += [c for row in children if (c := self.catalogue.propose(number, row)) is not None]
        return out

    def _renew(self, number: int, variant: Variant, children: Matrix) -> None:
        """Mutates children that were proposed before, a few times at most."""
        for _ in range(_CHANGES):
            old = [i for i, row in enumerate(children) if self.catalogue.seen(number, row)]
            children[old] = variant.mutate(self.rng, children[old])


def _shares(fitness: Shares) -> Shares:
    return np.asarray(fitness / fitness.sum())


def mutated(variant: Variant, rng: Rng, rows: Matrix, probability: float) -> Matrix:
    """Changes each decision with this probability; a row that would break a limit stays."""
    new = rows.copy()
    for d, span in zip(variant.domains, variant.spans, strict=True):
        at = np.flatnonzero(rng.random(len(rows)) < probability)
        if d.size > 1 and len(at):
            new[at, span] = d.mutate(rng, new[at, span])
    new = variant.complete(new[:, : sum(len(d.columns) for d in variant.domains)])
    return np.where(variant.valid(new)[:, None], new, rows)
