"""Transfer: records of other tasks and targets warm-start a task. A global model corrects the
analytic score by what all of them have in common, and a local one corrects the global one by what
is measured of the task itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tilesmith.search.gbdt import Gbdt
from tilesmith.search.protocol import Predictor
from tilesmith.task.task import Measurement


@dataclass(frozen=True)
class Transfer:
    """`records` are measurements of other tasks. The global model, `shared`, is the base of the
    `local` one; at first it is all there is, so that the first batch is chosen by it.
    """

    records: Sequence[Measurement]
    local: Gbdt = field(default_factory=Gbdt)
    shared: Gbdt = field(default_factory=lambda: Gbdt(rounds=100, most=20_000))

    @cached_property
    def _known(self) -> Predictor | None:
        """The global model; it is fitted once, when first asked for."""
        return self.shared.fit(self.records)

    def fit(self, measurements: Sequence[Measurement]) -> Predictor | None:
        known = self._known
        if known is None:
            return self.local.fit(measurements)
        return replace(self.local, base=known).fit(measurements) or known
