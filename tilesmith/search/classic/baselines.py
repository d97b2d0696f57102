"""Strategies and a cost model that learn nothing: what others have to beat. Rows of a grid are
generated on demand, so that a space may be of any size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.given import checks_given
from tilesmith.base.identity import digest
from tilesmith.schedule.trace import Trace
from tilesmith.search.population import Catalogue, RandomSearch
from tilesmith.search.protocol import Scores
from tilesmith.space.domains import Matrix, Rng
from tilesmith.space.variant import Variant
from tilesmith.task.task import Candidate, Measurement, Task


@checks_given(error=TuneError)
@dataclass(frozen=True)
class Grid:
    """Variants one after another, decisions like the digits of a number. A variant is abandoned
    after `patience` consecutive rows that break a limit.
    """

    patience: int = 1 << 26

    def start(self, task: Task, sketches: Sequence[Trace], rng: Rng) -> GridSearch:
        """The search of one task, which is asked for candidates and told measurements."""
        return GridSearch(Catalogue(task, sketches), self.patience)


class GridSearch:
    """Searches with the same catalogue never propose the same candidate."""

    def __init__(self, catalogue: Catalogue, patience: int = Grid.patience) -> None:
        self.catalogue = catalogue
        self._rest = catalogue.every(patience)

    def ask(self, n: int) -> list[Candidate]:
        return list(islice(self._rest, max(n, 0)))

    def tell(self, measurements: Sequence[Measurement]) -> None:
        for m in measurements:
            self.catalogue.adopt(m.candidate)


@checks_given(error=TuneError)
@dataclass(frozen=True)
class Random:
    """Draws each candidate once. All variants are equally likely, and so are the rows of each."""

    def start(self, task: Task, sketches: Sequence[Trace], rng: Rng) -> RandomSearch:
        """The search of one task, which is asked for candidates and told measurements."""
        return RandomSearch(Catalogue(task, sketches), rng)


Words = np.ndarray[Any, np.dtype[np.uint64]]


@checks_given(error=TuneError)
@dataclass(frozen=True)
class RandomModel:
    """A cost model that knows nothing: the score is a hash of the row and the seed."""

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
