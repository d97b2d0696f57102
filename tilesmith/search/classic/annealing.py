"""Annealing: AutoTVM's simulated annealing. Parallel Markov chains walk over rows by the scores of
a cost model; the best rows that they visit make up a plan, picked for quality and diversity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from heapq import heappush, heappushpop

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.given import checks_given
from tilesmith.schedule.trace import Trace
from tilesmith.search import checked
from tilesmith.search.gbdt import Gbdt
from tilesmith.search.population import Catalogue, Individual, RandomSearch, pick
from tilesmith.search.protocol import AnalyticScore, CostModel, Predictor, Scores
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.space.domains import Matrix, Rng
from tilesmith.space.variant import Variant
from tilesmith.task.task import Candidate, Measurement, Task

_ROUNDS = 2  # plans without a new candidate after which the rest is drawn at random
_POOL = 4  # rows kept for picking, as a multiple of the plan's size


@checks_given(error=TuneError)
@dataclass(frozen=True)
class Annealing:
    """`chains` take up to `iterations` steps while the temperature falls linearly. They stop early
    after `early_stop` steps that found nothing for the plan. Scores are divided by their standard
    deviation, so that a temperature means the same for every model.

    A plan holds `plan` candidates. A share `epsilon` is random, the others are picked among the
    best; a decision that no other candidate of the plan makes is worth `diversity`. The model is
    fitted again after `plan` measurements. Until it is fitted, and without a model, the analytic
    `score` takes its place; where all scores are equal, as by `ts.NoScore()`, a plan is random. At
    most `variants` variants have chains at a time.
    """

    chains: int = 128
    iterations: int = 160
    temperature: tuple[float, float] = (1.0, 0.0)
    early_stop: int = 25
    cost_model: CostModel | None = field(default_factory=Gbdt)
    plan: int = 64
    epsilon: float = 0.05
    diversity: float = 0.02
    variants: int = 8
    score: AnalyticScore = field(default_factory=ScoreByTarget)

    def __post_init__(self) -> None:
        checked.require_counts(self, 1, "chains", "iterations", "early_stop", "plan", "variants")
        checked.require_shares(self, "epsilon")

    def start(self, task: Task, sketches: Sequence[Trace], rng: Rng) -> AnnealingSearch:
        """The search of one task, which is asked for candidates and told measurements."""
        return AnnealingSearch(self, Catalogue(task, sketches), rng)


@dataclass(frozen=True)
class _Analytic:
    score: AnalyticScore

    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        return np.exp2(self.score.predict(variant, rows))


class AnnealingSearch:
    def __init__(self, settings: Annealing, catalogue: Catalogue, rng: Rng) -> None:
        self.settings, self.catalogue, self.rng = settings, catalogue, rng
        self._random = RandomSearch(catalogue, rng)
        self._predictor: Predictor = _Analytic(settings.score)
        self._measurements: list[Measurement] = []
        self._fitted = 0  # number of measurements the predictor was fitted to
        self._states: dict[int, Matrix] = {}  # current rows of the chains, by variant
        self._plan: list[Individual | None] = []  # in reverse order; None is a random candidate
        self._fit()  # a model fitted to other tasks predicts from the start

    def ask(self, n: int) -> list[Candidate]:
        out: list[Candidate] = []
        missed = 0
        while len(out) < n and missed < _ROUNDS:
            if not self._plan:
                self._plan = self._make_plan()
            taken = self._take(n - len(out))
            missed = 0 if taken else missed + 1
            out += taken
        return out + self._random.ask(n - len(out))

    def tell(self, measurements: Sequence[Measurement]) -> None:
        for m in measurements:
            self.catalogue.adopt(m.candidate)
            if m.candidate.task == self.catalogue.task:
                self._measurements.append(m)
        due = len(self._measurements) - self._fitted >= self.settings.plan
        if due and any(m.failure is None for m in self._measurements):
            self._fit()

    def _fit(self) -> None:
        model = self.settings.cost_model
        learned = None if model is None else checked.fit(model, self._measurements)
        self._fitted = len(self._measurements)
        if learned is not None:
            self._predictor = learned
            self._plan = []

    def _take(self, n: int) -> list[Candidate]:
        out: list[Candidate] = []
        while self._plan and len(out) < n:
            who = self._plan.pop()
            if who is None:
                out += self._random.ask(1)
            else:
                c = self.catalogue.propose(who.variant, np.array(who.row, np.int32))
                out += [] if c is None else [c]
        return out

    def _make_plan(self) -> list[Individual | None]:
        s = self.settings
        drawn = int(s.epsilon * s.plan)
        scores, spread = self._settle()
        if not spread:
            return [None] * s.plan
        best = self._anneal(scores, spread)
        ranked = best.ranked
        chosen = pick(
            s.plan - drawn,
            [who.variant for _, who in ranked],
            [np.array(who.row, np.int32) for _, who in ranked],
            np.array([score for score, _ in ranked]),
            s.diversity,
        )
        return [*[None] * drawn, *(ranked[i][1] for i in reversed(chosen))]

    def _anneal(self, scores: dict[int, Scores], spread: float) -> _Best:
        """Moves the chains on; returns the best rows that they visit."""
        s = self.settings
        best = _Best(self.catalogue, s.plan * (_POOL if s.diversity else 1))
        for number, rows in self._states.items():
            best.add(number, rows, scores[number])
        first, last = s.temperature
        idle = 0
        for step in range(s.iterations):
            temperature = first + (last - first) * step / s.iterations
            news = [self._step(k, scores, spread, temperature, best) for k in self._states]
            idle = 0 if any(news) else idle + 1
            if idle >= s.early_stop:
                break
        return best

    def _step(
        self, number: int, scores: dict[int, Scores], spread: float, heat: float, best: _Best
    ) -> bool:
        """Moves all chains of a variant. Returns whether a new row is among the best."""
        variant, rows = self.catalogue.lowered(number), self._states[number]
        moved = variant.mutate(self.rng, rows)
        after = checked.predict(self._predictor, variant, moved) / spread
        chance = np.exp(np.minimum((after - scores[number]) / (heat + 1e-5), 0.0))
        accepted = self.rng.random(len(rows)) < chance
        self._states[number] = np.where(accepted[:, None], moved, rows)
        scores[number] = np.where(accepted, after, scores[number])
        return best.add(number, moved, after)

    def _settle(self) -> tuple[dict[int, Scores], float]:
        """Starts the chains from the best of their last states and of newly drawn rows. Returns the
        scores of these states, and the standard deviation that they are divided by; 0 if they are
        all equal, and nothing is divided.
        """
        s = self.settings
        pool = dict(self._states)
        numbers = self.catalogue.some(self.rng, s.variants)
        for number in numbers:
            drawn = self.catalogue.lowered(number).sample(self.rng, -(-s.chains // len(numbers)))
            pool[number] = np.concatenate([pool[number], drawn]) if number in pool else drawn
        pool = {number: rows for number, rows in pool.items() if len(rows)}
        self._states = {}
        if not pool:
            return {}, 0.0
        scores = {
            k: checked.predict(self._predictor, self.catalogue.lowered(k), rows)
            for k, rows in pool.items()
        }
        leading = sorted(pool, key=lambda k: -float(scores[k].max()))[: s.variants]
        every = np.concatenate([scores[k] for k in leading])
        spread = float(every.std())
        least = np.sort(every)[-min(s.chains, len(every))]
        for number in leading:
            keep = scores[number] >= least
            if keep.any():
                self._states[number] = pool[number][keep]
                scores[number] = scores[number][keep] / (spread or 1.0)
        return scores, spread


class _Best:
    """The highest scores among rows that were never proposed, at most `size` of them."""

    def __init__(self, catalogue: Catalogue, size: int) -> None:
        self.catalogue, self.size = catalogue, size
        self._heap: list[tuple[float, int, Individual]] = []  # numbered: of equals the older wins
        self._added: set[Individual] = set()

    @property
    def ranked(self) -> list[tuple[float, Individual]]:
        return [(score, who) for score, _, who in sorted(self._heap, reverse=True)]

    def add(self, number: int, rows: Matrix, scores: Scores) -> bool:
        """Adds rows. Returns whether any of them is new and among the best so far."""
        least = self._heap[0][0] if len(self._heap) >= self.size else -np.inf
        new = False
        for i in np.flatnonzero(scores > least):
            who = Individual(number, tuple(map(int, rows[i])))
            if who in self._added or self.catalogue.seen(number, rows[i]):
                continue
            self._added.add(who)
            entry = (float(scores[i]), -len(self._added), who)
            if len(self._heap) < self.size:
                heappush(self._heap, entry)
                new = True
            else:
                new |= heappushpop(self._heap, entry) is not entry
        return new
