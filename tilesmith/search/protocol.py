"""The protocols of searching: strategies, cost models, analytic scores, feature extractors and
mutators. Each is an object with frozen settings. None of them compiles or times anything.

Your own implementations are passed as arguments (`ts.Evolution(mutators=...)`). Test strategies
with `tilesmith.testing.strategies` and cost models with `tilesmith.testing.models`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tilesmith.schedule.trace import Trace
from tilesmith.search.features.graph import Term
from tilesmith.search.features.machine import Values
from tilesmith.search.features.nest import Nest
from tilesmith.space.domains import Matrix, Rng
from tilesmith.space.variant import Variant
from tilesmith.task.task import Candidate, Measurement, Task

Scores = np.ndarray[Any, np.dtype[np.float64]]
Part = tuple[Variant, Matrix]  # rows of a variant


class Search(Protocol):
    def ask(self, n: int) -> list[Candidate]:
        """Up to n candidates, none proposed before; fewer only if the space is exhausted."""
        ...

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Takes measurements, which may be of candidates that this search did not propose."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """A search whose state is stored with the records. A later run that is told the same
    measurements continues from it.
    """

    def state(self) -> bytes: ...

    def resume(self, state: bytes) -> None:
        """Ignores a state of another space or another version."""
        ...


@runtime_checkable
class Suggestible(Protocol):
    """A search that can learn from other tasks while it runs."""

    def suggest(self, others: Sequence[Candidate]) -> None:
        """Takes fast programs of other tasks; similar ones may be proposed next."""
        ...


class Strategy(Protocol):
    def start(self, task: Task, sketches: Sequence[Trace], rng: Rng) -> Search: ...


class Predictor(Protocol):
    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        """A score for each row; higher is faster. Scores of different variants of a task are
        comparable.
        """
        ...


@runtime_checkable
class Corrector(Predictor, Protocol):
    """A predictor that corrects another one, and returns the other's scores at no extra cost."""

    @property
    def base(self) -> Predictor: ...

    def with_base(self, parts: Sequence[Part]) -> tuple[Scores, Scores]:
        """The scores of both, for the rows of several variants, concatenated."""
        ...


@runtime_checkable
class Experienced(Protocol):
    """A cost model that was fitted to other tasks."""

    def familiar(self) -> Sequence[Candidate]:
        """Fast programs of those tasks; a search may start with similar ones."""
        ...


class CostModel(Protocol):
    def fit(self, measurements: Sequence[Measurement]) -> Predictor | None:
        """Learns from measurements, failures included, which may be of several tasks. None if they
        are too few.
        """
        ...


@runtime_checkable
class Sharing(CostModel, Protocol):
    """A cost model that several searches share. It keeps what they tell it, and decides itself when
    to fit again: `fit` is called before every batch, and mostly returns the last predictor.
    """

    def tell(self, measurements: Sequence[Measurement]) -> None: ...


@runtime_checkable
class AnalyticScore(Protocol):
    """A predictor that needs no measurements: closed forms over a variant's decisions.

    Objects with equal settings must be equal and have equal hashes, because closed forms are
    cached.
    """

    def __hash__(self) -> int: ...

    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        """log2 of the share of the machine's peak, for each row."""
        ...

    def term(self, variant: Variant) -> Term:
        """The same as `predict`, as a term over the graph of `shared_nests(variant)`."""
        ...

    def estimates(self, nest: Nest) -> tuple[Term, ...]:
        """Four terms that are features of the statement: cycles for arithmetic and for data from
        L2, L3 and memory, or what corresponds to them on a GPU.
        """
        ...


class FeatureExtractor(Protocol):
    """Describes programs to a cost model."""

    def extract(self, variant: Variant, rows: Matrix) -> Values:
        """Finite float32 numbers of the shape (rows, statements, width). The width is the same for
        all variants. An extractor that describes programs as a whole has one "statement".
        """
        ...


@runtime_checkable
class ScoringExtractor(FeatureExtractor, Protocol):
    """An extractor that can compute an analytic score along with the features."""

    def with_score(
        self, variant: Variant, rows: Matrix, score: AnalyticScore
    ) -> tuple[Values, Scores]:
        """Features whose last one is the score, and the score."""
        ...


class Mutator(Protocol):
    """Changes rows for Evolution."""

    def mutate(self, variant: Variant, rng: Rng, rows: Matrix) -> Matrix:
        """A new matrix with a row for each one given. A changed row that is not in the domains or
        exceeds a limit of the variant is replaced by the one given.
        """
        ...
