"""Transfer: records of other tasks and targets warm-start a task. A global model corrects the
analytic score by what all of them have in common, and a local one corrects the global one by what
is measured of the task itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import nsmallest

import numpy as np

from tilesmith.search.gbdt import Gbdt, GbdtPredictor
from tilesmith.search.protocol import Predictor, Scores
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant
from tilesmith.task.task import Candidate, Measurement


@dataclass(frozen=True)
class Transfer:
    """`records` are measurements of other tasks. The global model, `shared`, is the base of the
    `local` one; at first it is all there is, so that the first batch is chosen by it. A `share` of
    its corrections is believed, half of that after `fading` measurements of the task itself. The
    `fastest` of each other task are what a search may begin with.
    """

    records: Sequence[Measurement]
    fastest: int = 8
    share: float = 1.0
    fading: float = 256.0
    local: Gbdt = field(default_factory=Gbdt)
    shared: Gbdt = field(default_factory=lambda: Gbdt(rounds=100, most=20_000))

    @cached_property
    def _known(self) -> GbdtPredictor | None:
        """The global model; it is fitted once, when first asked for."""
        return self.shared.fit(self.records)

    def familiar(self) -> list[Candidate]:
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
        known = self._known
        if known is None:
            return self.local.fit(measurements)
        share = self.share * self.fading / (self.fading + len(measurements))
        base = Faded(known, share)
        return replace(self.local, base=base).fit(measurements) or base


@dataclass(frozen=True)
class Faded:
    """The analytic score, and a share of what the global model corrects it by."""

    known: GbdtPredictor
    share: float

    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        scores, base = self.known.with_base([(variant, rows)])
        return np.asarray(base + self.share * (scores - base))
