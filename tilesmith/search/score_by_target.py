"""The analytic score by kind of target. It ranks the first candidates, before anything is measured,
and filters the children of later generations.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.given import checks_given
from tilesmith.base.target import Target
from tilesmith.search.cpu_score import CpuScore
from tilesmith.search.features.graph import Term
from tilesmith.search.features.nest import Nest
from tilesmith.search.gpu_score import GpuScore
from tilesmith.search.protocol import AnalyticScore, Scores
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant


@checks_given(error=TuneError)
@dataclass(frozen=True)
class ScoreByTarget:
    """One analytic score per kind of target."""

    cpu: AnalyticScore = field(default_factory=CpuScore)
    gpu: AnalyticScore = field(default_factory=GpuScore)

    def of(self, target: Target) -> AnalyticScore:
        return self.cpu if target.kind == "cpu" else self.gpu

    def score(self, variant: Variant, rows: Matrix) -> Scores:
        """The share of the machine's peak that each row reaches."""
        return np.exp2(self.predict(variant, rows))

    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        return self.of(variant.task.target).predict(variant, rows)

    def term(self, variant: Variant) -> Term:
        return self.of(variant.task.target).term(variant)

    def estimates(self, nest: Nest) -> tuple[Term, ...]:
        return self.of(nest.variant.task.target).estimates(nest)
