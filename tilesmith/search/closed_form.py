"""What the analytic scores of all kinds of targets share: a closed form evaluated for many rows."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tilesmith.search.features.graph import Term
from tilesmith.search.features.machine import Compiled
from tilesmith.search.protocol import Scores
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant


class ClosedForm:
    """`score` and `predict` of a class whose `term` is the closed form. Instances must be hashable:
    the compiled form is cached by instance and variant.
    """

    def term(self, variant: Variant) -> Term:
        """log2 of the score, the scale of learned models."""
        raise NotImplementedError

    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        """log2 of the score of each row."""
        return _compiled(self, variant)(rows)[:, 0].astype(np.float64)

    def score(self, variant: Variant, rows: Matrix) -> Scores:
        """The share of the machine's peak that each row reaches. Higher is better."""
        return np.exp2(self.predict(variant, rows))


@lru_cache(maxsize=4096)  # a network of many tasks has thousands of variants
def _compiled(form: ClosedForm, variant: Variant) -> Compiled:
    term = form.term(variant)
    return term.graph.compile([term])
