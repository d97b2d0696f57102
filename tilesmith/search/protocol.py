"""What a strategy and a cost model are to the rest of the system: frozen settings, and the runs or
predictions that come of them. Neither ever compiles or times anything.

Implementations of one's own pass the suites in `tilesmith.testing.strategies` and
`tilesmith.testing.models`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tilesmith.schedule.trace import Trace
from tilesmith.space.domains import Matrix, Rng
from tilesmith.space.variant import Variant
from tilesmith.task.task import Candidate, Measurement, Task

Scores = np.ndarray[Any, np.dtype[np.float64]]
Part = tuple[Variant, Matrix]  # rows of a variant


class Search(Protocol):
    def ask(self, n: int) -> list[Candidate]:
        """Up to n candidates that were never proposed; fewer only when the space runs out."""
        ...

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """What was measured, also of candidates that others proposed."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """A search whose state goes with the records: another run, told the same measurements, goes on
    from it.
    """

    def state(self) -> bytes: ...

    def resume(self, state: bytes) -> None:
        """A state of another space, or of another version, is ignored."""
        ...


class Strategy(Protocol):
    def start(self, task: Task, sketches: Sequence[Trace], rng: Rng) -> Search: ...


class Predictor(Protocol):
    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        """One number per row; a higher one promises a faster program. Scores of several variants
        of a task can be compared.
        """
        ...


@runtime_checkable
class Corrector(Predictor, Protocol):
    """A predictor that corrects another one, and can tell what that one says at no extra price."""

    @property
    def base(self) -> Predictor: ...

    def with_base(self, parts: Sequence[Part]) -> tuple[Scores, Scores]:
        """What both predict of the rows of several variants, one after the other."""
        ...


@runtime_checkable
class Experienced(Protocol):
    """A cost model that has seen other tasks."""

    def familiar(self) -> Sequence[Candidate]:
        """Programs of those tasks that were fast: a search may begin with the like of them."""
        ...


class CostModel(Protocol):
    def fit(self, measurements: Sequence[Measurement]) -> Predictor | None:
        """What these measurements teach, failures among them; they may be of several tasks. None
        if they are too few to learn from.
        """
        ...
