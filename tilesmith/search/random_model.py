"""RandomModel: a cost model that knows nothing. The score is a hash of the row and a seed. It is
the baseline for strategies and for other models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilesmith.base.identity import digest
from tilesmith.schedule.trace import Trace
from tilesmith.search.protocol import Scores
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant
from tilesmith.task.task import Measurement

Words = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True)
class RandomModel:
    """A cost model that predicts random scores: what others have to beat."""

    seed: int = 0

    def fit(self, measurements: Sequence[Measurement]) -> RandomPredictor:
        """A predictor that ignores the measurements."""
        return RandomPredictor(self.seed)


@dataclass(frozen=True)
class RandomPredictor:
    seed: int

    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        """Uniform between 0 and 1."""
        words = np.full(len(rows), _salt(self.seed, variant.trace), np.uint64)
        for column in range(rows.shape[1]):
            words = _stir(words ^ rows[:, column].astype(np.uint64))
        return np.asarray((words >> np.uint64(11)) / 2.0**53)


@lru_cache(maxsize=1024)
def _salt(seed: int, trace: Trace) -> np.uint64:
    return np.uint64(int(digest(str(seed), trace.to_json())[:16], 16))


def _stir(words: Words) -> Words:
    """Multiply-xorshift mixing: a change of one bit changes about half of all bits."""
    words = (words ^ (words >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(29))) * np.uint64(0xD6E8FEB86659FD93)
    return words ^ (words >> np.uint64(32))
