"""Mutators: change rows of a variant. Evolution applies a tuple of them in order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilesmith.base.given import checks_given
from tilesmith.space.domains import Matrix, Rng
from tilesmith.space.variant import Variant


@checks_given
@dataclass(frozen=True)
class ChangeDecisions:
    """Changes one decision of each row of a random `share` by a small step: a prime factor moves to
    another tile level, or another value is chosen.
    """

    share: float = 1.0

    def mutate(self, variant: Variant, rng: Rng, rows: Matrix) -> Matrix:
        """Rows with some decisions changed."""
        if self.share >= 1:
            return variant.mutate(rng, rows)
        chosen = rng.random(len(rows)) < self.share
        return np.where(chosen[:, None], variant.mutate(rng, rows), rows)
