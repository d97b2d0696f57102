"""Evolution: the default strategy. The analytic score picks the first generation out of random
rows, crossover and mutation produce the next ones, the cost model ranks them, and the best are
proposed, together with neighbours of the incumbent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import partial
from itertools import islice
from math import inf, sqrt
from statistics import fmean, variance

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.given import checks_given
from tilesmith.base.target import Target
from tilesmith.schedule.trace import Trace
from tilesmith.search import checked
from tilesmith.search.breeding import breed
from tilesmith.search.gbdt import Gbdt
from tilesmith.search.population import (
    Catalogue,
    ChangeDecisions,
    Individual,
    Population,
    RandomSearch,
    merge,
    pick,
    sample,
)
from tilesmith.search.protocol import (
    AnalyticScore,
    Corrector,
    CostModel,
    Experienced,
    Mutator,
    Predictor,
    Scores,
    Sharing,
)
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.space.domains import Rng
from tilesmith.task.task import Candidate, Measurement, Task

_DOUBT = 2.0  # standard errors of the difference, for a significance of about 5 %


class Descent:
    """Stops after `patience` consecutive neighbours without gain; a new incumbent restarts it."""

    def __init__(self, catalogue: Catalogue, patience: int) -> None:
        self.catalogue, self.patience = catalogue, patience
        self.centre: Individual | None = None
        self._best: Measurement | None = None
        self._tried = 0

    @property
    def finished(self) -> bool:
        return self._tried >= self.patience

    def tell(self, who: Individual, m: Measurement) -> None:
        if m.failure is not None:
            return
        if self._best is None or better(m, self._best):
            self.centre, self._best, self._tried = who, m, 0

    def neighbours(self) -> Population:
        """The neighbours of the incumbent that were not proposed yet."""
        if self.centre is None or self.finished:
            return Population(())
        number = self.centre.variant
        v = self.catalogue.lowered(number)
        from_here = v.neighbours(np.array(self.centre.row, np.int32))
        new = [not self.catalogue.seen(number, r) for r in from_here]
        rows = from_here[new]
        if not len(rows):
            self._tried = self.patience
            return Population(())
        return Population(((number, rows),))

    def propose(self, count: int) -> None:
        """Counts neighbours that were proposed."""
        self._tried += count


def better(a: Measurement, b: Measurement) -> bool:
    """Whether a is significantly faster than b, by Welch's test on the samples; by the medians if
    there are fewer than three samples.
    """
    if a.is_normal is not b.is_normal:  # their times are not comparable
        return a.is_normal
    less = a.normal_cost < b.normal_cost
    x, y = a.normal_seconds, b.normal_seconds
    if len(x) < 3 or len(y) < 3 or not less or b.normal_cost == inf:
        return less
    error = sqrt(variance(x) / len(x) + variance(y) / len(y))
    return less and fmean(y) - fmean(x) > _DOUBT * error


# Structures that a round lowers to move rows there, which takes up to a tenth of a second each;
# none before something was measured, so that drafts stay quick.
_LOWERED = 1
_ATTEMPTS = 4  # populations without a new candidate after which the rest is drawn at random
# Of a draft: variants looked at, at least one of each sketch in most cases; and rows of its
# population, because scoring is cheap compared to lowering the variants. GPUs have more sketches,
# of which a few are far ahead.
_DRAFT_VARIANTS, _DRAFT_VARIANTS_OF_GPU, DRAFT_ROWS = 12, 48, 256


def draft_variants(target: Target) -> int:
    return _DRAFT_VARIANTS if target.kind == "cpu" else _DRAFT_VARIANTS_OF_GPU


@checks_given(error=TuneError)
@dataclass(frozen=True)
class Evolution:
    """The default strategy: an evolutionary search that a cost model guides. `cost_model` is the
    setting to swap; the others rarely need a change.

    One round has a first generation of `population` rows. A share `measured` of them are the
    fastest measured so far. The others are the best by the analytic `score` among `drafts` times as
    many random rows. Until the cost model is fitted, half of those are evolved for the analytic
    score alone, for `refined` generations. For a small batch the population is smaller: `each` rows
    per candidate, but at least a quarter of `population`.

    Then come `generations`. A share `crossover` of the children has two parents, which for a share
    `across` of these are of different variants: a block's decisions are taken from one of the two
    where both have them. In replays that was no gain, so it is 0. All go through `mutators`, and a
    share `moved` goes to another structure of the sketch, such as another place where a block is
    computed. A child is dropped if its analytic score is less than `drafted` times the first
    quartile of the parents' scores, because a learned model is unreliable far from what was
    measured.

    Of a batch, a share `epsilon` is random and a share `local` are neighbours of the incumbent. Of
    the rest, a share `fresh` comes from the first generation and the others are descendants: fewer
    of these, because evolution also finds rows that only the model considers fast. If the cost
    model was fitted to other tasks, or programs of other tasks were suggested, a share `familiar`
    are similar to those, while there are any.

    At most `variants` are searched in a round. `diversity` is the worth of a decision that no other
    candidate of the batch makes, in standard deviations of the score; `first_diversity` is used
    before the model is fitted. The model is refitted when the number of measurements has grown by
    the share `refit`, and at the latest after `refit_after` new ones, so that a long run does not
    end with an old model; one that is shared with other searches decides that itself. The local
    search stops after `patience` neighbours without gain. Without a cost model the analytic score
    ranks everything.
    """

    population: int = 512
    each: int = 12
    generations: int = 3
    crossover: float = 0.3
    across: float = 0.0
    moved: float = 0.05
    measured: float = 0.2
    epsilon: float = 0.05
    local: float = 0.2
    familiar: float = 0.5
    fresh: float = 0.7
    drafted: float = 1.0
    diversity: float = 0.02
    first_diversity: float = 0.2
    variants: int = 8
    drafts: int = 8
    refined: int = 4
    refit: float = 0.25
    refit_after: int = 64
    patience: int = 60
    score: AnalyticScore = field(default_factory=ScoreByTarget)
    mutators: tuple[Mutator, ...] = (ChangeDecisions(), ChangeDecisions(share=0.4))
    cost_model: CostModel | None = field(default_factory=Gbdt)

    def __post_init__(self) -> None:
        checked.require_mutators(self.mutators)
        checked.require_counts(self, 1, "population", "each", "variants", "drafts", "refit_after")
        checked.require_counts(self, 0, "generations", "refined", "patience")
        checked.require_shares(
            self, "crossover", "across", "moved", "measured", "epsilon", "local", "familiar",
            "fresh",
        )  # fmt: skip

    def start(self, task: Task, sketches: Sequence[Trace], rng: Rng) -> EvolutionSearch:
        """The search of one task, which is asked for candidates and told measurements."""
        return EvolutionSearch(self, Catalogue(task, sketches), rng)


class EvolutionSearch:
    def __init__(self, settings: Evolution, catalogue: Catalogue, rng: Rng) -> None:
        self.settings, self.catalogue, self.rng = settings, catalogue, rng
        self._random = RandomSearch(catalogue, rng)
        self._descent = Descent(catalogue, settings.patience)
        self._measurements: list[Measurement] = []
        self._best: list[tuple[tuple[bool, float], Individual]] = []
        self._promise: dict[int, float] = {}  # the best score seen in each variant
        self._predictor: Predictor | None = None
        self._fitted = -1
        self._size = settings.population
        # The least analytic score of a child: a model is unreliable far from its training data.
        self._least = -np.inf
        self._shared = settings.cost_model if isinstance(settings.cost_model, Sharing) else None
        self._familiar = Population(())
        if isinstance(settings.cost_model, Experienced):
            self._familiar = merge(*catalogue.like(checked.familiar(settings.cost_model)))
        if settings.cost_model is not None:  # one fitted to other tasks predicts from the start
            self._fit()

    def ask(self, n: int) -> list[Candidate]:
        if n <= 0:
            return []
        s = self.settings
        self._size = min(s.population, max(s.population // 4, s.each * n))
        self._fit()
        out: list[Candidate] = []
        chance = int(n * s.epsilon + self.rng.random())
        if self._best:
            near = self._propose(self._neighbours(), int(n * s.local + self.rng.random()))
            self._descent.propose(len(near))
            out += near
        if len(self._familiar):
            scored = self._familiar, self._scores(self._familiar)
            count = int((n - len(out)) * s.familiar + self.rng.random())
            similar = self._propose(scored, count)
            out += similar
            if count and not similar:  # all have been proposed
                self._familiar = Population(())
        for _ in range(_ATTEMPTS):
            missing = n - len(out) - chance
            if missing <= 0:
                break
            first = self._first()
            drafted = first, self._scores(first)
            self._note_promise(*drafted)
            out += self._propose(drafted, int(missing * s.fresh + self.rng.random()))
            if (missing := n - len(out) - chance) > 0:
                out += self._propose(self._evolve(*drafted), missing)
        return out + self._random.ask(n - len(out))

    def drafts(
        self,
        variants: int | None = None,
        rows: int = DRAFT_ROWS,
        familiar: Sequence[Candidate] = (),
    ) -> Iterator[Candidate]:
        """Candidates by the analytic score alone, best first, the same for all seeds and settings;
        those similar to `familiar` programs of other tasks come before all others. They count as
        proposed.
        """
        search = self.drafting(variants, rows, familiar)
        while asked := search.ask(1):
            self._promise |= search._promise
            yield asked[0]

    def drafting(
        self, variants: int | None, rows: int, familiar: Sequence[Candidate] = ()
    ) -> EvolutionSearch:
        """The search of the same catalogue whose proposals are the `drafts`."""
        variants = variants or draft_variants(self.catalogue.task.target)
        settings = Evolution(epsilon=0, cost_model=None, familiar=1.0, variants=variants, each=rows)
        search = EvolutionSearch(settings, self.catalogue, np.random.default_rng(0))
        search.suggest(familiar)
        return search

    def best_structures(self, count: int) -> tuple[Trace, ...]:
        """The variants with the best scores so far, best first, as traces with open numbers."""
        best = sorted(self._promise, key=lambda k: -self._promise[k])[:count]
        return tuple(self.catalogue.trace(k) for k in best)

    def tell(self, measurements: Sequence[Measurement]) -> None:
        if self._shared is not None:
            self._shared.tell(measurements)
        for m in measurements:
            who = self.catalogue.adopt(m.candidate)
            if m.candidate.task == self.catalogue.task:
                self._measurements.append(m)
            if who is not None and m.failure is None:
                self._best.append((m.rank, who))
                self._descent.tell(who, m)
        self._best.sort(key=lambda b: b[0])
        del self._best[self.settings.population :]

    def suggest(self, others: Sequence[Candidate]) -> None:
        self._familiar = merge(*self._familiar.groups, *self.catalogue.like(others))

    def state(self) -> bytes:
        """The random state and the best score of each variant. The model is not stored: it is
        fitted to the records again.
        """
        promise = [[k, v] for k, v in self._promise.items() if np.isfinite(v)]
        return json.dumps(
            {
                "space": self.catalogue.digest,
                "rng": self.rng.bit_generator.state,
                "promise": promise,
            }
        ).encode()

    def resume(self, state: bytes) -> None:
        try:
            stored = json.loads(state)
            if stored["space"] != self.catalogue.digest:
                return
            self.rng.bit_generator.state = stored["rng"]
            self._promise = {int(k): float(v) for k, v in stored["promise"]}
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
            return  # of another version, or damaged

    def _fit(self) -> None:
        """Fits the model again if enough is new."""
        s = self.settings
        if self._shared is not None:
            self._predictor = checked.fit(self._shared, ()) or self._predictor
            return
        grown = len(self._measurements) - max(self._fitted, 0)
        if s.cost_model is not None and (
            self._fitted < 0
            or grown >= max(8, min(s.refit * len(self._measurements), s.refit_after))
        ):
            predictor = checked.fit(s.cost_model, self._measurements)
            self._predictor = predictor or self._predictor
            self._fitted = len(self._measurements)

    def _scores(self, people: Population) -> Scores:
        model = self._predictor
        if model is None:
            return people.scores(self.catalogue, self.settings.score.predict)
        if isinstance(model, Corrector):
            return checked.with_base(model, people.parts(self.catalogue))[0]
        return people.scores(self.catalogue, partial(checked.predict, model))

    def _propose(self, scored: tuple[Population, Scores], count: int) -> list[Candidate]:
        """The best batch of at most `count` candidates."""
        people, scores = scored
        if count <= 0 or not len(people):
            return []
        members = list(people.members())
        order = np.argsort(-scores, kind="stable")
        if scores[order[0]] == scores[order[-1]]:  # all equal: not only those of the first variants
            order = self.rng.permutation(order)
        best = (i for i in order if not self.catalogue.seen(*members[i]))
        ranked = np.fromiter(islice(best, 16 * count), np.int64)
        if not len(ranked):
            return []
        spread = float(scores[ranked].std()) or 1.0
        s = self.settings
        chosen = pick(
            2 * count,
            [members[i][0] for i in ranked],
            [members[i][1] for i in ranked],
            scores[ranked] / spread,
            s.first_diversity if self._predictor is None else s.diversity,
        )
        out: list[Candidate] = []
        for i in chosen:  # twice as many, because two rows may be the same program
            c = self.catalogue.propose(*members[ranked[i]])
            if c is not None:
                out.append(c)
                if len(out) == count:
                    break
        return out

    def _neighbours(self) -> tuple[Population, Scores]:
        near = self._descent.neighbours()
        return near, self._scores(near)

    def _evolve(self, people: Population, scores: Scores) -> tuple[Population, Scores]:
        """All descendants of these rows, with scores; the rows themselves if there are none."""
        everyone, all_scores = self._bred(people, scores, self.settings.generations, self._approved)
        self._note_promise(everyone, all_scores)
        born = len(everyone) - len(people)
        if not born:
            return people, scores
        descendants = Population(everyone.groups[len(people.groups) :])
        return descendants, all_scores[len(people) :]

    def _note_promise(self, people: Population, scores: Scores) -> None:
        at = 0
        for k, rows in people.groups:
            best = float(scores[at : at + len(rows)].max(initial=-np.inf))
            self._promise[k] = max(self._promise.get(k, -np.inf), best)
            at += len(rows)

    def _approved(self, children: Population) -> tuple[Population, Scores]:
        """The children with a sufficient analytic score, and the model's scores of them."""
        scores, analytic = self._with_analytic(children)
        good = np.flatnonzero(analytic >= self._least)
        return children.take(good), scores[good]

    def _with_analytic(self, people: Population) -> tuple[Scores, Scores]:
        """The model's and the analytic scores, in one call if the model corrects the latter."""
        score, model = self.settings.score, self._predictor
        if isinstance(model, Corrector) and model.base == score:
            return checked.with_base(model, people.parts(self.catalogue))
        analytic = people.scores(self.catalogue, score.predict)
        return (analytic if model is None else self._scores(people)), analytic

    def _scored_analytically(self, children: Population) -> tuple[Population, Scores]:
        return children, children.scores(self.catalogue, self.settings.score.predict)

    def _bred(
        self, people: Population, scores: Scores, generations: int,
        judge: Callable[[Population], tuple[Population, Scores]],
    ) -> tuple[Population, Scores]:  # fmt: skip
        """These rows and all descendants that `judge` keeps, with scores."""
        s = self.settings
        everyone, all_scores = people, scores
        for k in range(generations if len(people) else 0):
            parents = people.take(self._select(scores, self._size))
            children = breed(
                self.catalogue, self.rng, parents, s.crossover, s.mutators, s.moved, s.across,
                lower=_LOWERED if self._best and k == 0 else 0,
            )  # fmt: skip
            people, scores = judge(children)
            everyone = Population((*everyone.groups, *people.groups))
            all_scores = np.concatenate([all_scores, scores])
            # elitism: the best of all generations are the next parents
            keep = np.argsort(-all_scores, kind="stable")[: self._size]
            people, scores = everyone.take(keep), all_scores[np.sort(keep)]
        return everyone, all_scores

    def _select(self, scores: Scores, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Selection by rank: the best of a thousand is about 20 times as likely as the median."""
        rank = np.empty(len(scores))
        rank[np.argsort(-scores, kind="stable")] = np.arange(len(scores))
        weight = 1 / (rank + len(scores) / 40)
        return self.rng.choice(len(scores), count, p=weight / weight.sum())

    def _first(self) -> Population:
        """The first generation of a round."""
        s = self.settings
        drawn = sample(self.catalogue, self.rng, self._variants(), s.drafts * self._size)
        analytic = drawn.scores(self.catalogue, s.score.predict)
        count = int(self._size * (1 - s.measured))
        people, analytic = _top(drawn, analytic, count)
        rows: dict[int, list[tuple[int, ...]]] = {}
        for _, who in self._best[: int(self._size * s.measured)]:
            rows.setdefault(who.variant, []).append(who.row)
        fastest = Population(tuple((k, np.array(r, np.int32)) for k, r in rows.items()))
        fastest_analytic = fastest.scores(self.catalogue, s.score.predict)
        if len(people):
            typical = np.quantile(np.concatenate([analytic, fastest_analytic]), 0.25)
            self._least = float(typical) + float(np.log2(max(s.drafted, 1e-9)))
        if self._predictor is None and s.refined:
            refined, scores = self._bred(people, analytic, s.refined, self._scored_analytically)
            people, _ = _top(people, analytic, count // 2)
            people = merge(*people.groups, *_top(refined, scores, count - count // 2)[0].groups)
        return merge(*people.groups, *fastest.groups, *self._familiar.groups)

    def _variants(self) -> list[int]:
        """The variants of a round: half are those with the best scores so far, half are random."""
        most = self.settings.variants
        best = sorted(self._promise, key=lambda k: -self._promise[k])[: most // 2]
        others = [k for k in self.catalogue.some(self.rng, most) if k not in best]
        return best + others[: most - len(best)]


def _top(people: Population, scores: Scores, count: int) -> tuple[Population, Scores]:
    """The `count` best, in their original order; if all are equal, some of all variants."""
    order = np.argsort(-scores, kind="stable")
    if len(order) > count > 0 and scores[order[0]] == scores[order[-1]]:
        order = order[np.linspace(0, len(order) - 1, count).astype(int)]
    keep = np.sort(order[:count])
    return people.take(keep), scores[keep]
