"""Transfer: records of other tasks and targets warm-start a task. A global model, over features
that are alike for other shapes and operators, is joined with a local one, and fades as measurements
of the task itself come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tilesmith.search.data import groups_of
from tilesmith.search.ensemble import Standardised, standardise
from tilesmith.search.gbdt import Gbdt
from tilesmith.search.protocol import CostModel, Predictor, Scores
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant
from tilesmith.task.task import Measurement

_NEGLIGIBLE = 0.05


@dataclass(frozen=True)
class Transfer:
    """`records` are measurements of other tasks. The global model's share is one half after
    `fade` measurements of the task at hand, a quarter after twice as many; at first it is all there
    is, so that the first batch is chosen by it.
    """

    records: Sequence[Measurement]
    local: CostModel = field(default_factory=Gbdt)
    shared: CostModel = field(default_factory=lambda: Gbdt(features="relations"))
    fade: int = 64

    @cached_property
    def _known(self) -> Standardised | None:
        """The global model; it is fitted once, when first asked for."""
        predictor = self.shared.fit(self.records)
        groups = groups_of(self.records)
        return None if predictor is None or not groups else standardise(predictor, groups)

    def fit(self, measurements: Sequence[Measurement]) -> Predictor | None:
        known = self._known
        predictor = self.local.fit(measurements)
        if known is None or predictor is None:
            return known or predictor
        share = 2.0 ** (-len(measurements) / self.fade)
        if share < _NEGLIGIBLE:
            return predictor
        return Mixture(known, standardise(predictor, groups_of(measurements)), share)


@dataclass(frozen=True, eq=False)
class Mixture:
    known: Predictor
    learned: Predictor
    share: float  # of what was known before

    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        known = self.known.predict(variant, rows)
        return self.share * known + (1 - self.share) * self.learned.predict(variant, rows)
