"""Transfer: a cost model that is warm-started from records of other tasks. A global model, fitted
to those, corrects the analytic score; a local model, fitted to the task's own measurements,
corrects the global one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from functools import cached_property
from heapq import nsmallest

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.given import checks_given
from tilesmith.search.gbdt import Gbdt, GbdtPredictor
from tilesmith.search.protocol import Predictor, Scores
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant
from tilesmith.task.task import Candidate, Measurement


@checks_given(error=TuneError)
@dataclass(frozen=True)
class Transfer:
    """`records` are measurements of other tasks. The global model `shared` is the base of the
    `local` one, and chooses the first batch alone. Its corrections are scaled by `share`, which is
    halved after `fading` measurements of the task. The `fastest` programs of each other task are
    suggested to the search as a start.
    """

    records: Sequence[Measurement]
    fastest: int = 8
    share: float = 1.0
    fading: float = 256.0
    local: Gbdt = field(default_factory=Gbdt)
    shared: Gbdt = field(default_factory=lambda: Gbdt(rounds=100, most=20_000))

    def __post_init__(self) -> None:
        if self.shared.loss == "packed":
            raise TuneError(
                'Transfer(shared=Gbdt(loss="packed")): a packed model is no correction of the '
                'analytic score that could fade; use "rank" or "regression"'
            )

    @cached_property
    def _global_model(self) -> GbdtPredictor | None:
        """The global model, fitted at first use."""
        return self.shared.fit(self.records)

    def familiar(self) -> list[Candidate]:
        """The fastest recorded candidates of each other task, which a search begins with."""
        by_task: dict[str, list[Measurement]] = {}
        for m in self.records:
            if m.failure is None:
                by_task.setdefault(m.candidate.task.key, []).append(m)
        return [
            m.candidate
            for ms in by_task.values()
            for m in nsmallest(self.fastest, ms, key=lambda m: m.rank)
        ]

    def fit(self, measurements: Sequence[Measurement]) -> Predictor | None:
        """A predictor that has learned from the measurements; None if there are too few."""
        model = self._global_model
        if model is None:
            return self.local.fit(measurements)
        share = self.share * self.fading / (self.fading + len(measurements))
        base = Faded(model, share)
        return replace(self.local, base=base).fit(measurements) or base


@dataclass(frozen=True)
class Faded:
    """The analytic score plus a share of the global model's correction."""

    model: GbdtPredictor
    share: float

    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        scores, base = self.model.with_base([(variant, rows)])
        return np.asarray(base + self.share * (scores - base))
